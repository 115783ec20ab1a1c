"""The replicas this broker hosts, kept as the metadata says.

A partition appears here as soon as the metadata names this broker among its replicas, is given every change of its
state and its topic's configuration, and is closed when it goes away. Its log is opened in the background; whoever
answers that a topic was made waits for :meth:`Partitions.opened` first, so that the topic can be used at once, and
whoever lists topics says that those without a log have no leader yet.

A topic may be deleted, and another made of its name, while logs are being opened. So whoever opens looks, after each
wait, whether its partition is hosted still; and a deletion names the topic, not to hit the log of the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from parley.broker.metadata.changes import (
    BrokerRegistered,
    ConfigReplaced,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, ResourceType
from parley.broker.metrics import Metrics
from parley.broker.replication.partition import FixedIsr, IsrPolicy, Partition, Purgatories
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from parley.storage.log import Log
    from parley.storage.log_config import LogConfig
    from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

LogConfigOf: TypeAlias = "Callable[[MetadataImage, str], LogConfig]"
"""The effective log configuration of a topic under an image."""

OPENED_AT_ONCE = 64
"""They share the syncs of their directory's names."""
_NOTHING_KNOWN = MetadataImage("")


class HostedPartitions:
    """The table of hosted replicas. ``by_topic`` may be read, not written, by request handlers."""

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        config_of: LogConfigOf,
        purgatories: Purgatories,
        tasks: TaskSet,
        metrics: Metrics,
    ) -> None:
        self.by_topic: dict[str, dict[int, Partition]] = {}
        self._broker_id = broker_id
        self._logs = logs
        self._config_of = config_of
        self._purgatories = purgatories
        self._tasks = tasks
        self._metrics = metrics
        self._image: MetadataImage | None = None
        self._configs: tuple[MetadataImage | None, dict[str, LogConfig]] = (None, {})
        self._isr_keeper: IsrPolicy = FixedIsr()
        self._when_lost: list[Callable[[], None]] = []
        self._when_opened: list[Callable[[Partition], None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_topic.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    @property
    def image(self) -> MetadataImage:
        """The metadata as the partitions know them."""
        return self._image or _NOTHING_KNOWN

    def keep_in_sync(self, keeper: IsrPolicy) -> None:
        """Let ``keeper`` decide which followers are in sync; to be called before there are partitions."""
        self._isr_keeper = keeper

    def call_when_opened(self, opened: Callable[[Partition], None]) -> None:
        """Call ``opened(partition)`` whenever a partition has been given its log, or has it back whole, from now on."""
        self._when_opened.append(opened)

    def _tell_opened(self, partition: Partition) -> None:
        for opened in self._when_opened:
            opened(partition)

    def _hosts(self, partition: Partition) -> bool:
        return self.by_topic.get(partition.topic, {}).get(partition.index) is partition

    def wants(self, log: Log) -> bool:
        """Whether the log is that of a replica hosted here; one that does not say its topic's id may be."""
        partition = self.by_topic.get(log.topic, {}).get(log.partition)
        return partition is not None and log.topic_id in (None, partition.topic_id)

    def was_deleted(self, topic_id: UUID) -> bool:
        """True if the cluster remembers that it deleted this topic."""
        return self._image is not None and topic_id in self._image.deleted_topics

    def find(self, topic: str, index: int) -> Partition:
        """The replica hosted here.

        Raises NOT_LEADER_OR_FOLLOWER if other brokers host the partition, UNKNOWN_TOPIC_OR_PARTITION if none does.
        """
        partitions = self.by_topic.get(topic)
        if partitions is not None:
            partition = partitions.get(index)
            if partition is not None:
                return partition
        if self._image is not None and self._image.partition(topic, index) is not None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Take over a change of the metadata (a subscriber of :class:`parley.broker.metadata.current.Metadata`)."""
        is_new = self._image is not None  # what the first image names may have been here before
        self._image = image
        added: list[Partition] = []
        for change in delta.changes:
            match change:
                case TopicCreated(topic):
                    states = enumerate(topic.partitions)
                    added += self._host(topic.name, topic.topic_id, states)
                case PartitionsAdded(name, states):
                    topic = image.topics[name]
                    first = len(topic.partitions) - len(states)
                    added += self._host(name, topic.topic_id, enumerate(states, first))
                case PartitionChanged(name, index, state):
                    added += self._change(name, index, state)
                case TopicDeleted(name, topic_id):
                    self._drop_topic(name, topic_id)
                case BrokerRegistered(broker):
                    self._isr_keeper.broker_changed(broker.broker_id)
                    for partition in self:
                        if broker.broker_id in partition.followers:
                            partition.tell_low_watermark()
                case ConfigReplaced(resource):
                    self._reconfigure([resource.name] if resource.type == ResourceType.TOPIC else list(self.by_topic))
        if added:
            opening = self._tasks.start(self._open(added, is_new), name="opening of new partitions")
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _host(self, topic: str, topic_id: UUID, states: Iterable[tuple[int, PartitionState]]) -> list[Partition]:
        """Begin to host those of a topic's partitions that have a replica here."""
        hosted = []
        for index, state in states:
            if self._broker_id in state.replicas:
                partition = Partition(
                    topic,
                    topic_id,
                    index,
                    broker_id=self._broker_id,
                    state=state,
                    purgatories=self._purgatories,
                    counters=self._metrics.topic(topic),
                    isr_keeper=self._isr_keeper,
                )
                self.by_topic.setdefault(topic, {})[index] = partition
                hosted.append(partition)
        return hosted

    def _change(self, topic: str, index: int, state: PartitionState) -> list[Partition]:
        assert self._image is not None
        partition = self.by_topic.get(topic, {}).get(index)
        if partition is None:
            return self._host(topic, self._image.topics[topic].topic_id, [(index, state)])
        if self._broker_id in state.replicas:
            partition.change(state)
        else:
            self._drop(self.by_topic[topic].pop(index))
            if not self.by_topic[topic]:
                del self.by_topic[topic]
                self._metrics.forget_topic(topic)
        return []

    def _drop_topic(self, topic: str, topic_id: UUID) -> None:
        partitions = self.by_topic.get(topic, {})
        if any(partition.topic_id == topic_id for partition in partitions.values()):
            del self.by_topic[topic]
            self._metrics.forget_topic(topic)
            for partition in partitions.values():
                self._drop(partition)

    def _drop(self, partition: Partition) -> None:
        """Stop to host a partition: its log is deleted (by name at once, its files later)."""
        partition.close()
        self._tasks.start(self._delete(partition), name=f"deletion of {partition!r}")

    async def _delete(self, partition: Partition) -> None:
        try:
            await self._logs.delete(partition.topic, partition.index, topic_id=partition.topic_id)
        except KafkaError as error:
            facts = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
            _log.error("a log cannot be deleted", extra=facts)

    def _reconfigure(self, topics: Iterable[str]) -> None:
        for topic in topics:
            partitions = self.by_topic.get(topic)
            if partitions:
                config = self._config(topic)
                for partition in partitions.values():
                    if partition.is_open:
                        partition.log.config = config
                        partition.reconsider()

    def _config(self, topic: str) -> LogConfig:
        """The topic's configuration; made once for all its partitions."""
        assert self._image is not None
        if self._configs[0] is not self._image:
            self._configs = (self._image, {})
        configs = self._configs[1]
        if topic not in configs:
            configs[topic] = self._config_of(self._image, topic)
        return configs[topic]

    def lose_logs(self, logs: Iterable[Log]) -> None:
        """These logs' directory has failed."""
        for log in logs:
            partition = self.by_topic.get(log.topic, {}).get(log.partition)
            if partition is not None and partition.topic_id == log.topic_id:
                partition.lose_log()
        self._tell_lost()

    def call_when_lost(self, callback: Callable[[], None]) -> None:
        """Call back whenever partitions have lost their logs, or cannot get them."""
        self._when_lost.append(callback)

    def _tell_lost(self) -> None:
        for callback in self._when_lost:
            callback()

    async def cut(self, partition: Partition, cut: Callable[[Log], None]) -> None:
        """Let ``cut`` remove the end of a follower's log, in a thread, and write down where the log is on disk now.

        Raises :class:`KafkaError`: KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE. The partition's role may have changed then.
        """
        log = partition.log
        partition.begin_cut()
        try:
            await self._logs.cut(log, cut)
        finally:
            if self._hosts(partition):
                partition.end_cut()
                self._tell_opened(partition)  # its leader may be another now

    async def flush(self, partition: Partition) -> None:
        """Bring a log to disk, in a thread. Raises :class:`KafkaError` KAFKA_STORAGE_ERROR."""
        log = partition.log
        await self._logs.run(self._logs.directory_of(log), log.flush)

    def lacks_log(self, topic: str, index: int) -> bool:
        """Whether this broker leads the partition, but its log is being opened yet."""
        if not self._opening:
            return False
        partition = self.by_topic.get(topic, {}).get(index)
        return partition is not None and partition.is_leader and not partition.is_open and not partition.has_failed

    async def opened(self, within_s: float | None = None) -> None:
        """Wait until every partition known by now has its log, or has failed to get it; at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._opening:
                    await asyncio.wait(self._opening)

    async def _open(self, partitions: list[Partition], is_new: bool) -> None:
        """Give partitions their logs, several at a time: most of the work is waiting for the disk.

        Those that are not new get none while a log directory is offline that may have it.
        """
        waiting = iter(partitions)

        async def worker() -> None:
            for partition in waiting:
                if self._hosts(partition):
                    await self._open_one(partition, is_new)

        await asyncio.gather(*(worker() for _ in range(min(OPENED_AT_ONCE, len(partitions)))))

    async def _open_one(self, partition: Partition, is_new: bool) -> None:
        image = self._image
        try:
            log = await self._log_of(partition, is_new)
        except KafkaError as error:
            partition.lose_log()
            facts = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
            _log.error("a log cannot be opened", extra=facts)
            self._tell_lost()
            return
        if log is None:
            return
        if self._hosts(partition):
            if self._image is not image:
                log.config = self._config(partition.topic)  # it may have changed meanwhile
            partition.opened(log)
            self._tell_opened(partition)
        else:
            await self._delete(partition)

    async def _log_of(self, partition: Partition, is_new: bool) -> Log | None:
        """The log of a partition, None if that is no longer hosted; one of an earlier topic of its name gives way."""
        topic, index = partition.topic, partition.index
        while self._hosts(partition):
            try:
                return await self._logs.get_or_create(
                    topic, index, topic_id=partition.topic_id, config=self._config(topic), is_new=is_new
                )
            except KafkaError as error:
                if error.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                    raise
            other = self._logs.get(topic, index)
            if other is not None and self._hosts(partition):
                _log.warning("the log of a deleted topic gives way", extra={"topic": topic, "partition": index})
                await self._logs.delete(topic, index, topic_id=other.topic_id)
        return None
