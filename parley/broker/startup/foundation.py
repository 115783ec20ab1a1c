"""The parts that all later parts use: the broker's metadata, configuration, partitions, peers and authorization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from parley.broker.config import BrokerConfig, log_config
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.metadata_publisher import MetadataPublisher
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.terms import NO_TERM
from parley.broker.metadata.types import NO_ENTRIES, ResourceType
from parley.broker.network.peers import Peers
from parley.broker.quotas.callback import load_callback
from parley.broker.quotas.enforcement import QuotaEnforcement
from parley.broker.quotas.rates import Windows
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Purgatories
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.security.audit import AuditLog
from parley.broker.security.authorization import Authorization
from parley.broker.security.authorizer import load_authorizer_of
from parley.broker.security.broker_listeners import BrokerListeners
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.broker.startup.environment import Environment
from parley.broker.startup.logs import OpenedLogs
from parley.broker.startup.store import Joined
from parley.light_dataclasses import dataclass
from parley.storage.log_config import LogConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """The parts that every later stage of the composition uses, and that use none of the later parts."""

    broker_id: int
    metadata: Metadata
    config: DynamicConfig
    purgatories: Purgatories
    partitions: HostedPartitions
    peers: Peers
    broker_listeners: BrokerListeners
    authorization: Authorization
    quotas: QuotaEnforcement
    metadata_fetches: Purgatory
    """FetchMetadata requests that wait for a change."""
    publisher: MetadataPublisher


def lay_foundation(environment: Environment, joined: Joined, opened: OpenedLogs) -> Foundation:
    """Create the parts of ``Foundation``. Raises ConfigError if a class that the configuration names cannot be
    loaded."""
    broker_id, static = joined.identity.broker_id, environment.config
    metadata = Metadata(_first_image(joined))
    config = DynamicConfig(broker_id, static)
    purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
    broker_listeners = BrokerListeners(static.inter_broker_listener, metadata)
    authorization = authorization_of(static, environment.clock.monotonic, broker_listeners)
    metadata_fetches = Purgatory()
    return Foundation(
        broker_id=broker_id,
        metadata=metadata,
        config=config,
        purgatories=purgatories,
        partitions=_hosted_partitions(environment, joined, opened, config, purgatories),
        peers=Peers(
            broker_id,
            metadata,
            static.inter_broker_listener,
            InterBrokerSecurity(config),
            timeout_s=static.request_timeout_ms / 1000,
            connect_timeout_s=static.socket_connection_setup_timeout_ms / 1000,
        ),
        broker_listeners=broker_listeners,
        authorization=authorization,
        quotas=_quotas(environment, authorization),
        metadata_fetches=metadata_fetches,
        publisher=MetadataPublisher(metadata, metadata_fetches),
    )


def _first_image(joined: Joined) -> MetadataImage:
    """Return an empty image that is newer than any image of an earlier controller, and older than any image of the next
    controller.

    This broker then rejects controllers below the epoch that it has seen before, and becomes controller only under a
    higher epoch.
    """
    seen = joined.epochs.known.metadata
    image = MetadataImage(joined.identity.cluster_id)
    return image if seen == NO_TERM else replace(image, controller_epoch=seen.epoch, version=-1)


def _hosted_partitions(
    environment: Environment, joined: Joined, opened: OpenedLogs, config: DynamicConfig, purgatories: Purgatories
) -> HostedPartitions:
    @lru_cache(maxsize=1)  # most topics have no configuration entries: their logs share one value
    def default(of_broker: BrokerConfig) -> LogConfig:
        return log_config(of_broker, NO_ENTRIES)

    def config_of(image: MetadataImage, topic: str) -> LogConfig:
        entries = image.config(ResourceType.TOPIC, topic)
        return log_config(config(), entries) if entries else default(config())

    return HostedPartitions(
        joined.identity.broker_id, opened.manager, config_of, purgatories, environment.tasks, environment.metrics
    )


def authorization_of(
    config: BrokerConfig, monotonic: Callable[[], float], broker_listeners: BrokerListeners
) -> Authorization:
    """Return the authorization that the configuration specifies. Raises ConfigError if its class cannot be loaded."""
    return Authorization(load_authorizer_of(config), AuditLog(monotonic), broker_listeners=broker_listeners)


def _quotas(environment: Environment, authorization: Authorization) -> QuotaEnforcement:
    """Return the enforcement of client quotas, without any quota at first. Raises ConfigError if the operator's
    callback cannot be loaded."""
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
