"""The results and errors of requests to a herder (``parley.pipeline.connect.distributed.herder``).

The ``status`` of a ``HerderError`` is the HTTP status that Kafka Connect returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

Config = Mapping[str, str]
Offsets = Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
"""Pairs of a partition of the source and its offset. None instead of an offset deletes it (KIP-875)."""


class TaskId(NamedTuple):
    """A task of a connector, numbered from 0."""

    connector: str
    task: int

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"


class TargetState(StrEnum):
    """The target states of a connector. Only STOPPED removes its tasks (KIP-875)."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class State(StrEnum):
    """The states of a connector or a task."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    DESTROYED = "DESTROYED"


@dataclass(frozen=True, slots=True)
class Status:
    """The last known status of a connector or a task."""

    state: State
    worker_id: str
    """The host:port of the worker that reported the status."""
    generation: int = 0
    """The group's generation at the time of the report. An older generation never overrides a newer one."""
    trace: str | None = None
    """The stack trace of a failure."""
    version: str | None = None

    def with_state(self, state: State) -> Status:
        """Return this status with another state."""
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """The status of a connector and of its tasks, by number."""

    name: str
    kind: str
    """"source", "sink", or "unknown" if there is no such plugin."""
    connector: Status
    tasks: Mapping[int, Status]


@dataclass(frozen=True, slots=True)
class ConnectorInfo:
    """A connector: its configuration, its tasks and its kind."""

    name: str
    config: Config
    tasks: Sequence[TaskId]
    kind: str


class Created(NamedTuple):
    """The result of putting a configuration: the connector, and True if it is new."""

    is_new: bool
    info: ConnectorInfo


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A class that a configuration can name. ``kind`` is Kafka's name of its kind: source, sink, converter, ..."""

    name: str
    kind: str
    version: str


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The version of the software, and the id of its cluster."""

    version: str
    commit: str
    kafka_cluster_id: str


@dataclass(frozen=True, slots=True)
class LoggerLevel:
    """The level of a logger, by Kafka's name, and the time of its last change (ms) or None."""

    level: str
    last_modified: int | None = None


class HerderError(Exception):
    """Raised if a request cannot be carried out. The message is for the client."""

    status = 500


class BadRequest(HerderError):
    """Raised for an invalid request. Sending it again does not help."""

    status = 400


class Forbidden(HerderError):
    """Raised if the client is not authorized for the request."""

    status = 403


class NotFound(HerderError):
    """Raised if there is no such connector, task or plugin."""

    status = 404


class AlreadyExists(HerderError):
    """Raised if a connector with this name already exists."""

    status = 409


class Rebalancing(HerderError):
    """Raised while the group is rebalancing. The client should send the request again a little later."""

    status = 409


class TimedOut(HerderError):
    """Raised if a request takes too long. It may still be carried out later."""

    status = 500


class NotLeader(HerderError):
    """Raised if another worker, at ``leader_url``, must carry out the request. If this is None, treat the error like
    ``Rebalancing``.
    """

    status = 409

    def __init__(self, message: str, leader_url: str | None) -> None:
        super().__init__(message)
        self.leader_url = leader_url


NO_LEADER: Final = (
    "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
)
