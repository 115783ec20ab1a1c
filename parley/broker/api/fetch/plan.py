"""Plans the response for each partition of a fetch. This module does not read the disk, wait, or change anything.

Rules of this module:

* Partitions share the bytes of the response in order. The first partition with records gets at least one batch,
  regardless of the limits (KIP-74).
* In a session, a partition with nothing new for the client is omitted from the response. A follower that lacks only a
  new high watermark gets it with the next records, unless consumers may read from followers.
* A client whose log has diverged from this broker's gets the epoch and offset to truncate to, and no records (KIP-595).
* A consumer that should read from a nearer replica gets that replica's id, and no records (KIP-392). A follower outside
  of the ISR gets no records while its throttle is exhausted (KIP-73).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from parley.broker.api.fetch.dependencies import FetchDependencies
from parley.broker.api.fetch.params import FetchParams
from parley.broker.api.fetch.sessions import FetchTarget
from parley.broker.metadata.image import MetadataImage
from parley.broker.replication import ConsumerView, ReplicaSelector, ReplicaView
from parley.broker.replication.partition import Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH


class Omit(Enum):
    """Reasons to omit a partition of a session from the response."""

    UNCHANGED = "the client knows the high watermark and the log start, and there are no records for it"
    CAN_WAIT = "only the high watermark has moved, which a follower may learn with the next records"


class Read(NamedTuple):
    """A plan to read at most ``max_bytes`` from the client's offset or, with ``min_one_batch``, at least one batch."""

    max_bytes: int
    min_one_batch: bool


class Diverging(NamedTuple):
    """A plan for a client that must truncate its log to ``end_offset`` or earlier before it can fetch. ``epoch`` is the
    largest epoch in this broker's log up to the client's last epoch; it ends at ``end_offset`` (exclusive)."""

    epoch: int
    end_offset: int


class Redirect(NamedTuple):
    """A plan for a consumer that should read from another replica."""

    replica_id: int


class NoRecords(Enum):
    """Reasons why a partition is in the response without records."""

    AT_END = "the client has everything it may see"
    THROTTLED = "the follower has used up its share for now"


Plan = Read | Diverging | Redirect | NoRecords


def check_access(partition: Partition, target: FetchTarget, params: FetchParams) -> None:
    """Raise KafkaError if the client may not fetch the partition from this broker, or uses another leader epoch.

    The errors are those of ``Partition.check_leader`` and ``Partition.check_replica``.
    """
    if params.may_read_follower:
        partition.check_replica(target.leader_epoch)
    else:
        partition.check_leader(target.leader_epoch)


def plan_omission(
    target: FetchTarget, params: FetchParams, *, may_defer: bool, consumers_read_here: bool
) -> Omit | None:
    """Return why a session's response may omit the partition; None if the partition needs ``plan_fetch``.

    ``may_defer`` is False when the fetch must respond. ``consumers_read_here`` is True if consumers may read from
    followers.
    """
    partition = target.partition
    if partition is None or not is_at_end(target, partition, params):
        return None
    log = partition.log
    if target.known_high_watermark == log.high_watermark and target.known_log_start == log.log_start_offset:
        return Omit.UNCHANGED
    if may_defer and can_wait(target, params, consumers_read_here=consumers_read_here):
        return Omit.CAN_WAIT
    return None


def is_at_end(target: FetchTarget, partition: Partition, params: FetchParams) -> bool:
    """Return True if the client may still fetch the partition, and the partition has no new records for it."""
    return (
        target.is_verified
        and partition.is_open
        and (partition.is_leader or params.may_read_follower)
        and target.leader_epoch in (NO_EPOCH, partition.leader_epoch)
        and target.offset == partition.end_visible(params.isolation)
    )


def can_wait(target: FetchTarget, params: FetchParams, *, consumers_read_here: bool) -> bool:
    """Return True if a change other than new records can wait for the next records, or for the end of the fetch.

    Such a change can wait only for a follower, which lacks only a new high watermark or log start. It must not wait if
    the leader has changed, or if consumers may read from followers.
    """
    partition = target.partition
    return (
        params.is_follower
        and not consumers_read_here
        and partition is not None
        and partition.is_leader
        and target.leader_epoch in (NO_EPOCH, partition.leader_epoch)
    )


_AT_END, _THROTTLED = NoRecords.AT_END, NoRecords.THROTTLED  # an attribute of an enum costs more than a global


def plan_fetch(
    target: FetchTarget,
    partition: Partition,
    params: FetchParams,
    dependencies: FetchDependencies,
    taken: int,
    max_bytes: int,
) -> Plan:
    """Return the plan for a partition. Earlier partitions already use ``taken`` bytes of the response's ``max_bytes``.

    Raises KafkaError: OFFSET_OUT_OF_RANGE if the client's last epoch is unknown here, and the errors of
    ``Partition.log``.
    """
    if target.last_fetched_epoch != NO_EPOCH and not target.is_verified:
        epoch, end = partition.log.end_offset_for_epoch(target.last_fetched_epoch)
        if epoch == NO_EPOCH:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < target.last_fetched_epoch or end < target.offset:
            return Diverging(epoch, end)
    if (
        dependencies.selector is not None
        and params.request.rack_id
        and partition.is_leader
        and params.may_read_follower
    ):
        image, now_s = dependencies.metadata.image, params.context.received_at
        replica = preferred_replica(dependencies.selector, image, partition, _consumer(params), target.offset, now_s)
        if replica is not None:
            return Redirect(replica)
    if target.offset == partition.end_visible(params.isolation):
        return _AT_END
    if params.is_follower and _is_throttled(partition, params, dependencies):
        return _THROTTLED
    return allowance(target, taken, max_bytes)


def allowance(target: FetchTarget, taken: int, max_bytes: int) -> Read:
    """Return the limits of one read of a partition. Earlier partitions already use ``taken`` bytes of the response's
    ``max_bytes``."""
    return Read(max(0, min(target.max_bytes, max_bytes - taken)), not taken)


def _is_throttled(partition: Partition, params: FetchParams, dependencies: FetchDependencies) -> bool:
    throttle = dependencies.throttle
    return (
        throttle is not None
        and throttle.is_set
        and params.replica_id not in partition.state.isr
        and throttle.covers(dependencies.metadata.image, partition.topic, partition.index)
        and throttle.wait_s > 0
    )


def _consumer(params: FetchParams) -> ConsumerView:
    context = params.context
    return ConsumerView(
        params.request.rack_id, context.client_id, context.client_host, context.principal, context.listener
    )


def preferred_replica(
    selector: ReplicaSelector,
    image: MetadataImage,
    partition: Partition,
    consumer: ConsumerView,
    offset: int,
    now_s: float,
) -> int | None:
    """Return the follower from which a consumer should read ``offset``; None if it should read from this leader.

    The selector chooses among this leader and the live in-sync followers that have the offset and an address on the
    consumer's listener. ``now_s`` is the time at which the request was received.
    """
    own = image.brokers.get(partition.broker_id)
    rack = own.rack if own is not None else None
    offered = [ReplicaView(partition.broker_id, rack, partition.log.log_end_offset, 0.0, True)]
    for replica, progress in partition.followers.progress.items():
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
    return None if chosen is None or chosen.is_leader else chosen.broker_id
