"""Periodic work of the share coordinator, which keeps the log of a shard from growing without limit.

Records before the oldest snapshot that is still needed are superseded, and deleted. A share partition that has not
changed for ``share.coordinator.cold.partition.snapshot.interval.ms`` is stored again. Otherwise, its old snapshot would
prevent the deletion of all later records. If no share partition has changed, the log has not grown, and none is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.share_state.records import snapshot_record, tombstone
from parley.broker.coordinators.share_state.shard import ShareStateShard

PRUNE: Final = "prune"
STORE_COLD: Final = "store-cold"
FORGET_DELETED: Final = "forget-deleted"
"""The keys of the timers of the periodic events."""


def prune(shard: ShareStateShard, now_ms: int) -> Decision[None]:
    """Delete superseded records, and set the timer again."""
    interval_ms = shard.config().share_coordinator_state_topic_prune_interval_ms
    timers: dict[Hashable, Timer | None] = {PRUNE: Timer(interval_ms, prune)}
    before = shard.superseded_before
    if before <= 0:
        return Decision(None, timers=timers)
    return Decision(None, timers=timers, then=partial(shard.delete_before, shard.partition, before))


def store_cold(shard: ShareStateShard, now_ms: int) -> Decision[None]:
    """Store all share partitions again that have not changed for the configured interval, and set the timer again.

    Stores nothing if the last snapshot of every share partition already repeats an earlier one.
    """
    interval_ms = shard.config().share_coordinator_cold_partition_snapshot_interval_ms
    timers: dict[Hashable, Timer | None] = {STORE_COLD: Timer(interval_ms, store_cold)}
    if all(state.created_ms != state.written_ms for state in shard.states.values()):
        return Decision(None, timers=timers)
    records: list[KeyValue] = [
        snapshot_record(key, replace(state, snapshot_epoch=state.snapshot_epoch + 1, written_ms=now_ms))
        for key, state in shard.states.items()
        if now_ms - state.written_ms >= interval_ms
    ]
    return Decision(None, records, is_divisible=True, timers=timers)


def forget_deleted(shard: ShareStateShard, now_ms: int) -> Decision[None]:
    """Delete the share partitions of topics that no longer exist."""
    names = shard.image().topic_names
    records: list[KeyValue] = [tombstone(key) for key in shard.states if key.topic_id not in names]
    return Decision(None, records, is_divisible=True)


PERIODIC: Final[Mapping[str, Callable[[ShareStateShard, int], Decision[None]]]] = MappingProxyType(
    {PRUNE: prune, STORE_COLD: store_cold, FORGET_DELETED: forget_deleted}
)
"""The events that start when a shard is loaded. Topics may have been deleted while no broker coordinated the shard."""
