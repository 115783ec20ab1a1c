"""The messages of workers in their group's metadata and assignments: Kafka's ConnectProtocol, versions 0 to 2.

Version 0 ("default") assigns everything again in each rebalance. From version 1 on ("compatible", KIP-415), members
report what they have, and only the difference is assigned or revoked. Version 2 ("sessioned", KIP-507) is the same, and
shows that the member signs its requests to the leader.

An assignment lists, for each connector, the numbers of its tasks, and -1 for the connector itself. Strings and lists
may be null. Kafka's workers read null lists and then fail, so Parley writes empty ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from parley.pipeline.connect.herder_results import TaskId
from parley.protocol.codec import decode_from, encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.schema import Data, Struct, field, i16, i32, i64

PROTOCOLS: Final = {"default": 0, "compatible": 1, "sessioned": 2}
"""The names of the protocols in a JoinGroup request, with their versions."""
PROTOCOL_TYPE: Final = "connect"
CONFIG_MISMATCH: Final = 1
_THE_CONNECTOR: Final = -1
_VERSION_MAX: Final = max(PROTOCOLS.values())

D = TypeVar("D", bound=Data)


@dataclass(frozen=True, slots=True)
class Work:
    """Connectors and tasks to be run, assigned or revoked."""

    connectors: frozenset[str] = frozenset()
    tasks: frozenset[TaskId] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.connectors or self.tasks)

    def __len__(self) -> int:
        return len(self.connectors) + len(self.tasks)

    def __or__(self, other: Work) -> Work:
        return Work(self.connectors | other.connectors, self.tasks | other.tasks)

    def __sub__(self, other: Work) -> Work:
        return Work(self.connectors - other.connectors, self.tasks - other.tasks)

    def __and__(self, other: Work) -> Work:
        return Work(self.connectors & other.connectors, self.tasks & other.tasks)

    @classmethod
    def union(cls, parts: Iterable[Work]) -> Work:
        """Join several parts into one."""
        whole = NO_WORK
        for part in parts:
            whole |= part
        return whole


NO_WORK: Final = Work()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leader's assignment for a member. ``assigned`` is added to the member's work; with version 0 it
    replaces it."""

    leader: str = ""
    leader_url: str = ""
    config_offset: int = -1
    assigned: Work = NO_WORK
    revoked: Work = NO_WORK
    delay_ms: int = 0
    """The time (ms) after which the members join again: the work of a lost worker is held back until then."""
    error: int = 0


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member's state for the leader: its REST API's address, the offset up to which it has read, and its work."""

    url: str
    config_offset: int
    has: Work = NO_WORK


# --- The bytes ---


class _ConnectorWork(Struct):
    connector: str | None = field(nullable="0+")
    tasks: list[i32] | None = field(nullable="0+")


class _Assignment(Data, versions="0-2"):
    error: i16
    leader: str | None = field(nullable="0+")
    leader_url: str | None = field(nullable="0+")
    config_offset: i64
    assigned: list[_ConnectorWork] | None = field(nullable="0+")
    revoked: list[_ConnectorWork] | None = field("1+", nullable="1+", ignorable=True)
    delay_ms: i32 = field("1+", default=0, ignorable=True)


class _Member(Data, versions="0-2"):
    url: str | None = field(nullable="0+")
    config_offset: i64
    allocation: bytes | None = field("1+", nullable="1+", ignorable=True)


def encode_member(member: MemberState, version: int) -> bytes:
    """Encode the metadata of a member for JoinGroup."""
    allocation = encode_assignment(Assignment(config_offset=member.config_offset, assigned=member.has), version)
    return encode_stored(_Member(url=member.url, config_offset=member.config_offset, allocation=allocation), version)


def encode_assignment(assignment: Assignment, version: int) -> bytes:
    """Encode an assignment for SyncGroup."""
    stored = _Assignment(
        error=assignment.error,
        leader=assignment.leader,
        leader_url=assignment.leader_url,
        config_offset=assignment.config_offset,
        assigned=_listed(assignment.assigned),
        revoked=_listed(assignment.revoked),
        delay_ms=assignment.delay_ms,
    )
    return encode_stored(stored, version)


def _listed(work: Work) -> list[_ConnectorWork]:
    numbers: dict[str, list[int]] = {name: [_THE_CONNECTOR] for name in sorted(work.connectors)}
    for task in sorted(work.tasks):
        numbers.setdefault(task.connector, []).append(task.task)
    return [_ConnectorWork(connector=name, tasks=tasks) for name, tasks in numbers.items()]


def decode_member(data: bytes) -> MemberState:
    """Decode the metadata of a member. Raises MalformedMessage."""
    found = _decoded(_Member, data)
    return MemberState(found.url or "", found.config_offset, decode_assignment(found.allocation or b"").assigned)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Empty bytes are an empty assignment. Raises MalformedMessage."""
    if not data:
        return Assignment()
    found = _decoded(_Assignment, data)
    return Assignment(
        found.leader or "",
        found.leader_url or "",
        found.config_offset,
        _work(found.assigned),
        _work(found.revoked),
        found.delay_ms,
        found.error,
    )


def _decoded(kind: type[D], data: bytes) -> D:
    """Decode a message; of a message of a later version, only the known part. Raises MalformedMessage."""
    try:
        (version,) = struct.unpack_from(">h", data)
    except struct.error as error:
        raise MalformedMessage(f"{kind.__name__}: {error}") from None
    return decode_from(kind, min(max(version, 0), _VERSION_MAX), data, 2)[0]


def _work(listed: list[_ConnectorWork] | None) -> Work:
    all_of = [(one.connector or "", number) for one in listed or () for number in one.tasks or ()]
    return Work(
        frozenset(name for name, number in all_of if number == _THE_CONNECTOR),
        frozenset(TaskId(name, number) for name, number in all_of if number != _THE_CONNECTOR),
    )
