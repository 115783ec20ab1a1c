"""Fourth phase of a start: make the parts of the broker and connect them.

The order of the subscriptions to the metadata matters: a part is called after the parts that it uses. ``_connect``
defines the order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.transactional.markers import TransactionMarkers
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.config import BrokerConfig, TopicConfig, log_config
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.delegation_tokens import remove_expired_periodically
from parley.broker.controller.election_rules import ElectionRules, RecoveryStrategy, RulesOf
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.controller.periodic_elections import rebalance_leaders_periodically, reconcile_leaders_periodically
from parley.broker.controller.report_requests import ReportRequests
from parley.broker.controller.unclean_recovery import UncleanRecovery
from parley.broker.coordinators.groups.consumer.assignors.registry import load_assignors
from parley.broker.coordinators.groups.coordinator import ConsumerGroupsNeed, GroupCoordinator, ShareGroupsNeed
from parley.broker.coordinators.groups.share.latest_offsets import LatestOffsets
from parley.broker.coordinators.internal_topic import InternalTopic
from parley.broker.coordinators.internal_topic_subscriber import InternalTopicSubscriber
from parley.broker.coordinators.producer_ids import PRODUCER_IDS, ProducerIds, highest_producer_id
from parley.broker.coordinators.runtime import CoordinatorRuntime
from parley.broker.coordinators.share_state.coordinator import ShareCoordinator, make_runtime
from parley.broker.coordinators.share_state.remote import SharePersister
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator, make_shard
from parley.broker.coordinators.transactions.marker_sender import MarkerSender
from parley.broker.coordinators.transactions.shard import TransactionShard
from parley.broker.membership.identity import BROKER_IDS, Identity
from parley.broker.membership.known_epochs import KnownEpochs
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.features import SUPPORTED_FEATURES
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.metadata.types import BrokerRegistration, ResourceType
from parley.broker.network.configured_limits import limits_of
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.dispatch import RequestContext
from parley.broker.network.load import Load
from parley.broker.network.peers import Peers
from parley.broker.quotas.callback import load_callback
from parley.broker.quotas.connection_rates import ConnectionRates
from parley.broker.quotas.enforcement import QuotaEnforcement
from parley.broker.quotas.rates import Windows
from parley.broker.replication.fetcher_assignment import ReplicaFetchers
from parley.broker.replication.healing import Healing
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_maintenance import IsrMaintenance
from parley.broker.replication.offline_replicas import OfflineReplicas
from parley.broker.replication.partition import Purgatories
from parley.broker.replication.replica_directories import ReplicaDirectories
from parley.broker.replication.replica_reports import ReplicaReports
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.threads import COMPACTION
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AclAuthorizer, load_authorizer_of
from parley.broker.security.broker_listeners import BrokerListeners
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.broker.security.operations import Operation
from parley.broker.security.resources import ResourceType as Securable
from parley.broker.security.stored_credentials import StoredCredentials
from parley.broker.share.settings import share_settings
from parley.broker.share.share_partitions import SharePartitions
from parley.broker.startup.binding import Bound
from parley.broker.startup.environment import Environment
from parley.broker.startup.logs import OpenedLogs
from parley.broker.startup.store import Joined
from parley.broker.store_move.driver import StoreMoveDriver
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.cleaner_worker import ProcessWorker, ThreadWorker
from parley.storage.log_cleaner import CleanerSettings, LogCleaner
from parley.storage.log_config import LogConfig
from parley.storage.log_manager import LogManager
from parley.storage.scrubber import Scrubber, ScrubSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one broker, except for its network side (``parley.broker.startup.serving``)."""

    identity: Identity
    authorization: Authorization
    broker_listeners: BrokerListeners
    store_move: StoreMoveParticipant
    store_move_driver: StoreMoveDriver
    logs: LogManager
    metadata: Metadata
    config: DynamicConfig
    rules: RulesOf
    recovery: UncleanRecovery
    purgatories: Purgatories
    partitions: HostedPartitions
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_state: ShareCoordinator
    persister: SharePersister
    """The state of share partitions, wherever it is stored."""
    share_partitions: SharePartitions
    create_internal_topic: LateCreation
    """Creates topics of coordinators; set when the handlers are made."""
    credentials: StoredCredentials
    connection_quotas: ConnectionQuotas
    quotas: QuotaEnforcement
    load: Load
    peers: Peers
    metadata_fetches: Purgatory
    """FetchMetadata requests that wait for a change."""
    publisher: MetadataPublisher
    lifecycle: BrokerLifecycle
    fetchers: ReplicaFetchers
    offline_replicas: OfflineReplicas
    replica_directories: ReplicaDirectories
    replica_reports: ReplicaReports
    isr: IsrMaintenance
    healing: Healing
    scrubber: Scrubber
    log_cleaner: LogCleaner
    sessions: FetchSessions
    producer_ids: ProducerIds
    verifications: Verifications
    """Of partitions that producers use in their transactions."""
    markers: TransactionMarkers


