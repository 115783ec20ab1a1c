"""The timers of a consumer group's members, and their events: a silent or slow member is removed.

* Each heartbeat restarts a member's *session*.
* A member must revoke partitions within its *rebalance timeout*.
* A member of the classic protocol must rejoin within its rebalance timeout, and then has the same time to request its
  assignment.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache, partial
from typing import Final

from parley.broker.coordinators.decision import Decision, Timer
from parley.broker.coordinators.groups.consumer.consumer_group import ConsumerGroup
from parley.broker.coordinators.groups.consumer.leaving import remove_members
from parley.broker.coordinators.groups.consumer.member import LEFT_FOR_NOW, Member, MemberState
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.timer_kinds import TimerKind

SESSIONS_MAX: Final = 10_000
"""The number of session timers to cache, so that a heartbeat need not create one (about 5 MB)."""

REMEMBERED_IDS_MAX: Final = 128
"""The maximum length of the group id and member id together for which a timer is cached. Clients choose the ids."""

SESSION_MIN_MS: Final = 10
"""The minimum session timeout, even if a stored member specifies a shorter one, which would keep the event loop
busy."""


def session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    """Return the session timer of a member under its key, for ``Decision.timers``. Setting the timer restarts the
    session."""
    is_short = len(group_id) + len(member_id) <= REMEMBERED_IDS_MAX
    return (_remembered_session if is_short else _session)(group_id, member_id, timeout_ms)


def _session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    event = partial(member_expired, group_id, member_id, "member's session expired")
    return {(TimerKind.MEMBER_SESSION, group_id, member_id): Timer(max(timeout_ms, SESSION_MIN_MS), event, True)}


_remembered_session = lru_cache(SESSIONS_MAX)(_session)


def session_of(shard: GroupShard, group_id: str, member: Member) -> Mapping[Hashable, Timer]:
    """Return the session timer of a member of either protocol under its key, for ``Decision.timers``. Setting the timer
    restarts the session."""
    classic = member.details.classic
    timeout_ms = shard.settings(group_id).session_timeout_ms if classic is None else classic.session_timeout_ms
    return session(group_id, member.member_id, timeout_ms)


def rebalance_timer(group_id: str, member: Member) -> Mapping[Hashable, Timer | None]:
    """Return the timer that removes a member if it does not revoke its partitions in time, under its key, for
    ``Decision.timers``. The timer is None, which cancels it, if the member need not revoke any partitions or has left
    temporarily."""
    key = TimerKind.MEMBER_REBALANCE, group_id, member.member_id
    progress = member.progress
    if progress.state is not MemberState.UNREVOKED_PARTITIONS or progress.epoch == LEFT_FOR_NOW:
        return {key: None}
    event = partial(revocation_timed_out, group_id, member.member_id, member.progress.epoch)
    return {key: Timer(max(member.details.rebalance_timeout_ms, SESSION_MIN_MS), event, True)}


def classic_timer(kind: TimerKind, group_id: str, member: Member) -> Mapping[Hashable, Timer]:
    """Return the timer that removes a member of the classic protocol if it does not rejoin (``MEMBER_JOIN``), or
    request its assignment (``MEMBER_SYNC``), within its rebalance timeout. The timer is under its key, for
    ``Decision.timers``."""
    request = "join" if kind is TimerKind.MEMBER_JOIN else "sync"
    event = partial(member_expired, group_id, member.member_id, f"classic member did not {request} in time")
    timeout_ms = max(member.details.rebalance_timeout_ms, SESSION_MIN_MS)
    return {(kind, group_id, member.member_id): Timer(timeout_ms, event, True)}


def timers_of_consumer_protocol(group_id: str, member: Member) -> Mapping[Hashable, Timer | None]:
    """Return the timers to set and cancel when a member of the classic protocol switches to the consumer protocol."""
    timers: dict[Hashable, Timer | None] = dict(rebalance_timer(group_id, member))
    for kind in (TimerKind.MEMBER_JOIN, TimerKind.MEMBER_SYNC):
        timers[kind, group_id, member.member_id] = None
    return timers


def loaded_timers(shard: GroupShard, group: ConsumerGroup) -> dict[Hashable, Timer]:
    """Return the timers of a loaded group: the session of each member, and the rebalance timeout of each member that
    must revoke partitions."""
    timers: dict[Hashable, Timer | None] = {}
    for member in group.members.values():
        timers.update(session_of(shard, group.group_id, member))
        if member.details.classic is None:
            timers.update(rebalance_timer(group.group_id, member))
    return {key: timer for key, timer in timers.items() if timer is not None}


# --- Events ---


def member_expired(group_id: str, member_id: str, reason: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member that has missed a deadline. ``reason`` is logged."""
    group = shard.consumer_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return Decision(None)
    return remove_members(group, [member], None, reason, shard, now_ms)


def revocation_timed_out(group_id: str, member_id: str, epoch: int, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member that has not revoked its partitions in time, unless its epoch is no longer ``epoch``."""
    group = shard.consumer_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None or member.progress.epoch != epoch:
        return Decision(None)
    return remove_members(group, [member], None, "member did not revoke its partitions in time", shard, now_ms)
