"""A broker's data path without network, controller or store: metadata, partitions, purgatories, and logs in a
directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parley.broker.api.metadata import MetadataApi
from parley.broker.metadata.changes import Change, Delta, PartitionChanged, TopicCreated, TopicDeleted
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, Endpoint, PartitionState, TopicImage
from parley.broker.metrics.registry import Metrics
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.session import anonymous
from parley.protocol.codec import decode, encode
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.records.batch import build
from parley.protocol.records.control_batch import ControlMarker, ControlType, build_marker
from parley.protocol.records.record import Record
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.log import Log, Origin
from parley.storage.log_config import LogConfig
from parley.storage.log_place import LogPlace, LogSettings
from tests.support.uuids import new_uuid

BROKER, OTHER = 1, 2
NOW_MS = 1_700_000_000_000


class Logs:
    """Opens logs below a directory, like the broker's LogManager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.deleted: list[tuple[str, int]] = []
        self.unproven: dict[TopicPartition, int] = {}
        """The partition epochs at which logs were opened that would be unproven if they were new."""
        self.may_open: asyncio.Event | None = None
        """An event that must be set before a log is opened."""

    async def note_new_logs(self) -> None:
        """Do nothing: these logs have files immediately."""

    async def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: UUID,
        config: LogConfig,
        is_new: bool = True,
        unproven_since: int | None = None,
    ) -> Log:
        if self.may_open is not None:
            await self.may_open.wait()
        if unproven_since is not None:
            self.unproven[topic, partition] = unproven_since
        directory = self.directory / f"{topic}-{partition}"
        directory.mkdir(exist_ok=True)
        settings = LogSettings(config=config, now_ms=lambda: NOW_MS, random=random.Random(1))
        return Log.open(LogPlace(directory, topic, partition, topic_id), settings)

    async def cut(self, log: Log, cut: Callable[[Log], None]) -> None:
        cut(log)

    async def delete(self, topic: str, partition: int, *, topic_id: UUID | None = None) -> None:
        self.deleted.append((topic, partition))


class Bench:
    """Broker 1, and a registered broker 2 that does nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        brokers = {
            i: BrokerRegistration(i, 1, new_uuid(), (Endpoint("PLAINTEXT", "PLAINTEXT", f"host{i}", 9090 + i),))
            for i in (BROKER, OTHER)
        }
        self.metadata = Metadata(MetadataImage("test", brokers=brokers))
        self.purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
        self.tasks = TaskSet()
        self.metrics = Metrics()
        self.logs = Logs(directory)
        self.configs: dict[str, LogConfig] = {}
        self.partitions = HostedPartitions(
            BROKER,
            self.logs,  # type: ignore[arg-type]
            lambda image, topic: self.configs.get(topic, LogConfig()),
            self.purgatories,
            self.tasks,
            self.metrics,
        )
        self.metadata.subscribe(self.partitions.apply)

    def change(self, *changes: Change) -> None:
        image = self.metadata.image.with_changes(changes)
        self.metadata.apply(Delta(image.controller_epoch, image.version, changes))

    async def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: Sequence[int] = (BROKER,),
        leader: int = BROKER,
        config: LogConfig | None = None,
    ) -> UUID:
        if config is not None:
            self.configs[name] = config
        topic_id = new_uuid()
        state = PartitionState(tuple(replicas), tuple(replicas), leader)
        self.change(TopicCreated(TopicImage(name, topic_id, (state,) * partitions)))
        await self.partitions.until_opened()
        return topic_id

    @staticmethod
    async def idle() -> None:
        """Let the loop run once."""
        await asyncio.sleep(0)

    def delete(self, name: str) -> None:
        self.change(TopicDeleted(name, self.metadata.image.topics[name].topic_id))

    def alter(self, name: str, index: int = 0, **changes: Any) -> None:
        """Publish a new state of a partition. The leader epoch increases if the leader changes."""
        state = self.metadata.image.topics[name].partitions[index]
        epoch = state.leader_epoch + (1 if "leader" in changes else 0)
        new = replace(state, **{"leader_epoch": epoch, **changes}, partition_epoch=state.partition_epoch + 1)
        self.change(PartitionChanged(name, index, new))

    def partition(self, name: str, index: int = 0) -> Partition:
        return self.partitions.find(name, index)

    def write(self, name: str, count: int = 1, *, index: int = 0, size: int = 100) -> int:
        """Append a batch of ``count`` records. Returns its first offset."""
        return self.partition(name, index).append(batch(count, size=size), acks=1, now_ms=NOW_MS).first_offset

    def write_in_transaction(
        self, name: str, producer: int = 7, *, epoch: int = 0, sequence: int = 0, count: int = 1, size: int = 100
    ) -> int:
        """Append a batch of a transactional producer. Returns its first offset."""
        data = batch(
            count, size=size, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        return self.partition(name).append(data, acks=1, now_ms=NOW_MS).first_offset

    def end_transaction(self, name: str, producer: int = 7, *, epoch: int = 0, committed: bool = True) -> int:
        """Append the marker that ends a producer's transaction. Returns its offset."""
        marker = ControlMarker(ControlType.COMMIT if committed else ControlType.ABORT, 0)
        data = build_marker(marker, producer_id=producer, producer_epoch=epoch, timestamp=NOW_MS)
        return self.partition(name).append(data, acks=1, now_ms=NOW_MS, origin=Origin.COORDINATOR).first_offset


def batch(count: int = 1, *, size: int = 100, timestamp: int = NOW_MS, **header: Any) -> bytearray:
    return build([Record(i, timestamp + i, None, b"v" * size, ()) for i in range(count)], **header)


def at(seconds: float) -> FetchClock:
    """Return the clock of a follower that fetches now."""
    clock = FetchClock()
    clock.fetched(seconds)
    return clock


def context(version: int, *, client_id: str = "test", api_key: int = 1) -> RequestContext:
    return RequestContext(api_key, version, 1, client_id, ConnectedClient(anonymous("127.0.0.1", "PLAINTEXT"), 1), 0.0)


async def answered(api: MetadataApi, context: RequestContext, request: MetadataRequest) -> MetadataResponse:
    """Return the response to a Metadata request as a client decodes it."""
    response = api.metadata(context, request)
    response = response if isinstance(response, MetadataResponse) else await response
    return decode(MetadataResponse, context.api_version, encode(response, context.api_version))
