"""Which handler answers which request: the request handlers of a broker, made of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parley.broker.api.alter_partition import AlterPartitionApi
from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.api.broker_lifecycle import BrokerLifecycleApi
from parley.broker.api.configs import ConfigsApi
from parley.broker.api.delete_records import RecordsApi
from parley.broker.api.describe_cluster import ClusterApi
from parley.broker.api.elect_leaders import ElectionsApi
from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch_metadata import FetchMetadataApi
from parley.broker.api.forwarding import Forwarding
from parley.broker.api.group_offsets import GroupOffsetsApi
from parley.broker.api.groups import GroupsApi
from parley.broker.api.log_dirs import LogDirsApi
from parley.broker.api.metadata import MetadataApi
from parley.broker.api.offsets import OffsetsApi
from parley.broker.api.outages import Outages
from parley.broker.api.produce import ProduceApi
from parley.broker.api.producers import ProducersApi
from parley.broker.api.reassignment import ReassignmentApi
from parley.broker.api.store_move import CoordinationApi
from parley.broker.api.topics import TopicsApi
from parley.broker.controller.administration import Administration
from parley.broker.controller.topic_auto_creation import TopicAutoCreation
from parley.broker.coordinators.producer_ids import ProducerIds
from parley.broker.network.dispatch import Handler
from parley.broker.replication.log_dir_moves import LogDirMoves
from parley.broker.replication.replica_selector import load_selector
from parley.broker.replication.throttle import leader_throttle

if TYPE_CHECKING:
    from parley.broker.server import BrokerServer


def routes(server: BrokerServer) -> dict[int, Handler]:
    """The handlers by API key. Those that are for the controller find it, wherever it is."""
    broker_id, clock, static = server.identity.broker_id, server.clock, server.static_config
    administration = Administration(
        broker_id,
        server.liveness.controller,
        server.metadata,
        server.config,
        server.rng,
        server.until_usable,
        server.unclean_allowed,
    )
    controller = server.liveness.controller
    auto_creation = TopicAutoCreation(
        administration, server.metadata, server.peers, server.config, server.partitions.opened
    )
    fetch = FetchApi(
        server.partitions,
        server.metadata,
        server.sessions,
        server.purgatories.fetch,
        server.tasks,
        max_bytes=static.fetch_max_bytes,
        threads=server.threads,
        selector=load_selector(static.replica_selector_class),
        throttle=leader_throttle(broker_id, server.config, clock.monotonic),
        may_be_superseded=lambda: server.liveness.may_be_superseded,
    )
    silence = server.liveness.silence

    def is_in_touch() -> bool:
        return server.publisher.is_open or silence.is_in_touch

    apis = (
        AlterPartitionApi(controller, server.metadata),
        ApiVersionsApi(lambda: server.dispatcher.routes),
        ClusterApi(server.metadata),
        CoordinationApi(server.moves),
        ConfigsApi(broker_id, administration, server.metadata, server.config),
        BrokerLifecycleApi(server.liveness.controller, server.unclean_allowed),
        ElectionsApi(server.liveness.controller),
        fetch,
        FetchMetadataApi(server.metadata, server.publisher, server.hearers, silence),
        GroupOffsetsApi(server.groups, server.metadata, server.config, clock.wall_ms),
        GroupsApi(server.groups, server.metadata, auto_creation, server.config),
        LogDirsApi(
            server.partitions,
            server.logs,
            LogDirMoves(server.partitions, server.logs, server.config, server.tasks, clock.monotonic),
            server.threads,
        ),
        MetadataApi(
            server.metadata,
            auto_creation,
            Outages(server.metadata, server.peers.lost_at, is_in_touch),
            lacks_log=server.partitions.lacks_log,
            opened=server.partitions.opened,
        ),
        OffsetsApi(server.partitions, server.threads),
        ProduceApi(
            server.partitions,
            server.metadata,
            server.purgatories.produce,
            wall_ms=clock.wall_ms,
            threads=server.threads,
            may_be_superseded=lambda: server.liveness.may_be_superseded,
        ),
        ProducersApi(server.partitions, ProducerIds(lambda: server.liveness.store)),
        ReassignmentApi(server.liveness.controller, server.unclean_allowed),
        RecordsApi(server.partitions, server.purgatories.produce),
        TopicsApi(administration, server.metadata, server.config),
    )
    routes = {key: handler for api in apis for key, handler in api.routes().items()}
    return Forwarding(controller, server.metadata, server.peers, server.moves).around(routes)
