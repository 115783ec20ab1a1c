"""The replicas that this broker hosts, as the metadata assigns them.

A partition is added when the metadata lists this broker among its replicas. From then on it receives every change in
its state and to its topic's configuration. It is closed when the metadata removes it. Its log is opened in the
background. A handler that creates topics awaits ``until_opened``, so that the topic can be used immediately. A handler
that lists topics shows partitions without a log as leaderless.

A topic may be deleted, and another created with its name, while logs are being opened. So the code that opens a log
checks after each wait that the partition is still hosted, and a deletion specifies the topic id.

A new log is empty. That is correct if the cluster has just created the partition with this broker in the ISR. Otherwise
the replica may have had another log, which was deleted or lost, so the new log is ``UnsettledLogs.unproven``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

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
from parley.broker.metrics.registry import Metrics
from parley.broker.replication.partition import FixedIsr, IsrPolicy, Partition, Purgatories
from parley.broker.runtime.steps import each_of, now_or_in_turns
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

if TYPE_CHECKING:
    from parley.storage.log import Log
    from parley.storage.log_config import LogConfig
    from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

LogConfigOf: TypeAlias = "Callable[[MetadataImage, str], LogConfig]"
"""Returns the effective log configuration of a topic, from the configuration in an image."""

LOOKED_AT_IN_A_TURN = 1000
"""The number of partitions looked at before the event loop does other work."""
OPENED_IN_A_TURN = 50
"""The number of logs opened before the event loop does other work."""
REMOVED_AT_A_TIME = 50
"""The number of logs that are removed at the same time."""
_NOTHING_KNOWN = MetadataImage("")


class HostedPartitions:
    """The table of hosted replicas. Request handlers may read ``by_topic`` but must not change it."""

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
        self.is_registered: Callable[[MetadataImage], bool] = lambda image: True
        """Returns True if the controller has registered this process. Before that, the ISRs in the metadata may contain
        replicas of this broker that have lost their logs."""
        self._broker_id = broker_id
        self._logs = logs
        self._config_of = config_of
        self._purgatories = purgatories
        self._tasks = tasks
        self._metrics = metrics
        self._image: MetadataImage | None = None
        self._may_lead = True  # whether the latest image contains the registration of this process
        self._configs: tuple[MetadataImage | None, dict[str, LogConfig]] = (None, {})
        self._isr_policy: IsrPolicy = FixedIsr()
        self._when_lost: list[Callable[[], None]] = []
        self._when_opened: list[Callable[[Partition], None]] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._topics_opening: dict[str, int] = {}  # topic -> how many tasks open its logs
        self._removals: dict[str, set[asyncio.Task[None]]] = {}  # by topic
        self._truncations: dict[Partition, asyncio.Future[None]] = {}  # done when the truncation has ended

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_topic.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    @property
    def image(self) -> MetadataImage:
        """The metadata image that the partitions applied last."""
        return self._image or _NOTHING_KNOWN

    def set_isr_policy(self, policy: IsrPolicy) -> None:
        """Set the policy that decides which followers are in sync. Call this before there are any partitions."""
        self._isr_policy = policy

    def call_when_opened(self, opened: Callable[[Partition], None]) -> None:
        """From now on, call ``opened(partition)`` whenever a partition's log has been opened or truncated."""
        self._when_opened.append(opened)

    def _notify_opened(self, partition: Partition) -> None:
        for opened in self._when_opened:
            opened(partition)

    def hosts(self, partition: Partition) -> bool:
        """Return True while this broker hosts the partition, that is, until it is removed."""
        return self.by_topic.get(partition.topic, {}).get(partition.index) is partition

    def wants(self, log: Log) -> bool:
        """Return True if the log belongs to a hosted replica. A log without a topic id matches by its name."""
        partition = self.by_topic.get(log.topic, {}).get(log.partition)
        return partition is not None and log.topic_id in (None, partition.topic_id)

    def was_deleted(self, topic_id: UUID) -> bool:
        """Return True if the cluster remembers that it deleted this topic."""
        return self._image is not None and topic_id in self._image.deleted_topics

    def find(self, topic: str, index: int) -> Partition:
        """Return a hosted replica.

        Raises NOT_LEADER_OR_FOLLOWER if only other brokers host the partition, or UNKNOWN_TOPIC_OR_PARTITION if no
        broker does.
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
        """Start and stop hosting partitions, and update their states and configurations, as the metadata has changed.
        Subscribe this to the metadata."""
        is_new = self._image is not None  # partitions of the first image may already have logs on disk
        creates_topics = any(isinstance(change, TopicCreated) for change in delta.changes)
        known_deleted = frozenset(self.image.deleted_topics if creates_topics else ())
        self._image = image
        self._may_lead = self._broker_id not in image.brokers or self.is_registered(image)
        added: dict[Partition, bool] = {}  # True for a partition that the cluster has just created
        reconfigured: dict[str, None] = {}
        for change in delta.changes:
            match change:
                case TopicCreated(topic):
                    states = enumerate(topic.partitions)
                    hosted = self._host(topic.name, topic.topic_id, states)
                    added |= dict.fromkeys(hosted, topic.topic_id not in known_deleted)
                case PartitionsAdded(name, states):
                    topic = image.topics[name]
                    first = len(topic.partitions) - len(states)
                    added |= dict.fromkeys(self._host(name, topic.topic_id, enumerate(states, first)), True)
                case PartitionChanged(name, index, state):
                    added |= dict.fromkeys(self._change(name, index, state, delta.continues_history), False)
                case TopicDeleted(name, topic_id):
                    was_decided = delta.continues_history or topic_id in image.deleted_topics
                    self._drop_topic(name, topic_id, is_stray=not was_decided)
                case BrokerRegistered(broker):
                    self._broker_changed(broker.broker_id)
                case ConfigReplaced(resource) if resource.type is ResourceType.TOPIC:
                    reconfigured[resource.name] = None
                case ConfigReplaced(resource) if resource.type is ResourceType.BROKER:
                    reconfigured |= dict.fromkeys(self.by_topic)
        self._reconfigure(reconfigured)
        if added:
            self._start_opening(added, is_new)

    def _broker_changed(self, broker_id: int) -> None:
        """React to a broker's changed registration in each partition that it follows: it may have become eligible for
        the ISR, and the low watermark may have moved. If there are many partitions, this takes several turns of the
        event loop."""

        def look_at(partition: Partition) -> None:
            if broker_id in partition.followers.progress and self.hosts(partition):
                if partition.is_open and broker_id not in partition.state.isr:
                    self._isr_policy.outsider_changed(partition, broker_id)
                partition.notify_low_watermark()

        rest = now_or_in_turns(each_of(list(self), LOOKED_AT_IN_A_TURN, look_at))
        if rest is not None:
            self._tasks.start(rest, name=f"partitions that broker {broker_id} follows")

    def _start_opening(self, added: dict[Partition, bool], is_new: bool) -> None:
        """Open the logs of partitions in the background."""
        topics, by_topic = {partition.topic for partition in added}, self._topics_opening
        for topic in topics:
            by_topic[topic] = by_topic.get(topic, 0) + 1
        opening = self._tasks.start(self._open(added, is_new), name="opening of new partitions")
        self._opening.add(opening)

        def ended(task: asyncio.Task[None]) -> None:
            self._opening.discard(task)
            for topic in topics:
                by_topic[topic] -= 1
                if not by_topic[topic]:
                    del by_topic[topic]

        opening.add_done_callback(ended)

    def _host(self, topic: str, topic_id: UUID, states: Iterable[tuple[int, PartitionState]]) -> list[Partition]:
        """Start hosting a topic's partitions that are assigned to this broker, and return them."""
        hosted = []
        for index, decided in states:
            state = self._under_own_registration(decided)
            if self._broker_id in state.replicas:
                partition = Partition(
                    topic,
                    topic_id,
                    index,
                    broker_id=self._broker_id,
                    state=state,
                    purgatories=self._purgatories,
                    counters=self._metrics.topic(topic),
                    isr_policy=self._isr_policy,
                )
                self.by_topic.setdefault(topic, {})[index] = partition
                hosted.append(partition)
        return hosted

    def _change(self, topic: str, index: int, state: PartitionState, was_decided: bool) -> list[Partition]:
        assert self._image is not None
        partition = self.by_topic.get(topic, {}).get(index)
        if partition is None:
            return self._host(topic, self._image.topics[topic].topic_id, [(index, state)])
        if self._broker_id in state.replicas:
            partition.change(self._under_own_registration(state))
        else:
            self._drop(topic, [self.by_topic[topic].pop(index)], is_stray=not was_decided)
            if not self.by_topic[topic]:
                del self.by_topic[topic]
                self._metrics.forget_topic(topic)
        return []

    def _under_own_registration(self, state: PartitionState) -> PartitionState:
        """Return the state without its leader, if that is an earlier process of this broker.

        This process may have another log: the disks may have been lost or exchanged. If it led under the epoch of its
        predecessor, that epoch would start at two offsets, and followers could not find where logs diverge. The
        registration of this process gives all these partitions new leader epochs.
        """
        return state if self._may_lead or state.leader != self._broker_id else state.without_leader()

    def _drop_topic(self, topic: str, topic_id: UUID, *, is_stray: bool) -> None:
        partitions = self.by_topic.get(topic, {})
        if any(partition.topic_id == topic_id for partition in partitions.values()):
            del self.by_topic[topic]
            self._metrics.forget_topic(topic)
            self._drop(topic, list(partitions.values()), is_stray=is_stray)

    def _drop(self, topic: str, partitions: list[Partition], *, is_stray: bool) -> None:
        """Stop hosting partitions. Their logs are deleted: they are renamed soon, and their files are removed later.

        With ``is_stray`` the logs are kept under other names, because the cluster may not have decided to remove them:
        the coordination store may have been rolled back to an older state.
        """
        for partition in partitions:
            partition.close()
        removal = self._tasks.start(
            self._remove(partitions, is_stray), name=f"removal of {len(partitions)} logs of {topic}"
        )
        self._removals.setdefault(topic, set()).add(removal)
        removal.add_done_callback(partial(self._removed, topic))

    def _removed(self, topic: str, removal: asyncio.Task[None]) -> None:
        self._removals[topic].discard(removal)
        if not self._removals[topic]:
            del self._removals[topic]

    async def _remove(self, partitions: list[Partition], is_stray: bool) -> None:
        """Remove the logs, a few at a time: the event loop does other work in between."""
        remove = self._set_aside if is_stray else self._delete
        for first in range(0, len(partitions), REMOVED_AT_A_TIME):
            some = partitions[first : first + REMOVED_AT_A_TIME]
            await asyncio.wait([self._tasks.start(remove(each), name=f"removal of {each!r}") for each in some])

    async def _set_aside(self, partition: Partition) -> None:
        await self._logs.strays.set_aside(partition.topic, partition.index, topic_id=partition.topic_id)

    async def _delete(self, partition: Partition) -> None:
        try:
            await self._logs.delete(partition.topic, partition.index, topic_id=partition.topic_id)
        except KafkaError as error:
            facts = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
            _log.error("failed to delete a log", extra=facts)

    def _reconfigure(self, topics: Iterable[str]) -> None:
        for topic in topics:
            partitions = self.by_topic.get(topic)
            if partitions:
                config = self._config(topic)
                for partition in partitions.values():
                    if partition.is_open:
                        partition.log.config = config
                        partition.config_changed()

    def _config(self, topic: str) -> LogConfig:
        """Return the topic's log configuration, which is created once for all its partitions."""
        assert self._image is not None
        if self._configs[0] is not self._image:
            self._configs = (self._image, {})
        configs = self._configs[1]
        if topic not in configs:
            configs[topic] = self._config_of(self._image, topic)
        return configs[topic]

    def lose_logs(self, logs: Iterable[Log]) -> None:
        """Make the partitions of these logs unusable, because their log directory has failed. The files are not
        touched."""
        for log in logs:
            partition = self.by_topic.get(log.topic, {}).get(log.partition)
            if partition is not None and partition.topic_id == log.topic_id:
                partition.lose_log()
        self._notify_lost()

    def call_when_lost(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever partitions have lost their logs, or their logs cannot be opened."""
        self._when_lost.append(callback)

    def _notify_lost(self) -> None:
        for callback in self._when_lost:
            callback()

    async def truncate(self, partition: Partition, truncate: Callable[[Log], None]) -> None:
        """Run ``truncate`` in a thread, to remove the end of a follower's log, and write the recovery point.

        When this returns, the partition's role may have changed. Raises KafkaError: KAFKA_STORAGE_ERROR or
        CORRUPT_MESSAGE if the log cannot be truncated, and the errors of ``Partition.log``.
        """
        log = partition.log
        partition.begin_truncation()
        ended = self._truncations[partition] = asyncio.get_running_loop().create_future()
        try:
            await self._logs.cut(log, truncate)
        finally:
            if self._truncations.get(partition) is ended:
                del self._truncations[partition]
            ended.set_result(None)
            if self.hosts(partition):
                partition.end_truncation()
                self._notify_opened(partition)  # the leader may have changed

    async def until_truncated(self, partition: Partition) -> None:
        """Wait until no thread is truncating the partition's log. Meanwhile, this broker may have become its leader."""
        while partition in self._truncations:
            await asyncio.wait((self._truncations[partition],))

    async def flush(self, partition: Partition) -> None:
        """Flush a partition's log in a thread. Raises KafkaError (KAFKA_STORAGE_ERROR) if that fails, and the errors of
        ``Partition.log``."""
        log = partition.log
        await self._logs.run(self._logs.directory_of(log), log.flush)

    @property
    def is_opening(self) -> bool:
        """True while the logs of new partitions are being opened."""
        return bool(self._opening)

    def opens_logs_of(self, topic: str) -> bool:
        """Return True while logs of the topic are being opened."""
        return topic in self._topics_opening

    def lacks_log(self, topic: str, index: int) -> bool:
        """Return True if this broker leads the partition, but has not opened its log yet."""
        if topic not in self._topics_opening:
            return False
        partition = self.by_topic.get(topic, {}).get(index)
        return partition is not None and partition.is_leader and not partition.is_open and not partition.has_failed

    async def until_opened(self, within_s: float | None = None) -> None:
        """Wait until the log of every known partition has been opened or has failed to open, but at most ``within_s``
        seconds; None means without a limit. Does not raise when the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._opening:
                    await asyncio.wait(self._opening)

    async def _open(self, partitions: dict[Partition, bool], is_new: bool) -> None:
        """Open the logs of partitions. The values of ``partitions`` are True for partitions that the cluster has just
        created.

        Opening a new log does not wait for files, so the loop yields explicitly to other work. A partition that is not
        new gets no log while a log directory that may contain its log is offline.
        """
        for number, (partition, is_created) in enumerate(partitions.items(), 1):
            if self.hosts(partition):
                await self._open_one(partition, is_created, is_new)
            if not number % OPENED_IN_A_TURN:
                await asyncio.sleep(0)
        await self._logs.note_new_logs()

    async def _open_one(self, partition: Partition, is_created: bool, is_new: bool) -> None:
        image = self._image
        is_proven = is_created and self._broker_id in partition.state.isr and self.is_registered(self.image)
        unproven_since = None if is_proven else partition.state.partition_epoch
        try:
            log = await self._log_of(partition, is_new, unproven_since)
        except KafkaError as error:
            partition.lose_log()
            facts = {"topic": partition.topic, "partition": partition.index, "reason": str(error)}
            _log.error("failed to open a log", extra=facts)
            self._notify_lost()
            return
        if log is None:
            return
        if self.hosts(partition):
            if self._image is not image:
                log.config = self._config(partition.topic)  # the configuration may have changed
            partition.opened(log)
            self._notify_opened(partition)
        else:
            await self._delete(partition)

    async def _log_of(self, partition: Partition, is_new: bool, unproven_since: int | None) -> Log | None:
        """Return a partition's log, or None if the partition is no longer hosted.

        The log of another topic with the same name is set aside. It is deleted only if the cluster remembers that it
        deleted that topic: an altered file, or a store that was rolled back, must not cost the log.
        """
        topic, index = partition.topic, partition.index
        while self.hosts(partition):
            if topic in self._removals:  # an earlier topic of that name has been deleted
                await asyncio.wait(self._removals[topic])
            try:
                return await self._logs.get_or_create(
                    topic,
                    index,
                    topic_id=partition.topic_id,
                    config=self._config(topic),
                    is_new=is_new,
                    unproven_since=unproven_since,
                )
            except KafkaError as error:
                if error.code != ErrorCode.INCONSISTENT_TOPIC_ID:
                    raise
            other = self._logs.get(topic, index)
            if other is not None and other.topic_id is not None and self.hosts(partition):
                await self._logs.strays.set_aside(topic, index, topic_id=other.topic_id)
        return None
