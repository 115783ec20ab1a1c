"""What the requests to a herder (`parley.pipeline.connect.distributed.worker_herder`) return and raise.

The `status` of a `HerderError` is the HTTP status that Kafka Connect responds with in that case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
