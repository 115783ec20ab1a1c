"""The membership of a classic group, as a value: its members, state and generation. A decision changes a copy.

The states, and the states from which each can be entered::

    EMPTY                  <- PREPARING_REBALANCE          no members; offsets may remain
    PREPARING_REBALANCE    <- EMPTY, STABLE, COMPLETING    waiting for all members to (re)join
    COMPLETING_REBALANCE   <- PREPARING_REBALANCE          a new generation, waiting for the group leader's assignment
    STABLE                 <- COMPLETING_REBALANCE         the log contains every member's assignment
    DEAD                   <- any                          the group was removed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum

from parley.broker.runtime.states import IllegalStep
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


class GroupState(Enum):
    """The states of a classic group, as DescribeGroups and ListGroups return them."""

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
"""The assignment strategies that a member supports, the preferred one first, with the member's metadata for each."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, as its last JoinGroup described it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    strategies: frozenset[str] = field(init=False)
    """The names of ``protocols``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "strategies", frozenset([name for name, _ in self.protocols]))

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol, or no bytes if the member does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Membership:
    """The members of a group, and the rebalance in progress.

    The membership of a group is never changed in place: a decision changes a copy (``rebalance.py``), which then
    replaces it. Copies share their collections, so a change must replace a collection and not modify it.
    """

    state: GroupState = GroupState.EMPTY
    state_since_ms: int = -1
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader_id: str | None = None
    members: Mapping[str, GroupMember] = field(default_factory=dict)
    static_ids: Mapping[str, str] = field(default_factory=dict)
    """The member ids of static members, by group instance id (KIP-345)."""
    assignments: Mapping[str, bytes] = field(default_factory=dict)
    """The assignments of this generation, by member id. Empty until the group is STABLE."""
    joining: frozenset[str] = frozenset()
    """The members whose JoinGroup is waiting for a response."""
    syncing: frozenset[str] = frozenset()
    """The members whose SyncGroup is waiting for a response."""
    new: frozenset[str] = frozenset()
    """The members that are not part of a generation yet. They send no heartbeats: only a timeout can remove them."""
    pending: frozenset[str] = frozenset()
    """The member ids given to clients that have not joined with them yet (KIP-394)."""
    initial_delay_left_ms: int | None = None
    """How much longer a group that was empty may wait for more members, after the current delay. None if it does not
    wait."""
    joined_during_delay: bool = False

    def copy(self) -> Membership:
        """Return a copy that can be changed."""
        return Membership(
            self.state,
            self.state_since_ms,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader_id,
            self.members,
            self.static_ids,
            self.assignments,
            self.joining,
            self.syncing,
            self.new,
            self.pending,
            self.initial_delay_left_ms,
            self.joined_during_delay,
        )

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Enter ``state`` at the time ``now_ms``. Raises IllegalStep if ``ENTERED_FROM`` does not allow the step."""
        if self.state not in ENTERED_FROM[state]:
            raise IllegalStep("a group", self.state, state)
        self.state = state
        self.state_since_ms = now_ms

    # --- Members ---

    def add(self, member: GroupMember) -> None:
        """Add a member, or replace a known one. The first member becomes the leader of the group."""
        self.members = {**self.members, member.member_id: member}
        if member.group_instance_id is not None:
            self.static_ids = {**self.static_ids, member.group_instance_id: member.member_id}
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, gone: Iterable[GroupMember]) -> None:
        """Remove members. If the leader is removed, another member, if any is left, becomes the leader."""
        ids = {member.member_id for member in gone}
        self.members = {known: each for known, each in self.members.items() if known not in ids}
        self.static_ids = {instance: known for instance, known in self.static_ids.items() if known not in ids}
        self.new -= ids
        if self.leader_id in ids:
            self.leader_id = next(iter(self.members), None)

    def put_in_place(self, member: GroupMember, old_id: str) -> None:
        """Replace the member ``old_id``, the previous incarnation of a static member, with ``member``, the restarted
        one, which keeps its role and assignment (KIP-345)."""
        leads = self.leader_id == old_id
        self.remove([self.members[old_id]])
        self.add(member)
        if leads:
            self.leader_id = member.member_id
        if old_id in self.assignments:
            kept = dict(self.assignments)
            self.assignments = {member.member_id: kept.pop(old_id), **kept}

    def require_member(self, member_id: str, instance_id: str | None) -> GroupMember:
        """Return the member that sent a request. ``instance_id`` is None for a dynamic member.

        Raises UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member now has this instance id.
        """
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
        """Return the member that sent a request in ``generation``.

        Raises ILLEGAL_GENERATION if the group is in another generation, or the errors of ``require_member``.
        """
        member = self.require_member(member_id, instance_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # --- The rebalance ---

    def all_joined(self) -> bool:
        """Return True if every member has joined the rebalance in progress, and no client still has to join with a
        member id that was reserved for it."""
        return not self.pending and len(self.joining) == len(self.members)

    def elect_joined_leader(self) -> bool:
        """Elect another leader if the current one has not joined the rebalance.

        Returns True if the leader has now joined, or False if no member has joined.
        """
        if self.leader_id in self.joining:
            return True
        joined = next((member_id for member_id in self.members if member_id in self.joining), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def accepts(self, protocol_type: str, protocols: Iterable[tuple[str, bytes]], *, instead_of: str = "") -> bool:
        """Return True if a member with these protocols is compatible with the other members of the group.

        The member must have the group's protocol type, and support a strategy that all other members support.
        ``instead_of`` is the id of the member that it replaces, if any.
        """
        others = {each.strategies for known, each in self.members.items() if known != instead_of}
        if not others:
            return True
        common = frozenset.intersection(*others)
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def choose_protocol(self) -> str:
        """Return the strategy for the next generation, which the members elect.

        Each member votes for the first of its strategies that all members support. The group must have members.
        """
        common = frozenset.intersection(*{member.strategies for member in self.members.values()})
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of all members, or 0 if there are no members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
