"""The table of request handlers: which handler serves which API key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from parley.broker.api.acls import AclsApi
from parley.broker.api.alter_partition import AlterPartitionApi
from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.api.assign_replicas import AssignReplicasApi
from parley.broker.api.authorization.guards import between_brokers, guarded
from parley.broker.api.background_work import BackgroundWorkApi
from parley.broker.api.broker_lifecycle import BrokerLifecycleApi
from parley.broker.api.client_quotas import ClientQuotasApi
from parley.broker.api.configs import ConfigsApi
from parley.broker.api.consumer_groups import ConsumerGroupsApi
from parley.broker.api.delegation_tokens import DelegationTokensApi
from parley.broker.api.delete_records import DeleteRecordsApi
from parley.broker.api.describe_cluster import DescribeClusterApi
from parley.broker.api.elect_leaders import ElectLeadersApi
from parley.broker.api.envelopes import EnvelopesApi
from parley.broker.api.failing_brokers import FailingBrokers
from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch_metadata import FetchMetadataApi
from parley.broker.api.find_coordinator import (
    GROUP_KEY,
    SHARE_KEY,
    TRANSACTION_KEY,
    CoordinatorKind,
    FindCoordinatorApi,
)
from parley.broker.api.forwarding import FORWARDED, Forwarding
from parley.broker.api.group_offsets import GroupOffsetsApi
from parley.broker.api.groups import GroupsApi
from parley.broker.api.log_dirs import LogDirsApi
from parley.broker.api.log_verification import LogVerificationApi
from parley.broker.api.metadata import MetadataApi
from parley.broker.api.offsets import OffsetsApi
from parley.broker.api.own_security import OwnSecurity
from parley.broker.api.produce import ProduceApi
from parley.broker.api.producers import ProducersApi
from parley.broker.api.reassignment import ReassignmentApi
from parley.broker.api.replica_log_info import ReplicaLogInfoApi
from parley.broker.api.sasl import SaslApi
from parley.broker.api.scram_users import ScramUsersApi
from parley.broker.api.share_fetch.handler import ShareFetchApi
from parley.broker.api.share_groups import ShareGroupsApi
from parley.broker.api.share_state import ShareStateApi
from parley.broker.api.store_move import StoreMoveApi, guard_store_moves
from parley.broker.api.streams_groups import StreamsGroupsApi
from parley.broker.api.topic_partitions import TopicPartitionsApi
from parley.broker.api.topics import TopicsApi
from parley.broker.api.transactional.coordinator_requests import CoordinatorRequests
from parley.broker.api.transactional.offset_commits import TransactionalOffsetsApi
from parley.broker.api.transactional.producing import ProducerTransactions
from parley.broker.api.transactional.verifying import Verifying
from parley.broker.api.transactions import TransactionsApi
from parley.broker.api.update_features import UpdateFeaturesApi
from parley.broker.controller.administration import Administration
from parley.broker.controller.topic_auto_creation import TopicAutoCreation
from parley.broker.coordinators.groups.streams.internal_topics import AsClient, InternalTopics
from parley.broker.coordinators.groups.streams.settings import streams_settings
from parley.broker.membership.recovery_notes import read_notes
from parley.broker.metadata.feature_support import serves_share_groups
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from parley.broker.network.request_context import Handler
from parley.broker.replication.log_dir_moves import LogDirMoves
from parley.broker.replication.replica_selector import load_selector
from parley.broker.replication.throttle import leader_throttle
from parley.broker.security.listener_security import ListenerSecurity
from parley.broker.startup.composition import Parts
from parley.broker.startup.environment import Environment
from parley.protocol.messages.topics import CreateTopicsRequest

APPLIED_MAX_S = 1.0
"""The maximum time, in seconds, that the response to a topic change waits for brokers that have not applied it yet."""


class Api(Protocol):
    """The handlers of one family of requests."""

    def routes(self) -> dict[int, Handler]: ...


def routes(environment: Environment, parts: Parts, security: Sequence[ListenerSecurity]) -> dict[int, Handler]:
    """Create the request handlers, by API key.

    Requests pass, outermost first, through ``between_brokers``, ``guarded``, ``OwnSecurity``, ``guard_store_moves``,
    ``Forwarding``, then the handler. Each wraps only the APIs that it concerns. A request in an envelope enters at a
    second ``guarded``, with the rights of the client in the envelope.
    """
    administration = _administration(environment, parts)
    auto_creation = TopicAutoCreation(
        administration,
        parts.metadata,
        parts.peers,
        parts.config,
        until_opened=lambda: parts.partitions.until_opened(APPLIED_MAX_S),
    )
    parts.create_internal_topic.create = auto_creation.create_internal_topic
    as_client = AsClient()
    apis: tuple[Api, ...] = (
        ApiVersionsApi(lambda: handlers, lambda: parts.metadata.image.features),
        *_record_apis(environment, parts, auto_creation),
        *_topic_and_group_apis(environment, parts, administration, auto_creation),
        *_cluster_apis(parts),
        _background_work_api(environment, parts),
        _streams_api(environment, parts, as_client),
        _tokens_api(environment, parts),
        SaslApi(environment.tasks, environment.clock.monotonic, environment.clock.wall_ms),
    )
    handlers = {key: handler for api in apis for key, handler in api.routes().items()}
    lifecycle, authorization = parts.lifecycle, parts.authorization

    def is_enforced() -> bool:
        return authorization.is_enforced

    handlers |= guard_store_moves(handlers, is_enforced)
    for_clients = guarded(handlers, authorization, parts.metadata)
    in_envelopes = {key: handler for key, handler in for_clients.items() if key in FORWARDED}
    handlers |= EnvelopesApi(lifecycle.controller, in_envelopes).routes()
    forwarding = Forwarding(
        lifecycle.controller,
        parts.peers,
        parts.store_move,
        lifecycle.store_error,
        uses_envelopes=lambda: authorization.is_enforced or parts.quotas.is_active,
    )
    own_security = OwnSecurity(parts.identity.broker_id, parts.config, security, environment.threads.upkeep)
    forwarded = guard_store_moves(forwarding.around(handlers), is_enforced)
    served = guarded(own_security.around(forwarded), authorization, parts.metadata)
    as_client.handler = served[CreateTopicsRequest.API_KEY]
    return between_brokers(served, parts.broker_listeners)


def _record_apis(environment: Environment, parts: Parts, auto_creation: TopicAutoCreation) -> tuple[Api, ...]:
    """Create the handlers for the records and offsets of the partitions that this broker leads, and for its log
    directories."""
    static, clock, threads = environment.config, environment.clock, environment.threads
    config, metadata, partitions, purgatories = parts.config, parts.metadata, parts.partitions, parts.purgatories

    def may_be_superseded() -> bool:
        return parts.lifecycle.may_be_superseded

    log_dir_moves = LogDirMoves(
        partitions, parts.logs, config, environment.tasks, clock.monotonic, parts.replica_directories
    )
    log_dir_moves.start()
    transactions = TransactionsApi(parts.transactions, metadata, auto_creation, threads)
    coordinator_requests = CoordinatorRequests(
        parts.identity.broker_id, metadata, parts.peers, transactions, environment.tasks
    )
    verifying = Verifying(parts.verifications, coordinator_requests, config)
    return (
        FetchApi(
            partitions,
            metadata,
            parts.sessions,
            purgatories.fetch,
            environment.tasks,
            max_bytes=static.fetch_max_bytes,
            threads=threads,
            selector=load_selector(static.replica_selector_class),
            throttle=leader_throttle(parts.identity.broker_id, config, clock.monotonic),
            may_be_superseded=may_be_superseded,
            authorization=parts.authorization,
            quotas=parts.quotas,
        ),
        ShareFetchApi(
            parts.share_partitions,
            partitions,
            metadata,
            environment.tasks,
            is_offered=lambda: serves_share_groups(metadata.image),
            sessions_max=lambda: config().group_share_max_share_sessions,
            max_bytes=static.fetch_max_bytes,
            threads=threads,
            authorization=parts.authorization,
            quotas=parts.quotas,
        ),
        LogDirsApi(partitions, parts.logs, log_dir_moves, threads),
        LogVerificationApi(partitions, parts.scrubber, clock.wall_ms),
        OffsetsApi(partitions, threads),
        ProduceApi(
            partitions,
            metadata,
            purgatories.produce,
            ProducerTransactions(verifying),
            wall_ms=clock.wall_ms,
            monotonic=clock.monotonic,
            threads=threads,
            may_be_superseded=may_be_superseded,
        ),
        ProducersApi(partitions, parts.producer_ids, parts.transactions, threads),
        DeleteRecordsApi(partitions, purgatories.produce),
        TransactionalOffsetsApi(parts.groups, partitions, verifying, metadata, config, clock.wall_ms),
        parts.markers,
        transactions,
    )


def _administration(environment: Environment, parts: Parts) -> Administration:
    async def until_usable() -> None:
        """Wait until this broker, and the brokers that follow the controller, can use new partitions."""
        await parts.partitions.until_opened(APPLIED_MAX_S)
        await parts.publisher.until_applied(APPLIED_MAX_S)

    return Administration(
        parts.identity.broker_id,
        parts.lifecycle.controller,
        parts.metadata,
        parts.config,
        environment.rng,
        until_usable,
        parts.rules,
    )


def _topic_and_group_apis(
    environment: Environment, parts: Parts, administration: Administration, auto_creation: TopicAutoCreation
) -> tuple[Api, ...]:
    """Create the handlers of requests about topics, configurations and groups."""
    broker_id, config, metadata, partitions = parts.identity.broker_id, parts.config, parts.metadata, parts.partitions
    publisher, silence = parts.publisher, parts.lifecycle.silence

    def is_in_touch() -> bool:
        return publisher.is_open or silence.is_in_touch

    failing_brokers = FailingBrokers(metadata, parts.peers.lost_at, is_in_touch)
    metadata.subscribe(failing_brokers.apply)
    return (
        ConfigsApi(broker_id, administration, metadata, config),
        GroupOffsetsApi(parts.groups, metadata, config, environment.clock.wall_ms),
        GroupsApi(parts.groups, config),
        ConsumerGroupsApi(parts.groups, metadata),
        ShareGroupsApi(parts.groups, metadata),
        ShareStateApi(parts.share_state),
        FindCoordinatorApi(
            metadata,
            auto_creation,
            {
                GROUP_KEY: CoordinatorKind(OFFSETS_TOPIC, parts.groups.runtime.until_loaded),
                TRANSACTION_KEY: CoordinatorKind(TRANSACTIONS_TOPIC, parts.transactions.runtime.until_loaded),
                SHARE_KEY: CoordinatorKind(SHARE_STATE_TOPIC, parts.share_state.runtime.until_loaded),
            },
        ),
        MetadataApi(
            metadata,
            auto_creation,
            failing_brokers,
            authorization=parts.authorization,
            logs=partitions,
            quota_of=parts.quotas.mutations,
        ),
        TopicPartitionsApi(metadata, failing_brokers, authorization=parts.authorization, logs=partitions),
        TopicsApi(administration, metadata, config, parts.quotas.mutations),
    )


def _streams_api(environment: Environment, parts: Parts, as_client: AsClient) -> Api:
    """Create the handlers for streams groups. The topics that a group needs are created on behalf of its client."""
    config, metadata = parts.config, parts.metadata
    return StreamsGroupsApi(
        parts.groups,
        metadata,
        parts.authorization,
        InternalTopics(
            as_client,
            environment.tasks,
            environment.clock.monotonic,
            lambda: config().request_timeout_ms,
        ),
        lambda group_id: streams_settings(config(), metadata.image, group_id),
    )


def _tokens_api(environment: Environment, parts: Parts) -> Api:
    """Create the handlers for delegation tokens."""
    return DelegationTokensApi(
        parts.lifecycle.controller,
        parts.metadata,
        parts.authorization,
        parts.publisher,
        parts.peers,
        environment.config,
        environment.clock.wall_ms,
    )


def _background_work_api(environment: Environment, parts: Parts) -> Api:
    """Create the handler for the background work of this broker, and of brokers that are starting."""
    return BackgroundWorkApi(
        parts.identity.broker_id,
        parts.log_cleaner,
        parts.scrubber,
        parts.healing,
        recovery_notes=lambda: read_notes(parts.store_move.store, environment.rng),
        is_controller=lambda: parts.metadata.image.controller_id == parts.identity.broker_id,
        monotonic=environment.clock.monotonic,
    )


def _cluster_apis(parts: Parts) -> tuple[Api, ...]:
    """Create the handlers of requests that brokers and administrators send to the controller, and of requests about the
    coordination store."""
    controller, metadata = parts.lifecycle.controller, parts.metadata
    return (
        AlterPartitionApi(controller, metadata, parts.rules),
        AssignReplicasApi(controller),
        BrokerLifecycleApi(controller, parts.rules),
        DescribeClusterApi(metadata, parts.authorization),
        AclsApi(controller, metadata, parts.authorization, parts.publisher),
        ScramUsersApi(controller, metadata, parts.publisher),
        ClientQuotasApi(controller, metadata, parts.publisher),
        UpdateFeaturesApi(controller, parts.publisher),
        StoreMoveApi(parts.store_move, parts.store_move_driver),
        ElectLeadersApi(controller, parts.recovery, parts.rules),
        FetchMetadataApi(metadata, parts.publisher, parts.metadata_fetches, parts.lifecycle.silence),
        ReassignmentApi(controller, parts.rules),
        ReplicaLogInfoApi(parts.replica_reports),
    )
