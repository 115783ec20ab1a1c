"""The conditions of a rolling restart: all replicas of this broker are in sync, and no partition would have fewer
in-sync replicas than ``min.insync.replicas`` if the broker stopped.

The pages ``/insyncz`` and ``/stopz`` of ``metrics.listener`` show them. Both use only the metadata of the broker that
serves them, so they need no login and no request to another broker.
"""

from __future__ import annotations

from collections.abc import Iterable

from parley.broker.replication.partition import Partition


def out_of_sync(partitions: Iterable[Partition], broker_id: int) -> list[str]:
    """Return the replicas of this broker that are not in the ISR, as ``topic-partition``.

    Replicas that a reassignment is adding do not count, because adding them may take hours.
    """
    return [
        _name(each) for each in partitions if broker_id not in each.state.isr and broker_id not in each.state.adding
    ]


def needed(partitions: Iterable[Partition], broker_id: int) -> list[str]:
    """Return the partitions, as ``topic-partition``, whose ISR would be smaller than ``min.insync.replicas`` if this
    broker stopped now.

    A partition whose ISR would be too small even if all its replicas were in sync does not count: waiting would not
    help.
    """
    return [_name(each) for each in partitions if each.is_open and _is_needed(each, broker_id)]


def _is_needed(partition: Partition, broker_id: int) -> bool:
    state, wanted = partition.state, partition.min_in_sync
    return broker_id in state.isr and len(state.isr) == wanted < len(state.replicas)


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.index}"