def compose(environment: Environment, bound: Bound, joined: Joined, opened: OpenedLogs) -> Parts:
    """Make the parts and subscribe each of them to what it follows."""
    environment.health.starting("putting its parts together")
    broker_id, static, clock = joined.identity.broker_id, environment.config, environment.clock
    metadata = Metadata(_first_image(joined))
    config = DynamicConfig(broker_id, static)
    purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
    partitions = _hosted_partitions(environment, joined, opened, config, purgatories)
    limits = limits_of(static)
    peers = Peers(
        broker_id,
        metadata,
        static.inter_broker_listener,
        InterBrokerSecurity(config),
        timeout_s=static.request_timeout_ms / 1000,
        connect_timeout_s=static.socket_connection_setup_timeout_ms / 1000,
    )
    broker_listeners = BrokerListeners(static.inter_broker_listener, metadata)
    metadata_fetches = Purgatory()
    publisher = MetadataPublisher(metadata, metadata_fetches)
    joined.epochs.note(KnownEpochs(producer_ids_end=1 + highest_producer_id(opened.manager.logs)))
    rules = _election_rules(config)
    reports = ReportRequests(metadata, peers, static.inter_broker_listener)
    recovery = UncleanRecovery(metadata, reports, rules)
    lifecycle = _lifecycle(environment, bound, joined, opened, config, metadata, publisher, peers, rules, recovery)

    def broker_epoch() -> int:
        return lifecycle.broker_epoch

    producer_ids = ProducerIds(lambda: lifecycle.store, joined.epochs)
    verifications = Verifications()
    authorization = authorization_of(static, clock.monotonic, broker_listeners)
    share_state = _share_coordinator(environment, config, metadata, partitions, purgatories)
    creation = LateCreation()
    ask_share_state = partial(peers.ask, purpose="share state")
    persister = SharePersister(broker_id, metadata, share_state, ask_share_state, creation, environment.tasks)
    share_need = ShareGroupsNeed(persister, LatestOffsets(broker_id, partitions, metadata, peers).of)
    groups = _group_coordinator(environment, config, metadata, partitions, purgatories, authorization, share_need)
    markers = TransactionMarkers(
        partitions,
        purgatories.produce,
        verifications,
        groups.append_marker,
        wall_ms=clock.wall_ms,
        timeout_s=static.request_timeout_ms / 1000,
        threads=environment.threads,
    )
    # What these two ask of the controller, they ask again: a lost response must not hold them up for longer.
    ask_controller = partial(peers.ask_controller, timeout_s=static.session_timeout_ms / 1000)
    quotas = _quotas(environment, authorization)
    parts = Parts(
        identity=joined.identity,
        authorization=authorization,
        broker_listeners=broker_listeners,
        store_move=joined.store_move,
        store_move_driver=joined.store_move_driver,
        logs=opened.manager,
        metadata=metadata,
        config=config,
        rules=rules,
        recovery=recovery,
        purgatories=purgatories,
        partitions=partitions,
        groups=groups,
        transactions=_transaction_coordinator(
            environment, broker_id, config, metadata, partitions, purgatories, peers, markers, producer_ids, lifecycle
        ),
        share_state=share_state,
        persister=persister,
        share_partitions=SharePartitions(
            persister,
            lambda group_id: share_settings(config(), metadata.image, group_id),
            purgatories.fetch,
            environment.tasks,
            wall_ms=clock.wall_ms,
            threads=environment.threads,
        ),
        create_internal_topic=creation,
        credentials=StoredCredentials(metadata, static, clock.wall_ms),
        connection_quotas=ConnectionQuotas(limits, static.inter_broker_listener, connection_rates(static, quotas)),
        quotas=quotas,
        load=Load(limits.queued_requests, limits.queued_bytes),
        peers=peers,
        metadata_fetches=metadata_fetches,
        publisher=publisher,
        lifecycle=lifecycle,
        fetchers=ReplicaFetchers(
            broker_id, partitions, peers, config, environment.tasks, epoch=broker_epoch, rng=environment.rng
        ),
        offline_replicas=OfflineReplicas(broker_id, partitions, ask_controller, epoch=broker_epoch),
        replica_directories=ReplicaDirectories(
            broker_id, opened.manager, partitions, ask_controller, epoch=broker_epoch
        ),
        replica_reports=ReplicaReports(
            broker_id, opened.manager, partitions, lifecycle.incarnation_id, lambda: lifecycle.registered_epoch
        ),
        isr=IsrMaintenance(
            broker_id,
            partitions,
            ask_controller,
            config,
            environment.tasks,
            epoch=broker_epoch,
            monotonic=clock.monotonic,
        ),
        healing=Healing(
            broker_id,
            partitions,
            opened.manager,
            metadata,
            peers,
            config,
            peers.ask_controller,
            environment.tasks,
            epoch=broker_epoch,
            monotonic=clock.monotonic,
        ),
        scrubber=Scrubber(
            opened.manager,
            opened.manager.directories,
            lambda: _scrub_settings(config()),
            now_ms=clock.wall_ms,
            monotonic=clock.monotonic,
        ),
        log_cleaner=_log_cleaner(environment, opened, config),
        sessions=FetchSessions(static.max_incremental_fetch_session_cache_slots, environment.rng, clock.monotonic),
        producer_ids=producer_ids,
        verifications=verifications,
        markers=markers,
    )
    opened.manager.broker_epoch = lambda: lifecycle.clean_epoch
    opened.failures.report_logs_to(partitions.lose_logs)
    opened.manager.was_deleted = partitions.was_deleted
    opened.manager.compaction_paused = parts.log_cleaner.paused
    _connect(
        parts,
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.groups.runtime),
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.transactions.runtime),
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.share_state.runtime),
    )
    return parts


