"""What a task is started with: everything a process elsewhere needs to know, and can be pickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from parley.pipeline.cluster import Connection, Isolation
from parley.pipeline.connect.connector_config import SINK, SOURCE
from parley.pipeline.connect.errors import ConfigError
from parley.pipeline.connect.herder import State, TaskId
from parley.pipeline.connect.offsets import SourceOffset
from parley.pipeline.connect.worker_config import WorkerConfig, with_prefix

__all__ = ["ClientSettings", "Reports", "TaskSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A task to run. `incarnation` is new with each start: what an abandoned one still says is known as such by it."""

    id: TaskId
    tasks: int
    """How many tasks the connector has."""
    incarnation: int
    is_sink: bool
    connector_config: Mapping[str, str]
    task_config: Mapping[str, str]
    is_paused: bool = False

    def settings(self) -> dict[str, Any]:
        """The connector's own keys that all connectors have, as typed values. Raises ConfigError."""
        return (SINK if self.is_sink else SOURCE).parse(self.connector_config)


class Reports(Protocol):
    """Where a task's host says what happens, and where source offsets are. Called from the threads of tasks."""

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None: ...

    def topic_used(self, spec: TaskSpec, topic: str) -> None: ...

    def stored(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """The offsets stored for these partitions of a source."""
        ...

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        """Store offsets; they are durable when it returns. Raises ConnectError."""
        ...


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a task's clients: Kafka's names, the connector's over the worker's, as far as they apply."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, kind: str, worker: WorkerConfig, spec: TaskSpec) -> ClientSettings:
        """`kind` is producer or consumer."""
        own = with_prefix(spec.connector_config, f"{kind}.override.")
        return cls({**worker.with_prefix(f"{kind}."), **own})

    def connection(self, worker: WorkerConfig, client_id: str) -> Connection:
        """Where these settings lead. Raises ConfigError for a cluster that would have to be reached by TLS or SASL."""
        security = self.given.get("security.protocol", "PLAINTEXT")
        if security != "PLAINTEXT":
            raise ConfigError(f"Invalid value {security} for configuration security.protocol: only PLAINTEXT for now")
        return Connection(
            bootstrap=self.given.get("bootstrap.servers", worker.bootstrap),
            client_id=self.given.get("client.id", client_id),
        )

    def integer(self, name: str, default: int) -> int:
        """Raises ConfigError for what is no number."""
        text = self.given.get(name, str(default))
        if not text.strip().isdecimal():
            raise ConfigError(f"Invalid value {text} for configuration {name}: Not a number of type INT")
        return int(text)

    @property
    def isolation(self) -> Isolation:
        committed = self.given.get("isolation.level", "read_uncommitted") == "read_committed"
        return Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
