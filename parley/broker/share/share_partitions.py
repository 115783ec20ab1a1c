"""The share partitions that this broker leads.

A share partition is loaded when a member of its group first fetches from it. It is dropped when the partition's leader
epoch ends, when its state was replaced, or when the last share session of its group ends. The number of share
partitions is therefore limited by the share sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parley.broker.coordinators.share_state.persister import Persister
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.metrics.catalogue.share_groups import ShareGroupMetrics
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.broker.share.leading import LedSharePartition
from parley.broker.share.settings import SettingsOf
from parley.protocol.errors import ErrorCode, KafkaError


class SharePartitions:
    """The share partitions of one broker, by group."""

    def __init__(
        self,
        persister: Persister,
        settings_of: SettingsOf,
        fetches: Purgatory,
        tasks: TaskSet,
        *,
        wall_ms: Callable[[], int],
        threads: Threads = LOOP_THREADS,
        metrics: ShareGroupMetrics | None = None,
    ) -> None:
        """``fetches`` must be the purgatory that is notified when records are appended to partitions."""
        self.settings_of = settings_of
        self.waiting = Purgatory()
        """The waiting share fetches, by share partition."""
        self.metrics = metrics or ShareGroupMetrics()
        self._persister = persister
        self._fetches = fetches
        self._tasks = tasks
        self._wall_ms = wall_ms
        self._threads = threads
        self._by_group: dict[str, dict[SharePartitionKey, LedSharePartition]] = {}

    def __iter__(self) -> Iterator[LedSharePartition]:
        for led in self._by_group.values():
            yield from led.values()

    def measured(self) -> ShareGroupMetrics:
        """Return the metrics, after updating the gauges."""
        metrics, led = self.metrics, [each for each in self if each.is_active]
        metrics.partitions = len(led)
        metrics.in_flight = sum(each.share.in_flight for each in led)
        metrics.in_flight_batches = sum(each.share.in_flight_batches for each in led)
        metrics.waiting = self.waiting.waiting
        return metrics

    def get(self, key: SharePartitionKey) -> LedSharePartition | None:
        """Return the share partition if it is in memory, else None."""
        return self._by_group.get(key.group_id, {}).get(key)

    def of(self, group_id: str, partition: Partition) -> LedSharePartition:
        """Return a share partition, and start loading it if it is not in memory.

        Raises the errors of ``Partition.check_leader`` if this broker does not lead the partition.
        """
        partition.check_leader()
        key = SharePartitionKey(group_id, partition.topic_id, partition.index)
        led = self.get(key)
        if led is not None and (led.partition is not partition or led.leader_epoch != partition.leader_epoch):
            led.end(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            led = None
        if led is None:
            return self._begin(key, partition)
        led.use()
        return led

    def _begin(self, key: SharePartitionKey, partition: Partition) -> LedSharePartition:
        led = LedSharePartition(
            key,
            partition,
            persister=self._persister,
            settings_of=self.settings_of,
            share_fetches=self.waiting,
            tasks=self._tasks,
            threads=self._threads,
            wall_ms=self._wall_ms,
            metrics=self.metrics,
            on_ended=self._ended,
        )
        self._by_group.setdefault(key.group_id, {})[key] = led
        self._fetches.subscribe(partition, led)
        return led

    def _ended(self, led: LedSharePartition) -> None:
        self._fetches.unsubscribe(led.partition, led)
        of_group = self._by_group.get(led.key.group_id, {})
        if of_group.get(led.key) is led:
            del of_group[led.key]
            if not of_group:
                del self._by_group[led.key.group_id]

    def of_group(self, group_id: str) -> list[LedSharePartition]:
        """Return the share partitions of a group that are in memory."""
        return list(self._by_group.get(group_id, {}).values())