def _connect(
    parts: Parts,
    offsets_topic: InternalTopicSubscriber,
    transactions_topic: InternalTopicSubscriber,
    share_state_topic: InternalTopicSubscriber,
) -> None:
    """Subscribe the parts to the metadata, the configuration and the hosted partitions."""
    for subscriber in (
        parts.config.apply,
        parts.partitions.apply,
        offsets_topic.apply,
        parts.groups.apply,
        transactions_topic.apply,
        share_state_topic.apply,
        parts.share_state.apply,
        parts.publisher.apply,
        parts.lifecycle.apply,
        parts.fetchers.apply,
        parts.offline_replicas.apply,
        parts.healing.apply,
        parts.replica_reports.apply,
        parts.replica_directories.apply,
        parts.recovery.apply,
    ):
        parts.metadata.subscribe(subscriber)
    authorizer = parts.authorization.authorizer
    if isinstance(authorizer, AclAuthorizer):
        parts.metadata.subscribe(authorizer.apply)
    parts.metadata.subscribe(parts.quotas.apply)
    parts.config.subscribe(lambda config: limit_connections(parts.connection_quotas, config))
    parts.config.subscribe(parts.fetchers.reconfigure)
    parts.partitions.call_when_opened(parts.fetchers.assign)
    parts.partitions.call_when_opened(parts.replica_directories.check)
    parts.partitions.call_when_opened(parts.healing.watch)
    parts.partitions.call_when_lost(parts.offline_replicas.report)
    parts.partitions.set_isr_policy(parts.isr)


def authorization_of(
    config: BrokerConfig, monotonic: Callable[[], float], broker_listeners: BrokerListeners
) -> Authorization:
    """Return the authorization that the configuration asks for. Raises ConfigError if its class cannot be loaded."""
    return Authorization(load_authorizer_of(config), AuditLog(monotonic), broker_listeners=broker_listeners)


