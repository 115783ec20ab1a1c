"""Assigns followed partitions to fetchers, as the metadata requires.

Each leader is followed on ``num.replica.fetchers`` connections, and its partitions are spread over them. A fetcher
starts with its first partition and stops with its last. A partition is assigned again when its leader or leader epoch
changes, and only then. A change in the ISR has no effect.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metrics.registry import Labeled
from parley.broker.network.peers import Peers
from parley.broker.replication.fetcher import Fetcher, FetcherDependencies
from parley.broker.replication.follower_fetch_session import Key
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.throttle import follower_throttle
from parley.broker.replication.truncation_execution import Truncations
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.uuids import UUID

FETCHERS_MAX: Final = 64
"""The maximum number of connections to a leader, even if more are configured. A mistyped value could otherwise open one
connection for each partition."""


def fetchers_per_leader(config: BrokerConfig) -> int:
    """Return the number of connections on which each leader is followed."""
    return min(config.num_replica_fetchers, FETCHERS_MAX)


class ReplicaFetchers:
    """The fetchers of a broker. Subscribe ``apply`` to the metadata after ``HostedPartitions.apply``."""

    def __init__(
        self,
        broker_id: int,
        partitions: HostedPartitions,
        peers: Peers,
        config: DynamicConfig,
        tasks: TaskSet,
        *,
        epoch: Callable[[], int],
        leave_isr: Callable[[Partition], Awaitable[None]],
        rng: Random,
    ) -> None:
        """``epoch`` returns this broker's epoch, by which leaders recognize the fetches of an earlier run.
        ``leave_isr`` removes a replica from the ISR, the ELR and the last known ELR (``Healing.leave_isr``)."""
        self._partitions = partitions
        self._per_leader = fetchers_per_leader(config())
        self.truncations = Truncations(partitions, config, leave_isr)
        self._dependencies = FetcherDependencies(
            broker_id=broker_id,
            partitions=partitions,
            peers=peers,
            config=config,
            tasks=tasks,
            epoch=epoch,
            rng=rng,
            throttle=follower_throttle(broker_id, config, asyncio.get_running_loop().time),
            truncations=self.truncations,
        )
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._assigned: dict[Key, tuple[Fetcher, int]] = {}  # with the leader epoch
        self._closed = False

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Assign the partitions that have changed in the metadata to fetchers, and let fetchers retry immediately if
        their leader or this broker has registered."""
        for change in delta.changes:
            match change:
                case PartitionChanged(topic, index):
                    self._reassign(image.topics[topic].topic_id, topic, index)
                case TopicCreated(topic_image):
                    for index in self._partitions.by_topic.get(topic_image.name, ()):
                        self._reassign(topic_image.topic_id, topic_image.name, index)
                case TopicDeleted(_, topic_id):
                    for key in [key for key in self._assigned if key[0] == topic_id]:
                        self._leave(key)
                case BrokerRegistered(broker):
                    for (leader, _), fetcher in self._fetchers.items():
                        if broker.broker_id in (leader, self._dependencies.broker_id):
                            fetcher.wake()
                case PartitionsAdded() | _:
                    pass  # assigned once their logs are open
        self._drop_idle()

    def _reassign(self, topic_id: UUID, topic: str, index: int) -> None:
        partition = self._partitions.by_topic.get(topic, {}).get(index)
        if partition is not None and partition.topic_id == topic_id:
            self.assign(partition)
        else:
            self._leave((topic_id, index))

    def assign(self, partition: Partition) -> None:
        """Assign a partition to the fetcher to which it belongs now. If this broker does not or cannot follow it now
        (for example, its log is not open), stop fetching it."""
        key = (partition.topic_id, partition.index)
        fetcher, epoch = self._assigned.get(key, (None, -1))
        leader = partition.state.leader
        if partition.is_truncating and key not in self._assigned:
            return  # assigned afterwards: until then, it has no fetch position
        if self._closed or leader < 0 or partition.is_leader or not partition.is_open or partition.is_outdated:
            self._leave(key)
            return
        if fetcher is not None and fetcher.leader == leader and epoch == partition.leader_epoch:
            return
        self._leave(key)
        number = (zlib.crc32(partition.topic.encode()) + partition.index) % self._per_leader
        fetcher = self._fetchers.get((leader, number))
        if fetcher is None:
            fetcher = self._fetchers[leader, number] = Fetcher(leader, number, self._dependencies)
            fetcher.start()
        self._assigned[key] = (fetcher, partition.leader_epoch)
        fetcher.follow(partition)

    def _leave(self, key: Key) -> None:
        fetcher, _ = self._assigned.pop(key, (None, -1))
        if fetcher is not None:
            fetcher.leave(key)

    def _drop_idle(self) -> None:
        for at in [at for at, fetcher in self._fetchers.items() if not fetcher]:
            self._fetchers.pop(at).stop()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Apply a change to ``num.replica.fetchers``: stop all fetchers, and assign all partitions again."""
        if (per_leader := fetchers_per_leader(config)) != self._per_leader:
            self._per_leader = per_leader
            self._stop_all()
            for partition in self._partitions:
                self.assign(partition)

    def _stop_all(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.stop()
        self._fetchers.clear()
        self._assigned.clear()

    def metrics(self) -> Iterable[Labeled]:
        """Yield the metrics of every fetcher, labeled with its leader and number."""
        for (leader, number), fetcher in self._fetchers.items():
            yield (str(leader), str(number)), fetcher.metrics()

    async def close(self) -> None:
        """Stop following all leaders."""
        self._closed = True
        self._stop_all()
