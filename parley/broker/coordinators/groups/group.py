"""A classic consumer group as data: its members, its state, its offsets, and how these may change.

The states, and the states from which each may be entered::

    EMPTY                  <- PREPARING_REBALANCE          no members; offsets may remain
    PREPARING_REBALANCE    <- EMPTY, STABLE, COMPLETING    waiting for all members to (re)join
    COMPLETING_REBALANCE   <- PREPARING_REBALANCE          a new generation, waiting for the group leader's assignment
    STABLE                 <- COMPLETING_REBALANCE         every member can get its assignment
    DEAD                   <- any                          deleted, or moved to another coordinator

Timers, the network and the log are elsewhere: ``membership.py`` and ``rebalance.py`` drive a group.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from parley.broker.coordinators.patient_timer import PatientTimer
from parley.broker.runtime.states import IllegalStep
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


class GroupState(Enum):
    """The states, with the names that DescribeGroups and ListGroups return."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


ENTERED_FROM: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}

Protocols = tuple[tuple[str, bytes], ...]
"""The assignment strategies that a member supports, the preferred one first, each with the member's metadata for it."""


@dataclass(slots=True, eq=False)
class GroupMember:
    """A member of a group. ``join_reply`` and ``sync_reply`` are its requests that wait for a response."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    is_new: bool = False
    """True until a generation begins with the member. Until then nothing shows that a waiting member is alive."""
    assignment: bytes = b""
    join_reply: asyncio.Future[JoinGroupResponse] | None = None
    sync_reply: asyncio.Future[SyncGroupResponse] | None = None
    expires_at: float = 0.0
    session_timer: PatientTimer | None = None

    @property
    def is_waiting(self) -> bool:
        """True if a request of the member waits here. A member that is not new need not send heartbeats meanwhile."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the member's metadata for one protocol, empty if it does not support the protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The offset that a group has committed for a partition. ``expire_at_ms`` is set if the client gave a retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    log_offset: int = -1
    """Offset of the commit's record. The later one of two commits in the log counts, not the later acknowledged."""


TopicPartition = tuple[str, int]


@dataclass(slots=True, eq=False)
class Group:
    """A group and its committed offsets."""

    group_id: str
    partition: int
    """The partition of ``__consumer_offsets`` that stores the group."""
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    pending: dict[str, PatientTimer] = field(default_factory=dict)
    """Member ids given to clients that have not joined with them yet (KIP-394)."""
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    commits_under_way: list[Collection[TopicPartition]] = field(default_factory=list)
    """Partitions of commits that are not acknowledged yet. No offset of the group expires while there are any."""
    forgotten: dict[TopicPartition, int] = field(default_factory=dict)
    """Log offset of each partition's latest tombstone, kept while an earlier commit may still be acknowledged."""
    rebalance_timer: PatientTimer | None = None
    sync_timer: PatientTimer | None = None
    initial_delay_left_ms: int | None = None
    """How much longer the group may wait for its first members; None if it does not."""
    joined_during_delay: bool = False

    @property
    def is_idle(self) -> bool:
        """True if the group is empty: no members, none about to join, no offsets, no commits in progress."""
        in_use = self.members or self.pending or self.offsets or self.commits_under_way
        return self.state is GroupState.EMPTY and not in_use

    @property
    def is_unused(self) -> bool:
        """True if the group is idle and has never been used, so that the log has no record of it."""
        return self.is_idle and self.generation == 0

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change the state. Raises IllegalStep if the table does not allow the step."""
        if self.state not in ENTERED_FROM[state]:
            raise IllegalStep(f"group {self.group_id}", self.state, state)
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: GroupMember) -> None:
        """Add a member. The first one becomes the group's leader."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: GroupMember) -> None:
        """Remove a member. If it was the leader, another one becomes the leader."""
        self.members.pop(member.member_id, None)
        if member.group_instance_id is not None and self.static_ids.get(member.group_instance_id) == member.member_id:
            del self.static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: GroupMember, new_id: str) -> None:
        """Give a static member that has restarted its new member id (KIP-345)."""
        was_leader = self.leader_id == member.member_id
        del self.members[member.member_id]
        member.member_id = new_id
        self.members[new_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = new_id
        if was_leader:
            self.leader_id = new_id

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset], log_offset: int) -> None:
        """Add committed offsets, whose records the log has at ``log_offset``."""
        for partition, offset in offsets.items():
            known = self.offsets.get(partition)
            latest = self.forgotten.get(partition, -1) if known is None else known.log_offset
            if latest < log_offset:
                self.offsets[partition] = replace(offset, log_offset=log_offset)

    def forget(self, partitions: Iterable[TopicPartition], log_offset: int) -> None:
        """Remove offsets whose tombstones the log has at ``log_offset``, unless they were committed again later."""
        for partition in partitions:
            known = self.offsets.get(partition)
            if known is not None and known.log_offset < log_offset:
                del self.offsets[partition]
            if self.commits_under_way:
                self.forgotten[partition] = log_offset

    def commit_begins(self, partitions: Collection[TopicPartition]) -> None:
        """Note that offsets of these partitions are about to be written."""
        self.commits_under_way.append(partitions)

    def commit_ended(self, partitions: Collection[TopicPartition]) -> None:
        """Note that the commit given to ``commit_begins`` is in the log, or has failed."""
        self.commits_under_way.remove(partitions)
        if not self.commits_under_way:
            self.forgotten.clear()

    def all_offsets(self) -> set[TopicPartition]:
        """Return the partitions for which the log may have offsets."""
        return set(self.offsets).union(*self.commits_under_way)

    def all_joined(self) -> bool:
        """True if every member has joined the rebalance in progress."""
        return not self.pending and all(member.join_reply is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined the rebalance; elect another one if not. False if no member has joined."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_reply is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.join_reply is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def accepts(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]], *, instead_of: str = "") -> bool:
        """True if a member with these protocols fits the others: the same protocol type, and a strategy that all of
        them support."""
        others = [member for member in self.members.values() if member.member_id != instead_of]
        if not others:
            return True
        common = self._common(others)
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def choose_protocol(self) -> str:
        """Return the strategy of the next generation. Each member votes for its first one that all members support."""
        common = self._common(self.members.values())
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    @staticmethod
    def _common(members: Iterable[GroupMember]) -> set[str]:
        offered = [{name for name, _ in member.protocols} for member in members]
        return set.intersection(*offered) if offered else set()

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
