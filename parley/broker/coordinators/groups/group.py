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
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from parley.broker.coordinators.patient_timer import PatientTimer
from parley.broker.runtime.states import IllegalStep
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from parley.protocol.messages.stored import GroupMetadataValue


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


class CommittedOffset(NamedTuple):
    """The offset that a group has committed for a partition. ``expire_at_ms`` is set if the client gave a retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_at_ms: int = -1
    log_offset: int = -1
    """Offset of the commit's record in the log; -1 until it is written. Of two commits, the later one counts."""


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
    pending_offsets: dict[int, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    """Offsets committed in transactions that no marker has ended, by producer id. See ``add_pending_offset``."""
    pending_producers: dict[TopicPartition, set[int]] = field(default_factory=dict)
    """The producers that have a pending offset for a partition: there may be thousands of open transactions."""
    stored: GroupMetadataValue | None = None
    """The latest generation that the log has; None if it has none. Membership is ahead of it during a rebalance."""
    rebalance_timer: PatientTimer | None = None
    sync_timer: PatientTimer | None = None
    initial_delay_left_ms: int | None = None
    """How much longer the group may wait for its first members; None if it does not."""
    joined_during_delay: bool = False

    @property
    def is_unused(self) -> bool:
        """True if nothing is left of the group: no members, none about to join, no offsets, no generation."""
        has_offsets = self.offsets or self.pending_offsets
        in_use = self.members or self.pending or has_offsets or self.stored is not None
        return self.state is GroupState.EMPTY and self.generation == 0 and not in_use

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

    def known_member(self, member_id: str, instance_id: str | None) -> GroupMember:
        """Return the member that sent a request.

        Raises UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, or COORDINATOR_NOT_AVAILABLE if the group is dead.
        """
        if self.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if instance_id is not None:
            if instance_id not in self.static_ids:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if self.static_ids[instance_id] != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def current_member(self, member_id: str, instance_id: str | None, generation: int) -> GroupMember:
        """Return the member that sent a request in this generation. Raises as ``known_member``, and
        ILLEGAL_GENERATION."""
        member = self.known_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def partitions_in_log(self) -> set[TopicPartition]:
        """Return the partitions for which the log has offsets, pending ones included."""
        return set(self.offsets) | self.pending_producers.keys()

    def has_pending_offset(self, partition: TopicPartition) -> bool:
        """True if an open transaction has committed an offset for the partition (KIP-447)."""
        return partition in self.pending_producers

    def add_pending_offset(self, producer_id: int, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Add an offset that a producer commits in a transaction."""
        self.pending_offsets.setdefault(producer_id, {})[partition] = offset
        self.pending_producers.setdefault(partition, set()).add(producer_id)

    def remove_pending_offset(self, producer_id: int, partition: TopicPartition) -> None:
        """Remove an offset of an open transaction; the last one removes the transaction, too."""
        pending = self.pending_offsets[producer_id]
        del pending[partition]
        if not pending:
            del self.pending_offsets[producer_id]
        producers = self.pending_producers[partition]
        producers.remove(producer_id)
        if not producers:
            del self.pending_producers[partition]

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
