"""A classic consumer group as data: its members, its state, and the rules by which both may change.

The states, and from which each may be entered::

    EMPTY                  <- PREPARING_REBALANCE          no members; offsets may remain
    PREPARING_REBALANCE    <- EMPTY, STABLE, COMPLETING    waiting for all members to (re)join
    COMPLETING_REBALANCE   <- PREPARING_REBALANCE          a new generation, waiting for the leader's assignment
    STABLE                 <- COMPLETING_REBALANCE         every member may read its assignment
    DEAD                   <- any                          deleted, or moved to another coordinator

Nothing here knows of timers, the network or the log: :mod:`parley.broker.coordinators.groups.membership` drives it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from parley.broker.coordinators.groups.group_timer import GroupTimer
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse


class GroupState(Enum):
    """The states by the names that DescribeGroups and ListGroups show."""

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
"""The assignment strategies a member offers, the preferred one first, each with the member's metadata for it."""


@dataclass(slots=True, eq=False)
class GroupMember:
    """One member of a group. ``join_reply`` and ``sync_reply`` are its requests that wait for an answer."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    is_new: bool = False
    """Whether no generation has begun with the member yet: nothing then shows that it lives, while it waits."""
    assignment: bytes = b""
    join_reply: asyncio.Future[JoinGroupResponse] | None = None
    sync_reply: asyncio.Future[SyncGroupResponse] | None = None
    expires_at: float = 0.0
    session_timer: GroupTimer | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a request of the member waits here: one that is not new needs to send no heartbeat meanwhile."""
        return self.join_reply is not None or self.sync_reply is not None

    def metadata_for(self, protocol: str | None) -> bytes:
        """What the member said for one protocol; empty where it did not offer it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has read one partition. ``expire_at_ms`` is set only where the client asked for a retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    log_offset: int = -1
    """Of the record that says so: of two commits the later one in the log counts, whichever is heard of first."""


TopicPartition = tuple[str, int]


@dataclass(slots=True, eq=False)
class Group:
    """A group and the offsets it committed."""

    group_id: str
    partition: int
    """Of ``__consumer_offsets``, where the group is remembered for as long as it lives."""
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    static_ids: dict[str, str] = field(default_factory=dict)
    pending: dict[str, GroupTimer] = field(default_factory=dict)
    """Member ids handed out whose owners have not joined with them yet (KIP-394)."""
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    commits_under_way: list[Collection[TopicPartition]] = field(default_factory=list)
    """What is in the log, or about to be, but not acknowledged: offsets are not expired while there is any."""
    forgotten: dict[TopicPartition, int] = field(default_factory=dict)
    """Log offset of the latest tombstone of a partition, while an earlier commit may still be acknowledged."""
    rebalance_timer: GroupTimer | None = None
    sync_timer: GroupTimer | None = None
    initial_delay_left_ms: int | None = None
    """Not None while the group gathers its first members: how much longer it may go on waiting for more."""
    joined_during_delay: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody would miss the group: no member, none about to join, no offset, none about to come."""
        in_use = self.members or self.pending or self.offsets or self.commits_under_way
        return self.state is GroupState.EMPTY and not in_use

    @property
    def is_unused(self) -> bool:
        """Whether the group is idle and always was: the log knows nothing of it."""
        return self.is_idle and self.generation == 0

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Change the state; a change the table does not know is a defect."""
        if self.state not in ENTERED_FROM[state]:
            raise AssertionError(f"group {self.group_id}: {self.state.value} -> {state.value} is not a legal step")
        self.state = state
        self.state_since_ms = now_ms

    def add(self, member: GroupMember) -> None:
        """Take in a member; the first one fixes the kind of protocol and leads."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: GroupMember) -> None:
        """Let a member go; another one leads if it led."""
        self.members.pop(member.member_id, None)
        if member.group_instance_id is not None and self.static_ids.get(member.group_instance_id) == member.member_id:
            del self.static_ids[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def rename(self, member: GroupMember, new_id: str) -> None:
        """Give a static member that came back the id of its new incarnation (KIP-345)."""
        was_leader = self.leader_id == member.member_id
        del self.members[member.member_id]
        member.member_id = new_id
        self.members[new_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = new_id
        if was_leader:
            self.leader_id = new_id

    def committed(self, offsets: Mapping[TopicPartition, CommittedOffset], log_offset: int) -> None:
        """Take in offsets that the log has at ``log_offset``."""
        for partition, offset in offsets.items():
            known = self.offsets.get(partition)
            latest = self.forgotten.get(partition, -1) if known is None else known.log_offset
            if latest < log_offset:
                self.offsets[partition] = replace(offset, log_offset=log_offset)

    def forget(self, partitions: Iterable[TopicPartition], log_offset: int) -> None:
        """Drop offsets whose tombstones the log has at ``log_offset``, unless they were committed again after it."""
        for partition in partitions:
            known = self.offsets.get(partition)
            if known is not None and known.log_offset < log_offset:
                del self.offsets[partition]
            if self.commits_under_way:
                self.forgotten[partition] = log_offset

    def commit_begins(self, partitions: Collection[TopicPartition]) -> None:
        """Offsets of these partitions are about to be written."""
        self.commits_under_way.append(partitions)

    def commit_ended(self, partitions: Collection[TopicPartition]) -> None:
        """What :meth:`commit_begins` was told of is in the log, or will never be."""
        self.commits_under_way.remove(partitions)
        if not self.commits_under_way:
            self.forgotten.clear()

    def all_offsets(self) -> set[TopicPartition]:
        """The partitions that the log may have offsets of."""
        return set(self.offsets).union(*self.commits_under_way)

    def all_joined(self) -> bool:
        """Whether nobody is missing from the rebalance under way."""
        return not self.pending and all(member.join_reply is not None for member in self.members.values())

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader takes part in the rebalance; False where nobody does."""
        leader = self.members.get(self.leader_id or "")
        if leader is not None and leader.join_reply is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.join_reply is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def accepts(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]], *, instead_of: str = "") -> bool:
        """Whether a member with these protocols fits the others: the same kind, and one strategy that all know."""
        others = [member for member in self.members.values() if member.member_id != instead_of]
        if not others:
            return True
        common = self._common(others)
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def choose_protocol(self) -> str:
        """The strategy of the next generation: each member votes for its first one that all others know."""
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
        """How long the slowest member may take to rejoin."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
