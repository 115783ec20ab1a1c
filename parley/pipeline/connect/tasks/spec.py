"""The arguments with which a task is started, and the events that a worker reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from parley.pipeline.client.cluster import Connection, Isolation
from parley.pipeline.connect.connector_config import SINK, SOURCE
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.herder_results import State, TaskId
from parley.pipeline.connect.worker_config import WorkerConfig, with_prefix
from parley.protocol.security.client_security import NO_SECURITY, SecurityProperties


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """The settings of a source task that writes exactly once: its transactional id, its offsets topic, and the
    generation of its tasks.
    """

    transactional_id: str
    offsets_topic: str
    generation: int


_TOKEN_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task to run: its id, its configurations with resolved references, and how it writes."""

    id: TaskId
    tasks: int
    """The number of the connector's tasks."""
    is_sink: bool
    connector_config: Mapping[str, str] = field(repr=False)
    task_config: Mapping[str, str] = field(repr=False)
    is_paused: bool = False
    exactly_once: ExactlyOnce | None = None

    def settings(self) -> dict[str, Any]:
        """Return the typed values of the keys that all sinks have, or all sources. Raises ConfigError."""
        return (SINK if self.is_sink else SOURCE).parse(self.connector_config)


class WorkerEvents(Protocol):
    """The events that a worker reports to its herder, and the checks that it requests from the herder."""

    def connector_state(self, name: str, state: State, trace: str | None) -> None:
        """Report the connector's new state. ``trace`` is the stack trace of a failure."""
        ...

    def task_state(self, task: TaskId, state: State, trace: str | None) -> None:
        """Report the task's new state. ``trace`` is the stack trace of a failure."""
        ...

    def reconfigure(self, name: str) -> None:
        """Report that the connector requests new task configurations.

        The herder must call ``Worker.task_configs``, and restart changed tasks.
        """
        ...

    def topic_used(self, task: TaskId, topic: str) -> None:
        """Report that the task uses the topic for the first time since the task was started (KIP-558)."""
        ...

    def fence(self, task: TaskId) -> None:
        """Fence all older tasks of the task's connector (KIP-618). Blocks. Raises ConnectError."""
        ...

    def verify(self, task: TaskId, generation: int) -> None:
        """Raise ConnectError if another worker runs the task, or if the task is of an older generation. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a task's clients, by Kafka's names. The connector's settings override the worker's."""

    given: Mapping[str, str] = field(repr=False)
    security: SecurityProperties = NO_SECURITY

    @classmethod
    def of(cls, kind: str, worker: WorkerConfig, connector: Mapping[str, str]) -> ClientSettings:
        """Read the settings. ``kind`` is producer or consumer. ``connector`` is the connector's configuration. Raises
        ConfigError if the connector sets a token endpoint, which only the worker may set.
        """
        own = with_prefix(connector, f"{kind}.override.")
        given = {**worker.with_prefix(f"{kind}."), **own}
        if own.get(_TOKEN_ENDPOINT, "") not in ("", worker.given.get(_TOKEN_ENDPOINT, "")):
            raise ConfigError(f"{kind}.override.{_TOKEN_ENDPOINT}: only the worker's own file may set it")
        # Another cluster gets none of the worker's credentials.
        base = {} if "bootstrap.servers" in own else {**worker.given, **given}
        return cls(given, SecurityProperties.of({**base, **own}))

    def connection(self, worker: WorkerConfig, client_id: str) -> Connection:
        """Return the connection to the cluster: the worker's, with these settings in place of the worker's own. Raises
        ValueError if ``bootstrap.servers`` is malformed.
        """
        return Connection(
            security=self.security,
            bootstrap=self.given.get("bootstrap.servers", worker.bootstrap),
            client_id=self.given.get("client.id", client_id),
        )

    def integer(self, name: str, default: int) -> int:
        """Return an integer setting. Raises ConfigError if it is not a number."""
        text = self.given.get(name, str(default))
        if not text.strip().isdecimal():
            raise ConfigError(f"Invalid value {text} for configuration {name}: Not a number of type INT")
        return int(text)

    @property
    def isolation(self) -> Isolation:
        committed = self.given.get("isolation.level", "read_uncommitted") == "read_committed"
        return Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
