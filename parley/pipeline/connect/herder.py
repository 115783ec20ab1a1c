"""The requests that Connect serves: the one interface behind the REST API and the command line.

A herder looks after connectors; workers run them. A herder may run one process (standalone) or be one of a group
(distributed), where the leader alone changes configurations: there a call may raise `NotLeader`, with the leader's URL,
and the caller sends the request on.

Every call may raise `HerderError`, whose `status` is the HTTP status that Kafka Connect answers in that case. All calls
are coroutines of the loop that the herder was started in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

__all__ = [
    "AlreadyExists",
    "BadRequest",
    "ConnectorInfo",
    "ConnectorStatus",
    "Created",
    "Forbidden",
    "Herder",
    "HerderError",
    "LoggerLevel",
    "NotFound",
    "NotLeader",
    "PluginInfo",
    "Rebalancing",
    "ServerInfo",
    "State",
    "Status",
    "TargetState",
    "TaskId",
    "TimedOut",
]

Config = Mapping[str, str]
Offsets = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
"""Pairs of a partition of the source and the offset in it; without an offset the partition is forgotten (KIP-875)."""


class TaskId(NamedTuple):
    """A task of a connector, numbered from 0."""

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


class TargetState(StrEnum):
    """What is wanted of a connector. Only STOPPED gives up its tasks (KIP-875)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """What a connector or a task does."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


@dataclass(frozen=True, slots=True)
class Status:
    """What a connector or a task was last seen to do."""

    state: State
    worker_id: str
    """host:port of the worker that said so."""
    generation: int = 0
    """The generation of the group in which it was said; an older one never overrules a newer one."""
    trace: str | None = None
    """Why it failed."""
    version: str | None = None

    def with_state(self, state: State) -> Status:
        """The same with another state."""
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """The status of a connector and of its tasks, by number."""

    name: str
    kind: str
    """"source", "sink", or "unknown" where the plugin is not there."""
    connector: Status
    tasks: Mapping[int, Status]


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector as it is configured."""

    name: str
    config: Config
    tasks: Sequence[TaskId]
    kind: str


class Created(NamedTuple):
    """What a configuration was put for: whether the connector is new, and how it is now."""

    is_new: bool
    info: ConnectorInfo


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A class that can be named in a configuration. `kind` is what Kafka calls it: source, sink, converter, ..."""

    name: str
    kind: str
    version: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Which software serves which cluster."""

    version: str
    commit: str
    kafka_cluster_id: str


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """The level of a logger, by Kafka's name for it, and when it was last changed (ms), if it was."""

    level: str
    last_modified: int | None = None


class HerderError(Exception):
    """A request cannot be carried out; the text is for the client."""

    status = 500


class BadRequest(HerderError):
    """The request makes no sense as it stands; sending it again does not help."""

    status = 400


class Forbidden(HerderError):
    """The client has no right to do this."""

    status = 403


class NotFound(HerderError):
    """There is no such connector, task or plugin."""

    status = 404


class AlreadyExists(HerderError):
    """A connector of this name is there already."""

    status = 409


class Rebalancing(HerderError):
    """The group shares out its work just now: send the request again a little later."""

    status = 409


class TimedOut(HerderError):
    """The request was not carried out in time. It may still be."""

    status = 500


class NotLeader(HerderError):
    """Another worker must be asked. `leader_url` is None where none is known: then it is as `Rebalancing`."""

    status = 409

    def __init__(self, message: str, leader_url: str | None) -> None:
        super().__init__(message)
        self.leader_url = leader_url


NO_LEADER: Final = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)


