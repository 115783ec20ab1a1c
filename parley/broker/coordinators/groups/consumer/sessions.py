"""The timers of a consumer group's members, and their events: a member that is silent, or too slow, is removed.

* Its *session* begins again with each heartbeat.
* It has its *rebalance timeout* to give up partitions that it must revoke.
* A member that uses the classic protocol has that time to join again, and then again to ask for its assignment.
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

SESSIONS_MAX: Final = 10_000
"""The most timers of sessions that are remembered, so that a heartbeat need not make one (about 5 MB)."""

REMEMBERED_IDS_MAX: Final = 128
"""The longest ids, of the group and the member together, whose timers are remembered: clients choose them."""

SESSION_MIN_MS: Final = 10
"""The shortest session, whatever a stored member says: a shorter one would keep the loop busy."""


def session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    """Return the timer of a member's session, as it begins again."""
    is_short = len(group_id) + len(member_id) <= REMEMBERED_IDS_MAX
    return (_remembered_session if is_short else _session)(group_id, member_id, timeout_ms)


def _session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    event = partial(member_expired, group_id, member_id, "member's session expired")
    return {("member-session", group_id, member_id): Timer(max(timeout_ms, SESSION_MIN_MS), event, True)}


_remembered_session = lru_cache(SESSIONS_MAX)(_session)


def session_of(shard: GroupShard, group_id: str, member: Member) -> Mapping[Hashable, Timer]:
    """Return the timer of a member's session, whichever protocol it uses."""
    classic = member.details.classic
    timeout_ms = shard.settings(group_id).session_timeout_ms if classic is None else classic.session_timeout_ms
    return session(group_id, member.member_id, timeout_ms)


def rebalance_timer(group_id: str, member: Member) -> Mapping[Hashable, Timer | None]:
    """Return the timer of a member that has to revoke partitions; its cancellation if it has none, or has left."""
    key = "member-rebalance", group_id, member.member_id
    progress = member.progress
    if progress.state is not MemberState.UNREVOKED_PARTITIONS or progress.epoch == LEFT_FOR_NOW:
        return {key: None}
    event = partial(revocation_timed_out, group_id, member.member_id, member.progress.epoch)
    return {key: Timer(max(member.details.rebalance_timeout_ms, SESSION_MIN_MS), event, True)}


def classic_timer(kind: str, group_id: str, member: Member) -> Mapping[Hashable, Timer]:
    """Return the timer of a member of the classic protocol that has to join again, or to ask for its assignment."""
    event = partial(member_expired, group_id, member.member_id, f"classic member did not {kind} in time")
    timeout_ms = max(member.details.rebalance_timeout_ms, SESSION_MIN_MS)
    return {(f"member-{kind}", group_id, member.member_id): Timer(timeout_ms, event, True)}


def timers_of_consumer_protocol(group_id: str, member: Member) -> Mapping[Hashable, Timer | None]:
    """Return what changes when a member of the classic protocol goes on with the consumer protocol."""
    timers: dict[Hashable, Timer | None] = dict(rebalance_timer(group_id, member))
    for kind in ("member-join", "member-sync"):
        timers[kind, group_id, member.member_id] = None
    return timers


def loaded_timers(shard: GroupShard, group: ConsumerGroup) -> dict[Hashable, Timer]:
    """Return the timers of a group that was loaded: each member has a whole session."""
    timers: dict[Hashable, Timer | None] = {}
    for member in group.members.values():
        timers.update(session_of(shard, group.group_id, member))
        if member.details.classic is None:
            timers.update(rebalance_timer(group.group_id, member))
    return {key: timer for key, timer in timers.items() if timer is not None}


# --- Events ---


def member_expired(group_id: str, member_id: str, reason: str, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member that was silent for too long."""
    group = shard.consumer_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None:
        return Decision(None)
    return remove_members(group, [member], None, reason, shard, now_ms)


def revocation_timed_out(group_id: str, member_id: str, epoch: int, shard: GroupShard, now_ms: int) -> Decision[None]:
    """Remove a member that has not given up its partitions in time. It may have left the epoch meanwhile."""
    group = shard.consumer_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None or member.progress.epoch != epoch:
        return Decision(None)
    return remove_members(group, [member], None, "member did not revoke its partitions in time", shard, now_ms)
