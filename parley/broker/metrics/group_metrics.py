"""The metrics of individual groups: their members, committed offsets and lag.

The broker that coordinates the groups computes them at each scrape. Their number is limited, because clients create
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.persister import UNINITIALIZED_OFFSET, UNKNOWN_COUNT
from parley.broker.coordinators.share_state.shard import ShareStateShard
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.broker.metrics.catalogue.coordinators import GroupMemberMetrics
from parley.broker.metrics.registry import Labeled
from parley.broker.replication.partition import Partition
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The values of ``GroupLagMetrics`` and ``ShareLagMetrics`` for one partition. The lag is None if this broker does
    not know it. ``offset`` is the committed offset, or the start offset of a share partition."""

    lag: int | None
    offset: int


def group_members(groups: Iterable[Group], most: int) -> Iterator[Labeled]:
    """Yield the number of members and the epoch of at most ``most`` groups that have members."""
    return islice((each for group in groups for each in _members(group)), most)


def _members(group: Group) -> Iterator[Labeled]:
    consumer, classic = group.consumer or group.share or group.streams, group.membership
    if consumer is None and classic.members:
        numbers = GroupMemberMetrics(members=len(classic.members), epoch=classic.generation)
        yield (group.group_id, group.type), numbers
    elif consumer is not None and consumer.members:
        yield (group.group_id, group.type), GroupMemberMetrics(members=len(consumer.members), epoch=consumer.epoch)


def group_lags(groups: Iterable[Group], end_of: Callable[[str, int], int | None], most: int) -> Iterator[Labeled]:
    """Yield the committed offset and the lag of at most ``most`` partitions of groups. ``end_of`` returns the high
    watermark of a partition, or None if this broker does not know it."""
    return islice((each for group in groups for each in _lags(group, end_of)), most)


def _lags(group: Group, end_of: Callable[[str, int], int | None]) -> Iterator[Labeled]:
    for (topic, partition), committed in group.offsets.items():
        end = end_of(topic, partition)
        lag = None if end is None else max(0, end - committed.offset)
        yield (group.group_id, topic, str(partition)), GroupLag(lag, committed.offset)


def share_group_lags(
    runtime: CoordinatorRuntime[ShareStateShard],
    names: Mapping[UUID, str],
    end_of: Callable[[str, int], int | None],
    most: int,
) -> Iterator[Labeled]:
    """Yield the start offset and the lag of at most ``most`` share partitions that this broker coordinates. ``names``
    are the names of topics by id; ``end_of`` is that of ``group_lags``."""
    states = (each for _, shard in runtime.states() for each in shard.states.items())
    return islice(_share_lags(states, names, end_of), most)


def _share_lags(
    states: Iterable[tuple[SharePartitionKey, StoredState]],
    names: Mapping[UUID, str],
    end_of: Callable[[str, int], int | None],
) -> Iterator[Labeled]:
    for key, state in states:
        name = names.get(key.topic_id)
        if name is None or state.start_offset == UNINITIALIZED_OFFSET:
            continue
        end = end_of(name, key.partition)
        is_known = end is not None and state.delivery_complete_count != UNKNOWN_COUNT
        lag = max(0, end - state.start_offset - state.delivery_complete_count) if is_known and end is not None else None
        yield (key.group_id, name, str(key.partition)), GroupLag(lag, state.start_offset)


def known_end(partitions: Mapping[str, Mapping[int, Partition]], broker_id: int, topic: str, index: int) -> int | None:
    """Return the high watermark of a partition, or None if this broker has no in-sync replica of it, or if the
    replica's high watermark may still lag behind the previous leader's."""
    partition = partitions.get(topic, {}).get(index)
    if partition is None or not partition.is_open or broker_id not in partition.state.isr:
        return None
    if partition.is_leader and not partition.knows_high_watermark:
        return None
    return partition.high_watermark
