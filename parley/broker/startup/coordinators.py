"""The coordinators of a broker: groups, transactions and the state of share groups, each with its internal topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

from parley.broker.api.transactional.markers import TransactionMarkers
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.coordinators.groups.consumer.assignors.registry import load_assignors
from parley.broker.coordinators.groups.coordinator import ConsumerGroupsNeed, GroupCoordinator, ShareGroupsNeed
from parley.broker.coordinators.groups.share.latest_offsets import LatestOffsets
from parley.broker.coordinators.internal_topic import InternalTopic
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.coordinator import ShareCoordinator, make_runtime
from parley.broker.coordinators.share_state.coordinator_persister import CoordinatorPersister
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator, make_shard
from parley.broker.coordinators.transactions.marker_sender import MarkerSender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.request_context import RequestContext
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType as Securable
from parley.broker.share.settings import CurrentShareSettings
from parley.broker.share.share_partitions import SharePartitions
from parley.broker.startup.environment import Environment
from parley.broker.startup.foundation import Foundation
from parley.broker.startup.store import Joined
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.sentinels import NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinators:
    """The coordinators, and the parts that they share with the leaders of partitions."""

    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_state: ShareCoordinator
    persister: CoordinatorPersister
    """Reads and writes the state of share partitions through their share coordinators, on this or another broker."""
    share_partitions: SharePartitions
    create_internal_topic: LateCreation
    producer_ids: ProducerIds
    verifications: Verifications
    """Verifications of the partitions that producers use in their transactions."""
    markers: TransactionMarkers


def make_coordinators(
    environment: Environment, joined: Joined, base: Foundation, lifecycle: BrokerLifecycle
) -> Coordinators:
    """Create the coordinators. A coordinator starts serving when the metadata shows that this broker leads a partition
    of its topic."""
    wall_ms = environment.clock.wall_ms
    producer_ids = ProducerIds(lambda: lifecycle.store, joined.epochs)
    verifications, creation = Verifications(), LateCreation()
    share_state = _share_coordinator(environment, base)
    ask = partial(base.peers.ask, purpose="share state")
    persister = CoordinatorPersister(base.broker_id, base.metadata, share_state, ask, creation, environment.tasks)
    groups = _group_coordinator(environment, base, persister)
    markers = TransactionMarkers(
        base.partitions,
        base.purgatories.produce,
        verifications,
        groups.append_marker,
        wall_ms=wall_ms,
        monotonic=environment.clock.monotonic,
        timeout_s=environment.config.request_timeout_ms / 1000,
        threads=environment.threads,
    )
    return Coordinators(
        groups=groups,
        transactions=_transaction_coordinator(environment, base, markers, producer_ids, lifecycle),
        share_state=share_state,
        persister=persister,
        share_partitions=SharePartitions(
            persister,
            CurrentShareSettings(base.config, lambda: base.metadata.image),
            base.purgatories.fetch,
            environment.tasks,
            wall_ms=wall_ms,
            threads=environment.threads,
        ),
        create_internal_topic=creation,
        producer_ids=producer_ids,
        verifications=verifications,
        markers=markers,
    )


def _group_coordinator(environment: Environment, base: Foundation, persister: CoordinatorPersister) -> GroupCoordinator:
    wall_ms, metadata, partitions = environment.clock.wall_ms, base.metadata, base.partitions
    topic = InternalTopic(OFFSETS_TOPIC, partitions, base.purgatories.produce, wall_ms)
    partition_count = partial(_partition_count, metadata, OFFSETS_TOPIC)

    def visible(context: RequestContext, names: Iterable[str]) -> set[str]:
        return base.authorization.allowed(context, Operation.DESCRIBE, Securable.TOPIC, names, is_probe=True)

    need = ConsumerGroupsNeed(
        image=lambda: metadata.image,
        assignors=load_assignors(environment.config.group_consumer_assignors),
        visible=visible,
        executor=environment.threads.groups,
    )
    share_need = ShareGroupsNeed(persister, LatestOffsets(base.broker_id, partitions, metadata, base.peers).of)
    return GroupCoordinator(
        base.config, topic, partition_count, wall_ms, environment.tasks, environment.rng, need, share_need
    )


def _transaction_coordinator(
    environment: Environment,
    base: Foundation,
    markers: TransactionMarkers,
    producer_ids: ProducerIds,
    lifecycle: BrokerLifecycle,
) -> TransactionCoordinator:
    wall_ms, config, metadata = environment.clock.wall_ms, base.config, base.metadata

    def write_markers(broker: int, request: WriteTxnMarkersRequest) -> Awaitable[WriteTxnMarkersResponse]:
        return (
            markers.write(request) if broker == base.broker_id else base.peers.ask(broker, request, purpose="markers")
        )

    sender = MarkerSender(base.broker_id, metadata, write_markers, environment.tasks)
    topic = InternalTopic(TRANSACTIONS_TOPIC, base.partitions, base.purgatories.produce, wall_ms)

    def empty_shard(partition: int) -> TransactionShard:
        leader_epoch = _leader_epoch(metadata, TRANSACTIONS_TOPIC, partition)
        return make_shard(config, partial(topic.batch_bytes_max, partition), sender, partition, leader_epoch)

    runtime = CoordinatorRuntime(
        topic,
        empty_shard,
        partial(_partition_count, metadata, TRANSACTIONS_TOPIC),
        now_ms=wall_ms,
        timeout_ms=lambda: config().request_timeout_ms,
        tasks=environment.tasks,
    )
    return TransactionCoordinator(
        runtime, sender, producer_ids, config, may_be_superseded=lambda: lifecycle.may_be_superseded
    )


def _share_coordinator(environment: Environment, base: Foundation) -> ShareCoordinator:
    wall_ms, metadata, partitions = environment.clock.wall_ms, base.metadata, base.partitions

    def delete_before(partition: int, offset: int) -> None:
        """Delete superseded records. If a deletion fails, the next pruning also deletes these records."""
        with suppress(KafkaError):
            replica = partitions.find(SHARE_STATE_TOPIC, partition)
            replica.check_leader()
            if replica.log.log_start_offset < offset <= replica.high_watermark:
                replica.delete_before(offset)

    runtime = make_runtime(
        InternalTopic(SHARE_STATE_TOPIC, partitions, base.purgatories.produce, wall_ms),
        base.config,
        lambda: metadata.image,
        partial(_partition_count, metadata, SHARE_STATE_TOPIC),
        delete_before,
        now_ms=wall_ms,
        tasks=environment.tasks,
    )
    return ShareCoordinator(runtime, lambda: metadata.image)


def _partition_count(metadata: Metadata, topic: str) -> int:
    found = metadata.image.topics.get(topic)
    return 0 if found is None else len(found.partitions)


def _leader_epoch(metadata: Metadata, topic: str, index: int) -> int:
    state = metadata.image.partition(topic, index)
    return NO_EPOCH if state is None else state.leader_epoch


class LateCreation:
    """A function that creates the topics of coordinators. It calls ``create``, which is set together with the request
    handlers."""

    def __init__(self) -> None:
        self.create: Callable[[str], Awaitable[None]] | None = None

    async def __call__(self, name: str) -> None:
        """Create a topic unless it exists. Raises KafkaError: COORDINATOR_NOT_AVAILABLE while the broker is starting,
        and the errors of ``create``."""
        if self.create is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The broker is starting.")
        await self.create(name)
