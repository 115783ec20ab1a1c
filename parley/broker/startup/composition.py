"""The fourth phase of startup: creates the parts of the broker and connects them.

The order of the subscriptions to the metadata matters: a part must be called after the parts that it uses. ``_connect``
defines this order. The parts that request handlers use are subscribed after these (``routes``).
"""

from __future__ import annotations

from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.transactional.markers import TransactionMarkers
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.internal_topic_subscriber import InternalTopicSubscriber
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.coordinators.share_state.coordinator import ShareCoordinator
from parley.broker.coordinators.share_state.coordinator_persister import CoordinatorPersister
from parley.broker.coordinators.transactions.coordinator import TransactionCoordinator
from parley.broker.membership.identity import Identity
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.membership.measured_store import StoreCounts
from parley.broker.metadata.current import Metadata
from parley.broker.network.configured_limits import limits_of
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.load import Load
from parley.broker.network.peers import Peers
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
from parley.broker.runtime.long_lived_objects import LongLivedObjects
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import AclAuthorizer
from parley.broker.security.broker_listeners import BrokerListeners
from parley.broker.security.login_credentials import LoginCredentials
from parley.broker.share.share_partitions import SharePartitions
from parley.broker.startup.binding import Bound
from parley.broker.startup.coordinators import Coordinators, LateCreation, make_coordinators
from parley.broker.startup.environment import Environment
from parley.broker.startup.foundation import Foundation, lay_foundation
from parley.broker.startup.logs import OpenedLogs
from parley.broker.startup.membership import Membership, make_membership
from parley.broker.startup.replication import Replication, make_replication
from parley.broker.startup.store import Joined
from parley.broker.store_move.driver import StoreMoveDriver
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.light_dataclasses import dataclass
from parley.storage.compaction.log_cleaner import LogCleaner
from parley.storage.damage.scrubber import Scrubber
from parley.storage.log_manager import LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one broker, except for its network side (``parley.broker.startup.serving``)."""

    identity: Identity
    authorization: Authorization
    broker_listeners: BrokerListeners
    store_move: StoreMoveParticipant
    store_move_driver: StoreMoveDriver
    store_counts: StoreCounts
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
    persister: CoordinatorPersister
    """Reads and writes the state of share partitions through their share coordinators, on this or another broker."""
    share_partitions: SharePartitions
    create_internal_topic: LateCreation
    """Creates the topics of coordinators. Set when the request handlers are created."""
    credentials: LoginCredentials
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
    """Verifications of the partitions that producers use in their transactions."""
    markers: TransactionMarkers


def compose(environment: Environment, bound: Bound, joined: Joined, opened: OpenedLogs) -> Parts:
    """Create the parts of the broker, and subscribe each of them to the parts that it follows. Raises ConfigError if a
    class that the configuration names cannot be loaded."""
    environment.health.starting("putting its parts together")
    base = lay_foundation(environment, joined, opened)
    membership = make_membership(environment, bound, joined, opened, base)
    coordinators = make_coordinators(environment, joined, base, membership.lifecycle)
    replication = make_replication(environment, opened, base, membership)
    parts = _assembled(environment, joined, opened, base, membership, coordinators, replication)
    broker_id, lifecycle, partitions = base.broker_id, membership.lifecycle, base.partitions
    opened.manager.broker_epoch = lambda: lifecycle.clean_epoch
    opened.failures.report_logs_to(partitions.lose_logs)
    opened.manager.strays.was_deleted = partitions.was_deleted
    opened.manager.compaction_paused = parts.log_cleaner.paused
    long_lived = LongLivedObjects(owns_process=environment.owns_process)
    environment.undo.callback(long_lived.close)
    parts.metadata.subscribe(long_lived.apply)
    _connect(
        parts,
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.groups.runtime),
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.transactions.runtime),
        InternalTopicSubscriber(broker_id, lifecycle.incarnation_id, parts.share_state.runtime),
    )
    return parts


def _assembled(
    environment: Environment,
    joined: Joined,
    opened: OpenedLogs,
    base: Foundation,
    membership: Membership,
    coordinators: Coordinators,
    replication: Replication,
) -> Parts:
    """Create the parts that no other part uses. Returns all parts of the broker."""
    static, clock = environment.config, environment.clock
    limits = limits_of(static)
    return Parts(
        identity=joined.identity,
        store_move=joined.store_move,
        store_move_driver=joined.store_move_driver,
        store_counts=joined.counts,
        logs=opened.manager,
        authorization=base.authorization,
        broker_listeners=base.broker_listeners,
        metadata=base.metadata,
        config=base.config,
        purgatories=base.purgatories,
        partitions=base.partitions,
        quotas=base.quotas,
        peers=base.peers,
        metadata_fetches=base.metadata_fetches,
        publisher=base.publisher,
        lifecycle=membership.lifecycle,
        rules=membership.rules,
        recovery=membership.recovery,
        groups=coordinators.groups,
        transactions=coordinators.transactions,
        share_state=coordinators.share_state,
        persister=coordinators.persister,
        share_partitions=coordinators.share_partitions,
        create_internal_topic=coordinators.create_internal_topic,
        producer_ids=coordinators.producer_ids,
        verifications=coordinators.verifications,
        markers=coordinators.markers,
        fetchers=replication.fetchers,
        offline_replicas=replication.offline_replicas,
        replica_directories=replication.replica_directories,
        replica_reports=replication.replica_reports,
        isr=replication.isr,
        healing=replication.healing,
        scrubber=replication.scrubber,
        log_cleaner=replication.log_cleaner,
        credentials=LoginCredentials(base.metadata, static, clock.wall_ms),
        connection_quotas=ConnectionQuotas(limits, static.inter_broker_listener, connection_rates(static, base.quotas)),
        load=Load(limits.queued_requests, limits.queued_bytes),
        sessions=FetchSessions(static.max_incremental_fetch_session_cache_slots, environment.rng, clock.monotonic),
    )


def _connect(
    parts: Parts,
    offsets_topic: InternalTopicSubscriber,
    transactions_topic: InternalTopicSubscriber,
    share_state_topic: InternalTopicSubscriber,
) -> None:
    """Subscribe the parts to the metadata, the configuration and the hosted partitions."""
    parts.partitions.is_registered = parts.replica_reports.is_registered
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


def connection_rates(config: BrokerConfig, quotas: QuotaEnforcement) -> ConnectionRates:
    """Return the limits on the rate at which each client address may open connections."""
    windows = Windows(config.quota_window_num, config.quota_window_size_seconds)
    return ConnectionRates(windows, lambda host: quotas.quotas.connection_rate(host))


def limit_connections(quotas: ConnectionQuotas, config: BrokerConfig) -> None:
    """Apply the connection limits of ``config`` to ``quotas``."""
    quotas.limits = limits_of(config)
