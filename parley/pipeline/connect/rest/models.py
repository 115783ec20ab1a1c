"""The JSON of requests and responses, with Kafka Connect's names and order of fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from parley.pipeline.connect.config import NO_DEFAULT, ConfigType, Importance, Width, as_text
from parley.pipeline.connect.herder_results import State
from parley.pipeline.service.requests import Number


def _as_text(value: Any) -> Any:
    """Convert values that Kafka Connect accepts as strings: numbers as they are written, and booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.text if isinstance(value, Number) else str(value) if isinstance(value, int) else value


def _default_text(value: Any) -> str | None:
    return None if value is NO_DEFAULT else as_text(value)


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


_Text = Annotated[str, BeforeValidator(_as_text)]
Config = dict[str, _Text]
ConfigPatch = dict[str, _Text | None]
_Written = Annotated[str | None, BeforeValidator(as_text)]
"""A typed value, written as in a properties file."""
_Kind = Literal["source", "sink", "unknown"]


def _is_none(value: object) -> bool:
    return value is None


class _Shown(BaseModel):
    """A part of a response, created from the herder's results."""

    model_config = ConfigDict(from_attributes=True)


class _Known(BaseModel):
    """A part of a request. Unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


class Error(BaseModel):
    error_code: int
    message: str


class Message(BaseModel):
    message: str


class Health(BaseModel):
    status: Literal["starting", "healthy", "unhealthy"]
    message: str


class CreateConnectorRequest(_Known):
    name: str = ""
    config: ConfigPatch
    initial_state: Annotated[Literal["RUNNING", "PAUSED", "STOPPED"] | None, BeforeValidator(_upper)] = None


class TaskId(_Shown):
    connector: str
    task: int


class ConnectorInfo(_Shown):
    name: str
    config: dict[str, str]
    tasks: list[TaskId]
    type: _Kind = Field(validation_alias="kind")


class Task(_Shown):
    id: TaskId
    config: dict[str, str]


class ConnectorState(_Shown):
    state: State
    worker_id: str
    trace: str | None = Field(None, exclude_if=_is_none)
    version: str | None = Field(None, exclude_if=_is_none)


class _Numbered(_Shown):
    id: int


class TaskStatus(ConnectorState, _Numbered):
    """The status of a task."""

    # Fields of the base class that is named last come first.


class ConnectorStatus(_Shown):
    name: str
    connector: ConnectorState
    tasks: list[TaskStatus]
    type: _Kind


class ConnectorParts(_Shown):
    info: ConnectorInfo | None = Field(None, exclude_if=_is_none)
    status: ConnectorStatus | None = Field(None, exclude_if=_is_none)


class Topics(BaseModel):
    topics: list[str]


class Offset(_Known):
    partition: dict[str, JsonValue] | None = None
    offset: dict[str, JsonValue] | None = None


class Offsets(_Known):
    offsets: list[Offset] = []


class Plugin(_Shown):
    name: str = Field(serialization_alias="class")
    kind: str = Field(serialization_alias="type")
    version: str


class ConfigKey(_Shown):
    name: str
    type: ConfigType
    required: bool
    default_value: Annotated[str | None, BeforeValidator(_default_text)] = Field(validation_alias="default")
    importance: Importance
    documentation: str = Field(validation_alias="doc")
    group: str | None
    order_in_group: int = Field(validation_alias="order")
    width: Width
    display_name: str = Field(validation_alias="title")
    dependents: list[str]
    order: int = Field(description="The name of `order_in_group` before Kafka 4.0, whose clients use it.")


class ConfigValue(_Shown):
    name: str
    value: _Written
    recommended_values: list[_Written] = Field(validation_alias="recommended")
    errors: list[str]
    visible: bool


class ConfigInfo(_Shown):
    definition: ConfigKey | None
    value: ConfigValue


class ConfigInfos(_Shown):
    name: str
    error_count: int
    groups: list[str]
    configs: list[ConfigInfo]


class SetLogger(BaseModel):
    level: str | None = None
