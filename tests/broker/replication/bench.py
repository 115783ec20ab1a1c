"""The data paths of several brokers in one process, over real sockets. The test is the controller."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from parley.broker.api.alter_partition import AlterPartitionApi
from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.api.broker_lifecycle import BrokerLifecycleApi
from parley.broker.api.delete_records import DeleteRecordsApi
from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.api.offsets import OffsetsApi
from parley.broker.api.produce import ProduceApi
from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    ConfigReplaced,
    Delta,
    PartitionChanged,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.metrics.catalogue.replication import FetcherMetrics
from parley.broker.metrics.registry import Metrics
from parley.broker.network.configured_limits import Limits
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.dispatch import Dispatcher
from parley.broker.network.listener import Listener, bind
from parley.broker.network.load import Load
from parley.broker.network.peers import Peers
from parley.broker.network.request_context import Handler
from parley.broker.replication.fetcher_assignment import ReplicaFetchers
from parley.broker.replication.healing import Healing
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_maintenance import IsrMaintenance
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.replication.replica_selector import load_selector
from parley.broker.replication.throttle import leader_throttle
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.protocol.messages.cluster_metadata import HandOverLeadershipRequest
from parley.protocol.messages.replication import AlterPartitionRequest
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record
from parley.protocol.schema import Request
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_maintenance import MaintenanceIntervals
from parley.storage.log_manager import LogManager
from tests.broker.api.bench import context
from tests.support.uuids import new_uuid

NAME = "PLAINTEXT"
QUICK = {"replica.fetch.backoff.ms": "20", "replica.fetch.wait.max.ms": "200"}
"""Short retry delays, so that a test does not wait a second for the second attempt."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(*values: bytes, timestamp: int | None = None) -> bytearray:
    at = now_ms() if timestamp is None else timestamp
    return build([Record(i, at, None, value, ()) for i, value in enumerate(values)])


def values_of(log: Log, start: int = 0) -> list[bytes]:
    """Return every value in the log."""
    found: list[bytes] = []
    offset = max(start, log.log_start_offset)
    while offset < log.log_end_offset:
        data = memoryview(log.read(offset, 1 << 20, up_to=log.log_end_offset).read())
        for position, header in headers(data):
            found += [bytes(record.value or b"") for record in records(data, position)]
            offset = header.next_offset
    return found


