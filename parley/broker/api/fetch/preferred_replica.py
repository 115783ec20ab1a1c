"""Sending a consumer to a nearer replica (KIP-392)."""

from __future__ import annotations

from parley.broker.metadata.image import MetadataImage
from parley.broker.replication import ConsumerView, ReplicaSelector, ReplicaView
from parley.broker.replication.partition import Partition

NOT_ELSEWHERE = -1


def preferred_replica(
    selector: ReplicaSelector,
    image: MetadataImage,
    partition: Partition,
    consumer: ConsumerView,
    offset: int,
    now_s: float,
) -> int:
    """The follower that a consumer should read ``offset`` from; NOT_ELSEWHERE where it is at the right place.

    Only replicas that are in sync, alive, have the offset and can be reached on the consumer's listener are offered.
    """
    log = partition.log
    own = image.brokers.get(partition.broker_id)
    offered = [ReplicaView(partition.broker_id, own.rack if own is not None else None, log.log_end_offset, 0.0, True)]
    for replica, progress in partition.followers.items():
        broker = image.brokers.get(replica)
        if (
            broker is not None
            and not broker.fenced
            and replica in partition.state.isr
            and progress.log_start_offset <= offset <= progress.log_end_offset
            and broker.endpoint(consumer.listener) is not None
        ):
            behind_s = max(0.0, now_s - progress.last_caught_up_s)
            offered.append(ReplicaView(replica, broker.rack, progress.log_end_offset, behind_s, False))
    chosen = selector.select(partition.topic, partition.index, consumer, offered)
    return NOT_ELSEWHERE if chosen is None or chosen.is_leader else chosen.broker_id
