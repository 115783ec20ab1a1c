"""The parts that make a broker a member of its cluster: its lifecycle in the store, and its decisions as controller."""

from __future__ import annotations

from parley.broker.config import BrokerConfig, TopicConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.delegation_tokens import remove_expired_periodically
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy, RulesOf
from parley.broker.controller.elections.periodic_elections import (
    rebalance_leaders_periodically,
    reconcile_leaders_periodically,
)
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery
from parley.broker.controller.report_requests import ReportRequests
from parley.broker.coordinators.producer_ids import PRODUCER_IDS, highest_producer_id
from parley.broker.membership.identity import BROKER_IDS
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.membership.remembered_epochs import RememberedEpochs
from parley.broker.metadata.feature_support import SUPPORTED_FEATURES
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, ResourceType
from parley.broker.startup.binding import Bound
from parley.broker.startup.environment import Environment
from parley.broker.startup.foundation import Foundation
from parley.broker.startup.logs import OpenedLogs
from parley.broker.startup.store import Joined
from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class Membership:
    """This broker's lifecycle in the cluster, and the parts that it needs for decisions as the controller."""

    lifecycle: BrokerLifecycle
    rules: RulesOf
    recovery: UncleanRecovery
    reports: ReportRequests

    def broker_epoch(self) -> int:
        """Return the epoch of this broker's registration."""
        return self.lifecycle.broker_epoch


def make_membership(
    environment: Environment, bound: Bound, joined: Joined, opened: OpenedLogs, base: Foundation
) -> Membership:
    """Create the parts of ``Membership``. The broker is not registered yet."""
    joined.epochs.note(RememberedEpochs(producer_ids_end=1 + highest_producer_id(opened.manager.logs)))
    rules = _election_rules(base.config)
    reports = ReportRequests(base.metadata, base.peers, environment.config.inter_broker_listener)
    recovery = UncleanRecovery(base.metadata, reports, rules)
    return Membership(_lifecycle(environment, bound, joined, opened, base, rules, recovery), rules, recovery, reports)


def _lifecycle(
    environment: Environment,
    bound: Bound,
    joined: Joined,
    opened: OpenedLogs,
    base: Foundation,
    rules: RulesOf,
    recovery: UncleanRecovery,
) -> BrokerLifecycle:
    static, config, rng = environment.config, base.config, environment.rng
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
            host_label=static.broker_host_label or "",
        ),
        base.metadata,
        base.publisher,
        base.peers,
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
        counts=joined.counts,
    )


def _election_rules(config: DynamicConfig) -> RulesOf:
    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        settings = TopicConfig(config(), image.config(ResourceType.TOPIC, topic))
        strategy = RecoveryStrategy(settings.unclean_recovery_strategy)
        if settings.unclean_leader_election_enable:
            strategy = RecoveryStrategy.AGGRESSIVE
        return ElectionRules(settings.min_insync_replicas, strategy, settings.flush_messages == 1)

    return rules


def _ids_in_use(config: BrokerConfig, joined: Joined) -> dict[str, int]:
    """Return, for each counter in the store, one more than the highest id that this broker knows to be in use."""
    ids = {PRODUCER_IDS: joined.epochs.known.producer_ids_end}
    if config.broker_id < 0:
        ids[BROKER_IDS] = joined.identity.broker_id + 1
    return {counter: end for counter, end in ids.items() if end > 0}
