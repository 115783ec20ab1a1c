"""The timers of a loaded group, which restart the session of every member."""

from __future__ import annotations

from collections.abc import Hashable

from parley.broker.coordinators.decision import Timer
from parley.broker.coordinators.groups.classic.rebalance import session
from parley.broker.coordinators.groups.consumer.sessions import loaded_timers
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.share import heartbeats
from parley.broker.coordinators.groups.streams import heartbeats as streams_heartbeats


def begin_sessions(shard: GroupShard, group: Group) -> dict[Hashable, Timer]:
    """Return the timers of the members of a loaded group."""
    if group.consumer is not None:
        return loaded_timers(shard, group.consumer)
    if group.share is not None:
        return heartbeats.loaded_timers(shard, group.share)
    if group.streams is not None:
        return streams_heartbeats.loaded_timers(shard, group.streams)
    timers: dict[Hashable, Timer] = {}
    for member in group.membership.members.values():
        timers.update(session(group.group_id, member))
    return timers