class Herder(ABC):
    """Looks after connectors; see the module's rules for what every call may raise."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it has started: before that it knows no connectors."""

    @abstractmethod
    async def server_info(self) -> ServerInfo:
        """Which software serves which cluster."""

    @abstractmethod
    async def check(self) -> None:
        """Comes back when the herder carries out requests (KIP-1017)."""

    # Connectors.

    @abstractmethod
    async def connectors(self) -> Sequence[str]:
        """The names of all connectors."""

    @abstractmethod
    async def connector(self, name: str) -> ConnectorInfo:
        """A connector as configured. Raises NotFound."""

    @abstractmethod
    async def put_connector(
        self, name: str, config: Config, *, initial: TargetState | None = None, replace: bool = True
    ) -> Created:
        """Create a connector (in the `initial` state, KIP-980), or give it another configuration.

        Raises BadRequest where the configuration is not valid, AlreadyExists where it is there and not to be replaced.
        """

    @abstractmethod
    async def patch_connector(self, name: str, patch: Mapping[str, str | None]) -> Created:
        """Change some keys of a connector's configuration; None takes a key out (KIP-477). Raises NotFound."""

    @abstractmethod
    async def delete_connector(self, name: str) -> None:
        """Stop a connector and forget it; its offsets stay. Raises NotFound."""

    @abstractmethod
    async def status(self, name: str) -> ConnectorStatus:
        """What a connector and its tasks do. Raises NotFound."""

    @abstractmethod
    async def set_target_state(self, name: str, target: TargetState) -> None:
        """Ask for another state; it is reached a little later. Raises NotFound."""

    @abstractmethod
    async def restart_connector(self, name: str) -> None:
        """Start the connector again, not its tasks. Raises NotFound."""

    @abstractmethod
    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Ask for the connector, and its tasks if wanted, to be started again (KIP-745): how it then stands."""

    # Tasks.

    @abstractmethod
    async def task_configs(self, name: str) -> Sequence[tuple[TaskId, Config]]:
        """The configurations of a connector's tasks. Raises NotFound."""

    @abstractmethod
    async def put_task_configs(
        self, name: str, body: bytes, headers: Mapping[str, str], parse: Callable[[bytes], Sequence[Config]]
    ) -> None:
        """What another worker has worked out as the tasks of a connector; `body` is signed in `headers` (KIP-507).

        `parse` reads the body only after its signature was right. Raises BadRequest without a signature, Forbidden with
        a wrong one.
        """

    @abstractmethod
    async def fence(self, name: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Fence all tasks of a source but those that were committed last (KIP-618); `body` is signed in `headers`.

        Another worker asks for it before it starts tasks that write exactly once. Raises NotFound, BadRequest for a
        sink or without a signature, Forbidden with a wrong one.
        """

    @abstractmethod
    async def task_status(self, task: TaskId) -> Status:
        """What a task does. Raises NotFound."""

    @abstractmethod
    async def restart_task(self, task: TaskId) -> None:
        """Start a task again. Raises NotFound."""

    # Topics and offsets.

    @abstractmethod
    async def active_topics(self, name: str) -> Sequence[str]:
        """The topics that the connector was seen to use since they were last forgotten (KIP-558)."""

    @abstractmethod
    async def reset_active_topics(self, name: str) -> None:
        """Forget the topics that the connector used."""

    @abstractmethod
    async def offsets(self, name: str) -> Offsets:
        """How far a connector has come (KIP-875). Raises NotFound."""

    @abstractmethod
    async def alter_offsets(self, name: str, offsets: Offsets) -> str:
        """Set offsets of a stopped connector; a text that says what came of it. Raises NotFound, BadRequest."""

    @abstractmethod
    async def reset_offsets(self, name: str) -> str:
        """Forget all offsets of a stopped connector; a text that says what came of it. Raises NotFound, BadRequest."""

    # Plugins and loggers.

    @abstractmethod
    async def plugins(self, *, connectors_only: bool = True) -> Sequence[PluginInfo]:
        """The classes that configurations may name."""

    @abstractmethod
    async def plugin_config(self, plugin: str) -> Sequence[Mapping[str, Any]]:
        """The keys that a plugin takes, as JSON (KIP-769). Raises NotFound."""

    @abstractmethod
    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> Mapping[str, Any]:
        """A configuration looked through, as JSON: every key with its value and what is wrong with it."""

    @abstractmethod
    async def loggers(self) -> Mapping[str, LoggerLevel]:
        """The loggers of this process whose level is known."""

    @abstractmethod
    async def set_logger(self, name: str, level: str) -> Sequence[str]:
        """Set the level of a logger of this process and of those below: their names. Raises NotFound, BadRequest."""

    @abstractmethod
    async def set_cluster_logger(self, name: str, level: str) -> None:
        """Set the level of a logger in every worker (KIP-976)."""
