"""The messages of workers in their group's metadata and assignments: Kafka's ConnectProtocol, versions 0 to 2.

Version 0 ("default") assigns everything again in each rebalance. From version 1 on ("compatible", KIP-415), members
report what they have, and only the difference is assigned or revoked. Version 2 ("sessioned", KIP-507) is the same, and
shows that the member signs its requests to the leader.

======================  ========================================================================================
metadata                version int16, url string, config offset int64, from v1: allocation (an assignment or null)
assignment              version int16, error int16, leader string, leader's url string, config offset int64,
                        assigned; from v1: revoked, delay ms int32
assigned, revoked       array of connector string and array of int32: task numbers, -1 the connector itself; from
                        v1 it may be null, which Kafka's workers read and then fail at: we write empty ones
======================  ========================================================================================

A string begins with its length as int16, an array with its count as int32, bytes with their length as int32; -1 is
null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from parley.pipeline.connect.herder import TaskId

__all__ = [
    "CONFIG_MISMATCH",
    "NO_WORK",
    "PROTOCOLS",
    "PROTOCOL_TYPE",
    "Assignment",
    "MalformedAssignment",
    "MemberState",
    "Work",
    "decode_assignment",
    "decode_member",
    "encode_assignment",
    "encode_member",
]

PROTOCOLS: Final = {"default": 0, "compatible": 1, "sessioned": 2}
"""The names of the protocols in a JoinGroup request, with their versions."""
PROTOCOL_TYPE: Final = "connect"
CONFIG_MISMATCH: Final = 1
_THE_CONNECTOR: Final = -1


class MalformedAssignment(ValueError):
    """The bytes of another member cannot be parsed."""


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
    """After this time the members join again: the work of a lost worker is held back until then."""
    error: int = 0


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member's state for the leader: its REST API's address, the offset up to which it has read, and its work."""

    url: str
    config_offset: int
    has: Work = field(default=NO_WORK)


# Writing.


def encode_member(member: MemberState, version: int) -> bytes:
    """Return the metadata of a member for JoinGroup."""
    out = struct.pack(">h", version) + _string(member.url) + struct.pack(">q", member.config_offset)
    if version == 0:
        return out
    allocation = encode_assignment(Assignment(config_offset=member.config_offset, assigned=member.has), version)
    return out + struct.pack(">i", len(allocation)) + allocation


def encode_assignment(assignment: Assignment, version: int) -> bytes:
    """Return an assignment for SyncGroup."""
    out = struct.pack(">hh", version, assignment.error) + _string(assignment.leader) + _string(assignment.leader_url)
    out += struct.pack(">q", assignment.config_offset) + _work(assignment.assigned)
    if version == 0:
        return out
    return out + _work(assignment.revoked) + struct.pack(">i", assignment.delay_ms)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _work(work: Work) -> bytes:
    numbers: dict[str, list[int]] = {name: [_THE_CONNECTOR] for name in sorted(work.connectors)}
    for task in sorted(work.tasks):
        numbers.setdefault(task.connector, []).append(task.task)
    out = struct.pack(">i", len(numbers))
    for name, of_it in numbers.items():
        out += _string(name) + struct.pack(f">i{len(of_it)}i", len(of_it), *of_it)
    return out


# Reading.


def decode_member(data: bytes) -> MemberState:
    """Parse the metadata of a member. Raises MalformedAssignment."""
    reader = _Reader(data)
    version = reader.number(">h")
    member = MemberState(reader.string(), reader.number(">q"))
    allocation = reader.bytes() if version > 0 else b""
    if not allocation:
        return member
    return MemberState(member.url, member.config_offset, decode_assignment(allocation).assigned)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment. Empty bytes are an empty assignment. Raises MalformedAssignment."""
    if not data:
        return Assignment()
    reader = _Reader(data)
    version, error = reader.number(">h"), reader.number(">h")
    leader, url, offset = reader.string(), reader.string(), reader.number(">q")
    assigned = reader.work()
    if version == 0:
        return Assignment(leader, url, offset, assigned, error=error)
    return Assignment(leader, url, offset, assigned, reader.work(), reader.number(">i"), error)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if size < 0 or len(taken) < size:
            raise MalformedAssignment(f"{size} bytes are expected at {self._at} of {len(self._data)}")
        self._at += size
        return taken

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(kind, self._take(struct.calcsize(kind)))
        return int(value)

    def string(self) -> str:
        size = self.number(">h")
        try:
            return self._take(size).decode() if size > 0 else ""
        except UnicodeDecodeError as error:
            raise MalformedAssignment(str(error)) from None

    def bytes(self) -> bytes:
        size = self.number(">i")
        return self._take(size) if size > 0 else b""

    def work(self) -> Work:
        connectors, tasks = set(), set()
        for _ in range(self.number(">i")):
            name = self.string()
            for _ in range(self.number(">i")):
                number = self.number(">i")
                if number == _THE_CONNECTOR:
                    connectors.add(name)
                else:
                    tasks.add(TaskId(name, number))
        return Work(frozenset(connectors), frozenset(tasks))