class Node:
    """A broker. It may be stopped and restarted: its directory stays, and it gets a new epoch."""

    def __init__(
        self, broker_id: int, directory: Path, settings: dict[str, str], controller: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self.id = broker_id
        self.directory = directory
        self.epoch = 0
        self.is_up = False
        self.asked: list[AlterPartitionRequest] = []
        self.controller = controller
        self._settings = settings
        directory.mkdir()

    async def start(self, image: MetadataImage, config_of: Callable[[str], LogConfig]) -> BrokerRegistration:
        """Open the logs and listen. The metadata is delivered by ``hear``."""
        own = {"node.id": str(self.id), "log.dirs": str(self.directory)}
        config = BrokerConfig.from_properties({**own, **QUICK, **self._settings})
        self.epoch += 1
        self.tasks = TaskSet()
        self.upkeep = TaskSet()
        self.metrics = Metrics()
        self.config = DynamicConfig(self.id, config)
        self.logs = LogManager(
            [self.directory],
            default_config=LogConfig(),
            now_ms=now_ms,
            random=random.Random(self.id),
            start_task=self.upkeep.start,
            intervals=MaintenanceIntervals(),
            highest_leader_epoch=0,
        )
        await self.logs.open("cluster", self.id)
        self.metadata = Metadata(MetadataImage("cluster"))
        self.purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
        self.partitions = HostedPartitions(
            self.id, self.logs, lambda _, topic: config_of(topic), self.purgatories, self.tasks, self.metrics
        )
        self.peers = Peers(
            self.id, self.metadata, NAME, InterBrokerSecurity(self.config), timeout_s=5, connect_timeout_s=5
        )
        self.healing = Healing(
            self.id,
            self.partitions,
            self.logs,
            self.metadata,
            self.peers,
            self.config,
            self.ask_controller,
            self.tasks,
            epoch=lambda: self.epoch,
            monotonic=time.monotonic,
        )
        self.fetchers = ReplicaFetchers(
            self.id,
            self.partitions,
            self.peers,
            self.config,
            self.tasks,
            epoch=lambda: self.epoch,
            leave_isr=self.healing.leave_isr,
            rng=random.Random(self.id),
        )
        self.in_sync = IsrMaintenance(
            self.id,
            self.partitions,
            self.ask_controller,
            self.config,
            self.tasks,
            epoch=lambda: self.epoch,
            monotonic=time.monotonic,
        )
        self.config.subscribe(self.fetchers.reconfigure)
        self.partitions.call_when_opened(self.fetchers.assign)
        self.partitions.call_when_opened(self.healing.watch)
        self.partitions.set_isr_policy(self.in_sync)
        self.metrics.watch(FetcherMetrics, self.fetchers.metrics)
        self.tasks.start(self.in_sync.run(), name="ISR")
        self.metadata.subscribe(self.config.apply)
        self.metadata.subscribe(self.partitions.apply)
        self.metadata.subscribe(self.fetchers.apply)
        self.metadata.subscribe(self.healing.apply)
        await self._listen()
        self.is_up = True
        endpoint = Endpoint(NAME, NAME, "127.0.0.1", self.listener.port)
        return BrokerRegistration(self.id, self.epoch, new_uuid(), (endpoint,), rack=f"rack-{self.id}")

    async def ask_controller(self, request: Request, *, version: int | None = None) -> Any:
        """Send a request to the test, which acts as the controller. ``asked`` keeps the requests."""
        if isinstance(request, AlterPartitionRequest):
            self.asked.append(request)
        return await self.controller(request)

    async def _listen(self) -> None:
        self.sessions = FetchSessions(1000, random.Random(self.id), time.monotonic)
        self.fetch_api = FetchApi(
            self.partitions,
            self.metadata,
            self.sessions,
            self.purgatories.fetch,
            self.tasks,
            max_bytes=1 << 26,
            selector=load_selector(self.config().replica_selector_class),
            throttle=leader_throttle(self.id, self.config, time.monotonic),
        )
        apis: Sequence[Any] = (
            ApiVersionsApi(lambda: dispatcher.routes),
            self.fetch_api,
            OffsetsApi(self.partitions),
            DeleteRecordsApi(self.partitions, self.purgatories.produce),
            ProduceApi(
                self.partitions,
                self.metadata,
                self.purgatories.produce,
                None,  # type: ignore[arg-type]  # no client writes in a transaction
                wall_ms=now_ms,
                monotonic=time.monotonic,
            ),
        )
        routes: dict[int, Handler] = {key: handler for api in apis for key, handler in api.routes().items()}
        dispatcher = Dispatcher(routes, monotonic=time.monotonic)
        limits = Limits()
        self.listener = Listener(
            NAME,
            dispatcher,
            limits=limits,
            load=Load(limits.queued_requests, limits.queued_bytes),
            quotas=ConnectionQuotas(limits),
            tasks=self.tasks,
            monotonic=time.monotonic,
        )
        await self.listener.start(bind("127.0.0.1", 0), backlog=100)

    def hear(self, image: MetadataImage) -> None:
        """Apply an image, as after a gap: the changes since the previous image are computed here."""
        changes = image.changes_since(self.metadata.image)
        if changes:
            self.metadata.replace(image, Delta(image.controller_epoch, image.version, changes))

    async def stop(self, *, crash: bool = False) -> None:
        """Stop the node. With ``crash`` the logs are left as after a kill."""
        self.is_up = False
        await self.fetchers.close()
        self.listener.stop_accepting()
        self.purgatories.produce.expire_all()
        self.purgatories.fetch.expire_all()
        await self.listener.close(0)
        await self.peers.close()
        await self.tasks.close()
        if crash:
            for log in self.logs.logs:
                log.release()
            for directory in self.logs.directories:
                directory.close()
        else:
            await self.logs.close()
        await self.upkeep.close()

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.partitions.find(topic, index)

    def log(self, topic: str, index: int = 0) -> Log:
        return self.partition(topic, index).log


class Nodes:
    """Several nodes, with metadata that the test decides on."""

    def __init__(self, directory: Path, count: int, **settings: str) -> None:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.nodes = {i: Node(i, directory / f"node-{i}", named, self.controller) for i in range(1, count + 1)}
        self.image = MetadataImage("cluster")
        self.configs: dict[str, LogConfig] = {}
        self.deaf: set[int] = set()
        """Nodes that currently do not hear of changes."""

    async def controller(self, request: Request) -> Any:
        """Return the controller's response to a leader."""
        if isinstance(request, HandOverLeadershipRequest):
            lifecycle = BrokerLifecycleApi(self, self.rules)  # type: ignore[arg-type]
            return await lifecycle.hand_over_leadership(context(0), request)
        assert isinstance(request, AlterPartitionRequest)
        api = AlterPartitionApi(self, Metadata(self.image), self.rules)  # type: ignore[arg-type]
        return await api.alter_partition(context(3, api_key=AlterPartitionRequest.API_KEY), request)

    def rules(self, image: MetadataImage, topic: str) -> ElectionRules:
        """Return the rules that the leaders also apply."""
        return ElectionRules(self.configs.get(topic, LogConfig()).min_insync_replicas)

    async def submit(self, decide: Callable[[MetadataImage], Decision[Any]], *, is_slow: bool = False) -> Any:
        """Decide like the controller, but never in a thread."""
        decision = decide(self.image)
        if decision.changes:
            self.change(*decision.changes)
        return decision.result

    def __getitem__(self, broker_id: int) -> Node:
        return self.nodes[broker_id]

    def change(self, *changes: Change) -> None:
        """Publish the metadata to every running node that is not in ``deaf``."""
        self.image = self.image.with_changes(changes)
        self.tell()

    def tell(self) -> None:
        for node in self.nodes.values():
            if node.is_up and node.id not in self.deaf:
                node.hear(self.image)

    async def start(self, broker_id: int) -> None:
        node = self.nodes[broker_id]
        registration = await node.start(self.image, lambda topic: self.configs.get(topic, LogConfig()))
        self.change(BrokerRegistered(registration))
        await node.partitions.until_opened()

    async def create(
        self, name: str, replicas: Sequence[int], *, partitions: int = 1, config: LogConfig | None = None
    ) -> UUID:
        if config is not None:
            self.configs[name] = config
        state = PartitionState(tuple(replicas), tuple(replicas), replicas[0])
        topic_id = new_uuid()
        self.change(TopicCreated(TopicImage(name, topic_id, (state,) * partitions)))
        for node in self.nodes.values():
            if node.is_up:
                await node.partitions.until_opened()
        return topic_id

    def fence(self, broker_id: int, *, fenced: bool) -> None:
        self.change(BrokerRegistered(replace(self.image.brokers[broker_id], fenced=fenced)))

    def configure(self, resource_type: ResourceType, name: str, **entries: str) -> None:
        """Set configuration entries, with underscores for dots."""
        named = {key.replace("_", "."): value for key, value in entries.items()}
        self.change(ConfigReplaced(ConfigResource(resource_type, name), named))

    def delete(self, name: str) -> None:
        self.change(TopicDeleted(name, self.image.topics[name].topic_id))

    def state(self, topic: str, index: int = 0) -> PartitionState:
        return self.image.topics[topic].partitions[index]

    def alter(self, topic: str, index: int = 0, **changes: object) -> None:
        """Publish a new state, with a new leader epoch if a leader is named."""
        state = self.state(topic, index)
        epoch = state.leader_epoch + ("leader" in changes)
        values: dict[str, Any] = {"leader_epoch": epoch, **changes, "partition_epoch": state.partition_epoch + 1}
        self.change(PartitionChanged(topic, index, replace(state, **values)))


@asynccontextmanager
async def nodes(directory: Path, count: int, **settings: str) -> AsyncIterator[Nodes]:
    """Run ``count`` nodes, numbered from 1. ``settings`` are broker settings with underscores for dots."""
    made = Nodes(directory, count, **settings)
    try:
        for broker_id in made.nodes:
            await made.start(broker_id)
        yield made
    finally:
        for node in made.nodes.values():
            if node.is_up:
                await node.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop run until ``condition`` holds, or the test times out."""
    while not condition():  # noqa: ASYNC110  what is waited for happens in other nodes
        await asyncio.sleep(0.002)
