"""The rebalance of a classic group, the other changes to its membership, and the events of its timers.

1. The group becomes PREPARING_REBALANCE, and every member must rejoin.
2. When all members have joined, or the rebalance timeout has passed, the members that have joined form the next
   generation. Its leader gets the list of members.
3. The leader sends the assignments of all members in its SyncGroup.
4. The assignments are stored in one record, and the group becomes STABLE. Every member gets its assignment when the
   in-sync replicas have the record.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

from parley.broker.coordinators.decision import Decision, Held, KeyValue, Timer
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState
from parley.broker.coordinators.groups.classic.responses import (
    code_for_members,
    join_error,
    join_response,
    sync_error,
    sync_response,
)
from parley.broker.coordinators.groups.group_records import group_record
from parley.broker.coordinators.groups.group_shard import GroupShard, Note
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

T = TypeVar("T")

LOOK_AGAIN_MIN_MS: Final = 1_000
"""The minimum time after which a rebalance that no member has joined is retried, in milliseconds."""

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000
"""A new member is removed if its JoinGroup waits longer than this, as in Kafka: its client has probably given up."""

SESSION_MIN_MS: Final = 10
"""The minimum session timeout, even if a member or a stored group specifies a shorter one. A shorter timeout would keep
the event loop busy."""


SESSIONS_MAX: Final = 10_000
"""The number of session timers to cache, so that a heartbeat need not create one (about 5 MB)."""

REMEMBERED_IDS_MAX: Final = 256
"""The maximum length of the group id and member id together for which a timer is cached. Clients choose the ids."""


def session(group_id: str, member: GroupMember) -> Mapping[Hashable, Timer]:
    """Return the session timer of a member under its key, for ``Decision.timers``. Setting the timer restarts the
    session."""
    return _session(group_id, member.member_id, member.session_timeout_ms)


def _session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    is_short = len(group_id) + len(member_id) <= REMEMBERED_IDS_MAX
    return (_remembered_session if is_short else _new_session)(group_id, member_id, timeout_ms)


def _new_session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    event = partial(session_expired, group_id, member_id)
    return {(TimerKind.SESSION, group_id, member_id): Timer(max(timeout_ms, SESSION_MIN_MS), event, True)}


_remembered_session = lru_cache(SESSIONS_MAX)(_new_session)


class MembershipChange:
    """The changes that one event makes to the membership of a group, with the resulting replies, timers and records."""

    def __init__(self, shard: GroupShard, group_id: str, now_ms: int) -> None:
        self.membership = shard.membership_of(group_id).copy()
        self._shard = shard
        self._group_id = group_id
        self._now_ms = now_ms
        self._caller: Hashable = None
        self._reply: JoinGroupResponse | SyncGroupResponse | None = None
        self._released: dict[Hashable, object] = {}
        self._timers: dict[Hashable, Timer | None] = {}
        self._records: list[KeyValue] = []
        self._notes: list[Note] = []
        self._then: Callable[[], None] | None = None
        self._refused: Callable[[Any, int, KafkaError], Decision[Any]] | None = None

    def decision(self, reply: T | Held) -> Decision[T]:
        """Return the change as a decision with this reply."""
        return Decision(
            reply,
            self._records,
            timers=self._timers,
            released=self._released,
            change=partial(self._shard.change_membership, self._group_id, self.membership, self._notes),
            then=self._then,
            refused=self._refused,
        )

    def decision_for_waiting(self) -> Decision[Any]:
        """Return the change as a decision that holds the caller's reply, unless the change already contains that
        reply."""
        return self.decision(Held(self._caller) if self._reply is None else self._reply)

    # --- Callers that wait ---

    def wait_to_join(self, member: GroupMember) -> None:
        """Hold the JoinGroup that is being decided until the rebalance ends. An earlier JoinGroup of the member, if it
        is still waiting, fails with REBALANCE_IN_PROGRESS."""
        self.release_join(member.member_id, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.membership.joining |= {member.member_id}
        self._caller = "join", self._group_id, member.member_id

    def wait_to_sync(self, member: GroupMember) -> None:
        """Hold the SyncGroup that is being decided until the member's assignment is known. An earlier SyncGroup of the
        member, if it is still waiting, fails with REBALANCE_IN_PROGRESS."""
        self.release_sync(member.member_id, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        self.membership.syncing |= {member.member_id}
        self._caller = "sync", self._group_id, member.member_id

    def release_join(self, member_id: str, response: JoinGroupResponse) -> None:
        """Respond to the member's waiting JoinGroup, if there is one."""
        if member_id in self.membership.joining:
            self.membership.joining -= {member_id}
            self._release(("join", self._group_id, member_id), response)

    def release_sync(self, member_id: str, response: SyncGroupResponse) -> None:
        """Respond to the member's waiting SyncGroup, if there is one."""
        if member_id in self.membership.syncing:
            self.membership.syncing -= {member_id}
            self._release(("sync", self._group_id, member_id), response)

    def release_syncs(self, respond: Callable[[str], SyncGroupResponse]) -> None:
        """Respond to all waiting SyncGroups. ``respond`` returns the response for a member id."""
        syncing, self.membership.syncing = self.membership.syncing, frozenset()
        for member_id in self.membership.members:
            if member_id in syncing:
                self._release(("sync", self._group_id, member_id), respond(member_id))

    def _release(self, key: Hashable, response: JoinGroupResponse | SyncGroupResponse) -> None:
        if key == self._caller:
            self._reply = response
        else:
            self._released[key] = response

    # --- Members ---

    def keep_alive(self, member: GroupMember) -> None:
        """Restart the member's session."""
        self._timers.update(session(self._group_id, member))

    def give_id(self, member_id: str, session_timeout_ms: int) -> None:
        """Reserve a member id for a client, which must join with it within its session timeout (KIP-394)."""
        self.membership.pending |= {member_id}
        event = partial(pending_expired, self._group_id, member_id)
        self._timers[TimerKind.PENDING, self._group_id, member_id] = Timer(session_timeout_ms, event, True)

    def end_pending(self, member_id: str) -> None:
        """Drop the reservation of a member id."""
        self.membership.pending -= {member_id}
        self._timers[TimerKind.PENDING, self._group_id, member_id] = None

    def add(self, member: GroupMember) -> None:
        """Add a new member, hold its JoinGroup, and rebalance."""
        membership = self.membership
        membership.add(member)
        membership.new |= {member.member_id}
        if membership.initial_delay_left_ms is not None:
            membership.joined_during_delay = True
        self.wait_to_join(member)
        self._timers.update(_session(self._group_id, member.member_id, NEW_MEMBER_JOIN_TIMEOUT_MS))
        self.rebalance(f"member {member.member_id} joins")

    def replace_static(self, member: GroupMember, old_id: str) -> None:
        """Replace a static member's previous incarnation, which is fenced, with the restarted one.

        The restarted member stays in the group until its session expires, even if none of its requests is waiting.
        """
        self.release_join(old_id, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))  # a response that fits all versions
        self.release_sync(old_id, sync_error(ErrorCode.FENCED_INSTANCE_ID))
        self._timers[TimerKind.SESSION, self._group_id, old_id] = None
        self.membership.put_in_place(member, old_id)
        self.keep_alive(member)

    def expel(self, members: Iterable[GroupMember], reason: str) -> None:
        """Remove members, fail their waiting requests with UNKNOWN_MEMBER_ID, and rebalance the group. ``reason`` is
        logged."""
        self._forget(list(members))
        if self.membership.state is GroupState.PREPARING_REBALANCE:
            self.complete_if_all_joined()
        elif self.membership.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.rebalance(reason)

    def _forget(self, members: Sequence[GroupMember]) -> None:
        """Remove members, and fail their waiting requests with UNKNOWN_MEMBER_ID. Does not start a rebalance."""
        for member in members:
            self._timers[TimerKind.SESSION, self._group_id, member.member_id] = None
            self.release_join(member.member_id, join_error(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
            self.release_sync(member.member_id, sync_error(ErrorCode.UNKNOWN_MEMBER_ID))
        self.membership.remove(members)

    def note(self, message: str, **facts: object) -> None:
        """Log ``message`` with ``facts`` when the change is applied."""
        self._notes.append((message, facts))

    # --- The rebalance ---

    def rebalance(self, reason: str) -> None:
        """Start a rebalance unless one is in progress, and end it immediately if every member has joined."""
        if self.membership.state is not GroupState.PREPARING_REBALANCE:
            self.note("group rebalances", generation=self.membership.generation, reason=reason)
            self._prepare()
        self.complete_if_all_joined()

    def _prepare(self) -> None:
        membership = self.membership
        self.release_syncs(lambda member_id: sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        self._timers[TimerKind.SYNC, self._group_id] = None
        was_empty = membership.state is GroupState.EMPTY
        membership.enter(GroupState.PREPARING_REBALANCE, self._now_ms)
        timeout_ms = membership.rebalance_timeout_ms()
        delay_ms = self._shard.config().group_initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            membership.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            membership.joined_during_delay = False
            self._set_rebalance_timer(min(delay_ms, timeout_ms), initial_delay_over)
        else:
            self._set_rebalance_timer(timeout_ms, rebalance_timed_out)

    def _set_rebalance_timer(self, delay_ms: int, event: Callable[[str, GroupShard, int], Decision[None]]) -> None:
        self._timers[TimerKind.REBALANCE, self._group_id] = Timer(delay_ms, partial(event, self._group_id), True)

    def wait_for_more_members(self) -> bool:
        """Prolong the initial delay if more members have joined, at most up to the rebalance timeout. Returns False if
        the delay is over."""
        membership = self.membership
        left_ms = membership.initial_delay_left_ms or 0
        if not membership.joined_during_delay or left_ms <= 0:
            return False
        delay_ms = min(self._shard.config().group_initial_rebalance_delay_ms, left_ms)
        membership.joined_during_delay = False
        membership.initial_delay_left_ms = left_ms - delay_ms
        self._set_rebalance_timer(delay_ms, initial_delay_over)
        return True

    def complete_if_all_joined(self) -> None:
        """End the join phase of the rebalance in progress, if there is one and every member has joined."""
        membership = self.membership
        is_preparing = membership.state is GroupState.PREPARING_REBALANCE
        if is_preparing and membership.initial_delay_left_ms is None and membership.all_joined():
            self.complete_join()

    def complete_join(self) -> None:
        """Form the next generation, without the dynamic members that have not joined.

        If only static members are left and none of them has joined, the rebalance continues, and this step is repeated
        later.
        """
        membership = self.membership
        self._timers[TimerKind.REBALANCE, self._group_id] = None
        membership.initial_delay_left_ms = None
        if len(membership.joining) < len(membership.members):
            self._forget_absent()
        for member_id in membership.pending:
            self._timers[TimerKind.PENDING, self._group_id, member_id] = None
        membership.pending = frozenset()
        if membership.members and not membership.elect_joined_leader():
            again_ms = max(LOOK_AGAIN_MIN_MS, membership.rebalance_timeout_ms())
            self._set_rebalance_timer(again_ms, rebalance_timed_out)
        else:
            self._begin_generation()

    def _forget_absent(self) -> None:
        absent = [
            member
            for member in self.membership.members.values()
            if member.group_instance_id is None and member.member_id not in self.membership.joining
        ]
        for member in absent:
            self.note("member did not rejoin", member=member.member_id)
        self._forget(absent)

    def _begin_generation(self) -> None:
        membership = self.membership
        membership.generation += 1
        membership.assignments = {}
        membership.new = frozenset()
        if not membership.members:
            membership.protocol = None
            membership.leader_id = None
            membership.enter(GroupState.EMPTY, self._now_ms)
            self._records.append(group_record(self._group_id, membership))
            return
        membership.protocol = membership.choose_protocol()
        membership.enter(GroupState.COMPLETING_REBALANCE, self._now_ms)
        joining, membership.joining = membership.joining, frozenset()
        for member in membership.members.values():
            if member.member_id in joining:
                self._release(("join", self._group_id, member.member_id), join_response(membership, member))
            self.keep_alive(member)
        timer = Timer(membership.rebalance_timeout_ms(), partial(sync_timed_out, self._group_id), True)
        self._timers[TimerKind.SYNC, self._group_id] = timer

    def assign(self, given: Mapping[str, bytes]) -> None:
        """Store the assignments that the leader has sent, by member id, and release the members that wait for them. A
        member without an entry in ``given`` gets an empty assignment."""
        membership = self.membership
        membership.assignments = {member_id: given.get(member_id, b"") for member_id in membership.members}
        membership.enter(GroupState.STABLE, self._now_ms)
        self._records.append(group_record(self._group_id, membership))
        self._timers[TimerKind.SYNC, self._group_id] = None
        for member in membership.members.values():
            if member.member_id in membership.syncing:
                self.keep_alive(member)
        self.release_syncs(partial(sync_response, membership))
        self._then = self._shard.on_rebalanced
        self._refused = partial(assignment_refused, self._group_id)

    def store_replacement(self) -> None:
        """Store the current membership, after a static member was replaced."""
        self._records.append(group_record(self._group_id, self.membership))


# --- Events ---


def session_expired(group_id: str, member_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member whose session has expired. A member with a waiting request is kept, unless the member is new."""
    membership = shard.membership_of(group_id)
    member = membership.members.get(member_id)
    if member is None:
        return Decision(None)
    is_waiting = member_id in membership.joining or member_id in membership.syncing
    if is_waiting and member_id not in membership.new:
        return Decision(None, timers=session(group_id, member))
    change = MembershipChange(shard, group_id, now_ms)
    change.note("member's session expired", member=member_id)
    change.expel([member], f"member {member_id} sent no heartbeat")
    return change.decision(None)


def pending_expired(group_id: str, member_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Drop a reserved member id with which no client has joined in time."""
    if member_id not in shard.membership_of(group_id).pending:
        return Decision(None)
    change = MembershipChange(shard, group_id, now_ms)
    change.end_pending(member_id)
    change.complete_if_all_joined()
    return change.decision(None)


def initial_delay_over(group_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """End the join phase of a group that was empty, or prolong it if more members have joined."""
    if shard.membership_of(group_id).initial_delay_left_ms is None:
        return Decision(None)
    change = MembershipChange(shard, group_id, now_ms)
    if not change.wait_for_more_members():
        change.complete_join()
    return change.decision(None)


def rebalance_timed_out(group_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """End the join phase without the members that have not joined."""
    if shard.membership_of(group_id).state is not GroupState.PREPARING_REBALANCE:
        return Decision(None)
    change = MembershipChange(shard, group_id, now_ms)
    change.complete_join()
    return change.decision(None)


def sync_timed_out(group_id: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove the members that have not requested their assignment in time, and rebalance the remaining ones."""
    membership = shard.membership_of(group_id)
    missing = [member for member in membership.members.values() if member.member_id not in membership.syncing]
    if membership.state is not GroupState.COMPLETING_REBALANCE or not missing:
        return Decision(None)
    change = MembershipChange(shard, group_id, now_ms)
    change.expel(missing, "members did not request their assignment in time")
    return change.decision(None)


def assignment_refused(group_id: str, shard: GroupShard, now_ms: int, error: KafkaError) -> Decision[None]:
    """Fail the waiting SyncGroups, and rebalance again, because the log has rejected the assignments of this
    generation."""
    change = MembershipChange(shard, group_id, now_ms)
    code = code_for_members(error)
    change.release_syncs(lambda member_id: sync_error(code))
    change.rebalance(f"the assignment could not be stored: {code.name}")
    return change.decision(None)