def _quotas(environment: Environment, authorization: Authorization) -> QuotaEnforcement:
    """Return the quotas of clients, none yet. Raises ConfigError if the operator's callback cannot be loaded."""
    config = environment.config
    callback = load_callback(config.client_quota_callback_class or "", config.given)
    if callback is not None:
        environment.undo.callback(callback.close)
    return QuotaEnforcement(
        authorization,
        windows=Windows(config.quota_window_num, config.quota_window_size_seconds),
        controller_windows=Windows(config.controller_quota_window_num, config.controller_quota_window_size_seconds),
        monotonic=environment.clock.monotonic,
        callback=callback,
    )


def connection_rates(config: BrokerConfig, quotas: QuotaEnforcement) -> ConnectionRates:
    """Return the rates at which addresses open connections."""
    windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
    return ConnectionRates(windows, lambda host: quotas.quotas.connection_rate(host))


def limit_connections(quotas: ConnectionQuotas, config: BrokerConfig) -> None:
    """Apply the connection limits of a changed configuration."""
    quotas.limits = limits_of(config)


def _scrub_settings(config: BrokerConfig) -> ScrubSettings:
    return ScrubSettings(config.log_scrub_interval_ms, config.log_scrub_max_bytes_per_second)


def _log_cleaner(environment: Environment, opened: OpenedLogs, config: DynamicConfig) -> LogCleaner:
    """Compact in processes of their own, unless the broker shares its process with another program."""
    clock = environment.clock
    return LogCleaner(
        opened.manager,
        lambda: cleaner_settings(config()),
        ProcessWorker if environment.owns_process else lambda: ThreadWorker(clock.monotonic),
        environment.tasks.start,
        environment.threads.compaction,
        now_ms=clock.wall_ms,
        monotonic=clock.monotonic,
    )


def cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    """The settings of the log cleaner."""
    return CleanerSettings(
        # A compaction that waited for a thread could not be stopped before one is free.
        threads=min(config.log_cleaner_threads, COMPACTION) if config.log_cleaner_enable else 0,
        map_bytes=config.log_cleaner_dedupe_buffer_size,
        map_load_factor=config.log_cleaner_io_buffer_load_factor,
        bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def _election_rules(config: DynamicConfig) -> RulesOf:
    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        settings = TopicConfig(config(), image.config(ResourceType.TOPIC, topic))
        strategy = RecoveryStrategy(settings.unclean_recovery_strategy)
        if settings.unclean_leader_election_enable:
            strategy = RecoveryStrategy.AGGRESSIVE
        return ElectionRules(settings.min_insync_replicas, strategy)

    return rules


def _hosted_partitions(
    environment: Environment, joined: Joined, opened: OpenedLogs, config: DynamicConfig, purgatories: Purgatories
) -> HostedPartitions:
    def config_of(image: MetadataImage, topic: str) -> LogConfig:
        return log_config(config(), image.config(ResourceType.TOPIC, topic))

    return HostedPartitions(
        joined.identity.broker_id, opened.manager, config_of, purgatories, environment.tasks, environment.metrics
    )


def _group_coordinator(
    environment: Environment,
    config: DynamicConfig,
    metadata: Metadata,
    partitions: HostedPartitions,
    purgatories: Purgatories,
    authorization: Authorization,
    share_need: ShareGroupsNeed,
) -> GroupCoordinator:
    wall_ms = environment.clock.wall_ms
    topic = InternalTopic(OFFSETS_TOPIC, partitions, purgatories.produce, wall_ms)
    partition_count = partial(_partition_count, metadata, OFFSETS_TOPIC)

    def visible(context: RequestContext, names: Iterable[str]) -> set[str]:
        return authorization.allowed(context, Operation.DESCRIBE, Securable.TOPIC, names, is_probe=True)

    need = ConsumerGroupsNeed(
        image=lambda: metadata.image,
        assignors=load_assignors(environment.config.group_consumer_assignors),
        visible=visible,
        executor=environment.threads.groups,
    )
    return GroupCoordinator(
        config, topic, partition_count, wall_ms, environment.tasks, environment.rng, need, share_need
    )


def _transaction_coordinator(
    environment: Environment,
    broker_id: int,
    config: DynamicConfig,
    metadata: Metadata,
    partitions: HostedPartitions,
    purgatories: Purgatories,
    peers: Peers,
    markers: TransactionMarkers,
    producer_ids: ProducerIds,
    lifecycle: BrokerLifecycle,
) -> TransactionCoordinator:
    wall_ms = environment.clock.wall_ms

    def write_markers(broker: int, request: WriteTxnMarkersRequest) -> Awaitable[WriteTxnMarkersResponse]:
        return markers.write(request) if broker == broker_id else peers.ask(broker, request, purpose="markers")

    sender = MarkerSender(broker_id, metadata, write_markers, environment.tasks)
    topic = InternalTopic(TRANSACTIONS_TOPIC, partitions, purgatories.produce, wall_ms)

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


class LateCreation:
    """Creates topics of coordinators. The part that does it is made last, with the request handlers."""

    def __init__(self) -> None:
        self.create: Callable[[str], Awaitable[None]] | None = None

    async def __call__(self, name: str) -> None:
        """Create a topic unless it exists. Raises COORDINATOR_NOT_AVAILABLE if it cannot be created now."""
        if self.create is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The broker starts.")
        await self.create(name)


def _share_coordinator(
    environment: Environment,
    config: DynamicConfig,
    metadata: Metadata,
    partitions: HostedPartitions,
    purgatories: Purgatories,
) -> ShareCoordinator:
    wall_ms = environment.clock.wall_ms

    def delete_before(partition: int, offset: int) -> None:
        """Delete superseded records. The next pruning makes up for one that fails."""
        with suppress(KafkaError):
            replica = partitions.find(SHARE_STATE_TOPIC, partition)
            replica.check_leader()
            if replica.log.log_start_offset < offset <= replica.high_watermark:
                replica.delete_before(offset)

    runtime = make_runtime(
        InternalTopic(SHARE_STATE_TOPIC, partitions, purgatories.produce, wall_ms),
        config,
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


def _lifecycle(
    environment: Environment,
    bound: Bound,
    joined: Joined,
    opened: OpenedLogs,
    config: DynamicConfig,
    metadata: Metadata,
    publisher: MetadataPublisher,
    peers: Peers,
    rules: RulesOf,
    recovery: UncleanRecovery,
) -> BrokerLifecycle:
    static, rng = environment.config, environment.rng
    return BrokerLifecycle(
        joined.store_move,
        joined.store_move_driver,
        BrokerRegistration(
            broker_id=joined.identity.broker_id,
            epoch=0,
            incarnation_id=UUID(int=rng.getrandbits(128), version=4),
            endpoints=bound.endpoints,
            rack=static.broker_rack,
            features=SUPPORTED_FEATURES,
            previous_epoch=opened.manager.previous_broker_epoch,
            kept_epoch=joined.epochs.known.broker_epoch,
            log_dirs=opened.manager.online_ids(),
            inter_broker_listener=static.inter_broker_listener,
        ),
        metadata,
        publisher,
        peers,
        listener=static.inter_broker_listener,
        session_ttl_ms=static.session_timeout_ms,
        heartbeat_ms=static.broker_heartbeat_interval_ms,
        epochs=joined.epochs,
        ids_in_use=lambda: _ids_in_use(static, joined),
        rules=rules,
        recovery=recovery,
        duties=(
            lambda controller: rebalance_leaders_periodically(controller, config, rules),
            lambda controller: reconcile_leaders_periodically(controller, config, rules),
            lambda controller: remove_expired_periodically(controller, config, environment.clock.wall_ms),
            recovery.run,
        ),
        monotonic=environment.clock.monotonic,
        rng=rng,
    )


def _first_image(joined: Joined) -> MetadataImage:
    """Return an empty image that comes before the next one, and after any of an earlier controller.

    This broker then refuses controllers below the epoch that it has seen before, and takes office only above it.
    """
    seen = joined.epochs.known.metadata
    image = MetadataImage(joined.identity.cluster_id)
    return image if seen == NO_TERM else replace(image, controller_epoch=seen.epoch, version=-1)


def _ids_in_use(config: BrokerConfig, joined: Joined) -> dict[str, int]:
    """Return, by counter in the store, one more than the highest id that this broker knows to be in use."""
    ids = {PRODUCER_IDS: joined.epochs.known.producer_ids_end}
    if config.broker_id < 0:
        ids[BROKER_IDS] = joined.identity.broker_id + 1
    return {counter: end for counter, end in ids.items() if end > 0}
