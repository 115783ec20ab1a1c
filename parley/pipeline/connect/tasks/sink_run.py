"""Runs one sink task: from its partitions to its ``put``, and to the commit of its offsets.

Rules:

1. One thread calls ``begin``, then ``step`` repeatedly, and ``finish`` at the end. Nothing here starts threads, or
   waits longer than a step may.
2. A partition's number decides its task, regardless of the number of workers (``share``). A new partition goes to one
   task and moves no other.
3. A position is committed only after ``pre_commit`` has confirmed that the target has everything before it. If that
   fails, the task returns to the committed position and gets the records again, including a batch that waits for
   another ``put``.
4. An ``ExactlyOnceSinkTask`` must return its positions whenever it gets partitions, and after it failed to put a range.
   Until then, nothing is put. For such a task, the group's offsets are only informative.
5. The guard is checked before each put.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from parley.pipeline.client.cluster import EARLIEST, LATEST, Cluster
from parley.pipeline.client.decode import BadBatch
from parley.pipeline.client.fetching import Fetched, OffsetOutOfRange, TopicPartition
from parley.pipeline.connect import groups
from parley.pipeline.connect.connector import ErrantRecordReporter, ExactlyOnceSinkTask, OffsetRange, SinkTask
from parley.pipeline.connect.connector_config import subscribed
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord
from parley.pipeline.connect.tasks.conversion import Conversion, read_rows
from parley.pipeline.connect.tasks.feed import BUFFER_BYTES, Feed, Inbox, Subscription
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.spec import ClientSettings, TaskSpec
from parley.pipeline.connect.tasks.tolerance import LeftOut, Raw, Stage, Tolerance
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.metadata import MetadataResponse

_RETRY_MS: Final = 1_000
_LOOK_AGAIN_MS: Final = 10_000
"""How often the topics' partitions are looked up."""
_LOOK_FOR_MISSING_MS: Final = 1_000
_POLL_RECORDS: Final = 500
_log = logging.getLogger(__name__)


def share(partitions: Iterable[TopicPartition], task: int, tasks: int) -> set[TopicPartition]:
    """Return the partitions that belong to task number ``task`` of ``tasks``."""
    return {one for one in partitions if (zlib.crc32(one.topic.encode()) + one.partition) % tasks == task}


@dataclass(slots=True)
class _Held:
    """A partition of the task, and how far its records have been fetched, put and committed."""

    partition: TopicPartition
    subscription: Subscription
    position: int
    """The offset after the last record that was put."""
    committed: int
    rows: deque[Raw] = field(default_factory=deque)
    end: int = 0
    """The offset after the records in ``rows``."""
    owed: deque[tuple[int, int]] = field(default_factory=deque)
    """The fetched pieces that have not been put yet: the end of each, and its size in bytes."""
    since_ms: int = 0
    """The time at which the first of the waiting records in ``rows`` arrived."""
    is_paused: bool = False
    is_in_doubt: bool = False
    """True while an exactly-once task must first return the position in its target (``committed``)."""


class _Batch(NamedTuple):
    """Records to put, and for each partition the position after they have been put."""

    records: list[SinkRecord]
    ends: dict[TopicPartition, int]


class SinkContext:
    """The runtime's services for a sink task. See ``parley.pipeline.connect.connector.SinkTaskContext``."""

    def __init__(self, configs: Mapping[str, str], errant_records: ErrantRecordReporter | None) -> None:
        self.configs = configs
        self.errant_records = errant_records
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.sought: dict[TopicPartition, int] = {}
        self.retry_ms: int | None = None
        self.paused: set[TopicPartition] = set()
        self.commit_requested = False

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.sought.update(offsets)

    def timeout(self, ms: int) -> None:
        self.retry_ms = ms

    def pause(self, *partitions: TopicPartition) -> None:
        self.paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self.paused.difference_update(partitions)

    def request_commit(self) -> None:
        self.commit_requested = True


class SinkRun:
    """Runs a sink task. Setting ``tolerance.stopping`` ends a pause between retries."""

    def __init__(
        self,
        spec: TaskSpec,
        task: SinkTask,
        conversion: Conversion,
        tolerance: Tolerance,
        consumer: ClientSettings,
        cluster: Cluster,
        feed: Feed,
        guard: Guard,
        *,
        commit_interval_ms: int,
    ) -> None:
        self.inbox = Inbox()
        self._spec = spec
        self._task = task
        self._conversion = conversion
        self._tolerance = tolerance
        self._cluster = cluster
        self._feed = feed
        self._guard = guard
        self._now_ms = tolerance.now_ms
        self._interval_ms = commit_interval_ms
        self._group = groups.group_of(spec.id.connector, spec.connector_config)
        self._topics = subscribed(spec.connector_config)
        self._batch_max = consumer.integer("max.poll.records", _POLL_RECORDS)
        self._look_again_ms = consumer.integer("metadata.max.age.ms", _LOOK_AGAIN_MS)
        self._limit_bytes = task.range_bytes if isinstance(task, ExactlyOnceSinkTask) else BUFFER_BYTES
        self._reset = consumer.given.get("auto.offset.reset", "earliest")
        self._held: dict[TopicPartition, _Held] = {}
        self._used: set[str] = set()
        self._again: _Batch | None = None
        self._retry_at_ms = 0
        self._look_at_ms = 0
        self._commit_at_ms = 0
        has_reporter = (
            spec.settings()["errors.deadletterqueue.topic.name"] or tolerance.settings["errors.tolerance"] == "all"
        )
        self._context = SinkContext(spec.task_config, _Errant(tolerance, task) if has_reporter else None)

    # Life cycle.

    def begin(self) -> None:
        """Start the task and give it its partitions. Raises the task's errors, KafkaError, ConnectError."""
        self._task.initialize(self._context)
        self._task.start(self._spec.task_config)
        self._look()
        self._commit_at_ms = self._now_ms() + self._interval_ms

    def step(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` for records, and put some. Commit if that is due. Raises the same errors as
        ``begin``.
        """
        if self._now_ms() >= self._look_at_ms:
            self._look_again()
        if self._again is not None and not self._wait_for_retry(wait_s):
            return
        if isinstance(self._task, ExactlyOnceSinkTask):
            self._step_by_ranges(self._task, wait_s)
        else:
            self._step_by_batches(wait_s)
        self._follow_wishes()
        if self._context.commit_requested or self._now_ms() >= self._commit_at_ms:
            self.commit()

    def finish(self) -> None:
        """Commit what was put, close the partitions and stop the task. Raises the errors of the task's ``stop``."""
        try:
            self.commit(is_last=True)
            if self._held:
                self._task.close(sorted(self._held))
        except Exception as error:
            _log.warning("%s: closing its partitions failed: %s", self._spec.id, error, exc_info=error)
        finally:
            self._feed.unsubscribe(one.subscription for one in self._held.values())
            self._held.clear()
            self._task.stop()
            self._conversion.close()

    def _wait_for_retry(self, wait_s: float) -> bool:
        """Wait until the next retry is due, but at most ``wait_s``. Returns True if it is due then."""
        left_s = (self._retry_at_ms - self._now_ms()) / 1000
        if left_s > 0:
            self._tolerance.stopping.wait(min(wait_s, left_s))
        return left_s <= wait_s

    # Partitions.

    def _look(self) -> None:
        """Look up the partitions: open new ones, and close those that were deleted. Raises KafkaError."""
        seen = _partitions_of(self._cluster, self._topics)
        self._look_at_ms = self._now_ms() + (
            self._look_again_ms if seen.is_complete else min(_LOOK_FOR_MISSING_MS, self._look_again_ms)
        )
        mine = share(seen.partitions, self._spec.id.task, self._spec.tasks)
        gone = sorted(one for one in self._held.keys() - mine if one.topic not in seen.unclear)
        if gone:
            self._close(gone)
        added = sorted(mine - self._held.keys())
        if added:
            self._open(added)

    def _look_again(self) -> None:
        """Look up the partitions again. If the cluster cannot be reached, the task continues with those it has."""
        try:
            self._look()
        except KafkaError as error:
            _log.warning(
                "%s: the partitions of its topics cannot be looked up, so the task continues with those it has: %s",
                self._spec.id,
                error.message,
            )
            self._look_at_ms = self._now_ms() + self._look_again_ms

    def _open(self, partitions: Sequence[TopicPartition]) -> None:
        committed = self._where_to_begin(partitions)
        knows = isinstance(self._task, ExactlyOnceSinkTask)
        for one in partitions:
            offset = committed[one]
            self._held[one] = _Held(one, self._subscribe(one, offset), offset, offset, end=offset, is_in_doubt=knows)
        self._context.assignment = frozenset(self._held)
        self._task.open(partitions)
        self._follow_wishes()

    def _where_to_begin(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        committed = groups.committed(self._cluster, self._group)
        found = {one: committed[one] for one in partitions if one in committed}
        missing = [one for one in partitions if one not in found]
        return found | self._reset_offsets(missing)

    def _reset_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets at which ``auto.offset.reset`` starts these partitions. Raises ConnectError if it is
        ``none``.
        """
        if not partitions:
            return {}
        if self._reset not in ("earliest", "latest"):
            raise ConnectError(f"No offset is committed for {partitions[0]}, and auto.offset.reset is {self._reset}.")
        return self._cluster.offsets(dict.fromkeys(partitions, EARLIEST if self._reset == "earliest" else LATEST))

    def _close(self, partitions: Sequence[TopicPartition]) -> None:
        self.commit(is_last=True)
        self._task.close(partitions)
        self._feed.unsubscribe(self._held.pop(one).subscription for one in partitions)
        self._context.assignment = frozenset(self._held)
        self._go_to({})

    def _go_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets. Drops the records of these partitions that wait, and the batch that waits for
        another put. Raises ConnectError if a partition is not assigned to the task.
        """
        for partition, offset in {**self._take_back(), **offsets}.items():
            held = self._held.get(partition)
            if held is None:
                raise ConnectError(f"{self._spec.id} cannot continue in {partition}, which is not assigned to it.")
            self._feed.unsubscribe([held.subscription])
            held.subscription = self._subscribe(partition, offset)
            held.position = held.end = offset
            held.rows.clear()
            held.owed.clear()

    def _take_back(self) -> dict[TopicPartition, int]:
        """Drop the batch that waits for another put. Returns for each of its partitions the offset to continue from."""
        waiting, self._again = self._again, None
        return {one: self._held[one].position for one in (waiting.ends if waiting else ()) if one in self._held}

    def _subscribe(self, partition: TopicPartition, offset: int) -> Subscription:
        return self._feed.subscribe(partition, offset, self.inbox, self._limit_bytes)

    def _follow_wishes(self) -> None:
        """Apply the requests that the task has made through its context."""
        sought, self._context.sought = self._context.sought, {}
        if sought:
            self._go_to(sought)
        for held in self._held.values():
            held.is_paused = held.partition in self._context.paused

    # Records.

    def _receive(self, wait_s: float) -> None:
        """Wait up to ``wait_s`` for fetched batches. Then take what is available, up to ``max.poll.records``. Raises
        KafkaError and ConnectError.
        """
        while (found := self.inbox.take(wait_s)) is not None:
            subscription, fetched = found
            wait_s = 0.0
            held = self._held.get(subscription.partition)
            if held is None or held.subscription is not subscription:
                continue
            if isinstance(fetched, KafkaError):
                self._not_fetched(held, fetched)
            else:
                self._take_in(held, fetched)
            if sum(len(one.rows) for one in self._held.values()) >= self._batch_max:
                return

    def _take_in(self, held: _Held, fetched: Fetched) -> None:
        if not held.rows:
            held.since_ms = self._now_ms()
        try:
            held.rows.extend(read_rows(fetched, held.end))
            held.end = fetched.next_offset
        except BadBatch as bad:
            self._leave_out(bad)
            held.rows.extend(read_rows(fetched, held.end, bad.offset))
            held.end = bad.next_offset
            self._feed.unsubscribe([held.subscription])
            held.owed.clear()
            held.subscription = self._subscribe(held.partition, held.end)
            return
        held.owed.append((held.end, len(fetched.records)))

    def _leave_out(self, bad: BadBatch) -> None:
        """Skip the records of an unreadable batch. Raises ConnectError if errors are not tolerated."""
        with suppress(LeftOut):
            raise self._tolerance.failed(Stage.KAFKA_CONSUME, self._feed, bad, None)

    def _put_up_to(self, held: _Held, end: int) -> None:
        """Record that everything in the partition before offset ``end`` was put."""
        held.position = end
        while held.owed and held.owed[0][0] <= end:
            self._feed.taken(held.subscription, held.owed.popleft()[1])

    def _not_fetched(self, held: _Held, error: KafkaError) -> None:
        """Handle an error instead of batches: if the log does not contain the offset, follow ``auto.offset.reset``.

        Raises any other error.
        """
        if not isinstance(error, OffsetOutOfRange):
            raise error
        offsets = self._reset_offsets([held.partition])
        _log.warning("%s: %s; it continues from %s", self._spec.id, error.message, offsets[held.partition])
        self._go_to(offsets)

    def _converted(self, rows: Iterable[Raw]) -> list[SinkRecord]:
        made = []
        for raw in rows:
            record = self._conversion.incoming(raw, self._tolerance)
            if record is not None:
                made.append(record)
            if raw.topic not in self._used:
                self._used.add(raw.topic)
                self._guard.topic_used(raw.topic)
        return made

    def _step_by_batches(self, wait_s: float) -> None:
        """Put one batch with records of all partitions, or the batch whose put must be repeated."""
        if self._again is None:
            if not any(one.rows and not one.is_paused for one in self._held.values()):
                self._receive(wait_s)
            self._again = self._next_batch()
        batch = self._again
        self._guard.check()
        try:
            self._task.put(batch.records)
        except RetriableError as error:
            self._try_again_later("put", error)
            return
        self._again = None
        for partition, end in batch.ends.items():
            self._put_up_to(self._held[partition], end)

    def _next_batch(self) -> _Batch:
        rows: list[Raw] = []
        ends = {}
        for partition, held in self._held.items():
            if held.is_paused:
                continue
            taken = min(len(held.rows), self._batch_max - len(rows))
            rows += [held.rows.popleft() for _ in range(taken)]
            if taken or not held.rows:
                ends[partition] = held.rows[0].offset if held.rows else held.end
        return _Batch(self._converted(rows), ends)

    def _step_by_ranges(self, task: ExactlyOnceSinkTask, wait_s: float) -> None:
        """Put the ranges that are large or old enough."""
        if not self._learn(task, wait_s):
            return
        now_ms = self._now_ms()
        due_ms = [
            self._due_ms(one, task) for one in self._held.values() if one.end > one.position and not one.is_paused
        ]
        if not due_ms or min(due_ms) > now_ms:
            self._receive(min([wait_s, *((one - now_ms) / 1000 for one in due_ms)]))
        for held in list(self._held.values()):
            is_due = held.end > held.position and not held.is_paused and self._due_ms(held, task) <= self._now_ms()
            if is_due and not self._put_range(task, held):
                return

    def _learn(self, task: ExactlyOnceSinkTask, wait_s: float) -> bool:
        """Get unknown positions from the task (``committed``), and continue there. Returns False if the task must be
        called again later.
        """
        in_doubt = sorted(one for one, held in self._held.items() if held.is_in_doubt)
        if not in_doubt:
            return True
        if not self._wait_for_retry(wait_s):
            return False
        try:
            committed = task.committed(in_doubt)
        except RetriableError as error:
            self._try_again_later("committed", error)
            return False
        for one in in_doubt:
            self._held[one].is_in_doubt = False
        self._go_to({one: offset for one, offset in committed.items() if self._held[one].position != offset})
        return True

    @staticmethod
    def _due_ms(held: _Held, task: ExactlyOnceSinkTask) -> int:
        is_full = len(held.rows) >= task.range_records or sum(size for _, size in held.owed) >= task.range_bytes
        return 0 if is_full else held.since_ms + task.range_ms

    def _put_range(self, task: ExactlyOnceSinkTask, held: _Held) -> bool:
        """Put one range. Returns False if the task must be called again later. Then the position in the target is
        unknown.
        """
        rows = [held.rows[at] for at in range(min(len(held.rows), task.range_records))]
        end = held.rows[len(rows)].offset if len(held.rows) > len(rows) else held.end
        offsets = OffsetRange(*held.partition, held.position, end)
        records = self._converted(rows)
        self._guard.check()
        try:
            task.put_range(offsets, records)
        except RetriableError as error:
            held.is_in_doubt = True
            self._try_again_later("put_range", error)
            return False
        for _ in rows:
            held.rows.popleft()
        held.since_ms = self._now_ms()
        self._put_up_to(held, end)
        return True

    def _try_again_later(self, what: str, error: RetriableError) -> None:
        pause_ms = _RETRY_MS if self._context.retry_ms is None else self._context.retry_ms
        self._context.retry_ms = None
        self._retry_at_ms = self._now_ms() + pause_ms
        _log.warning("%s: %s failed and is called again in %s ms: %s", self._spec.id, what, pause_ms, error)

    # Offsets.

    def commit(self, *, is_last: bool = False) -> None:
        """Commit the positions that ``pre_commit`` returns. A failure is only logged.

        If the task caused it, the task continues from the committed offsets, unless ``is_last`` is set.
        """
        self._context.commit_requested = False
        self._commit_at_ms = self._now_ms() + self._interval_ms
        positions = {partition: held.position for partition, held in self._held.items()}
        if not positions or (not is_last and all(one.position == one.committed for one in self._held.values())):
            return
        try:
            safe = self._task.pre_commit(positions)
            offsets = {
                one: min(offset, positions[one])
                for one, offset in safe.items()
                if one in positions and offset != self._held[one].committed
            }
            self._guard.commit(self._cluster, self._group, offsets)
        except Exception as error:
            _log.error("%s: offsets were not committed: %s", self._spec.id, error, exc_info=error)
            if not is_last and not isinstance(error, KafkaError):
                self._go_to({one: held.committed for one, held in self._held.items()})
            return
        for one, offset in offsets.items():
            self._held[one].committed = offset


class _Errant:
    """The reporter of records that a task cannot write (KIP-610)."""

    def __init__(self, tolerance: Tolerance, task: SinkTask) -> None:
        self._tolerance = tolerance
        self._task = task

    def report(self, record: SinkRecord, error: BaseException) -> None:
        self._tolerance.failed(Stage.TASK_PUT, self._task, error, record.raw)


class _Seen(NamedTuple):
    """The topics' partitions, True if all named topics exist, and the topics that are currently unknown."""

    partitions: set[TopicPartition]
    is_complete: bool
    unclear: set[str]


def _partitions_of(cluster: Cluster, topics: list[str] | re.Pattern[str]) -> _Seen:
    async def ask(client: Client) -> MetadataResponse:
        return await client.metadata(topics if isinstance(topics, list) else None)

    found: set[TopicPartition] = set()
    is_complete, unclear = True, set()
    for topic in cluster.retry(ask).topics:
        name = topic.name or ""
        if topic.error_code or not topic.partitions:
            is_complete = False
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                unclear.add(name)
        elif isinstance(topics, list) or (not topic.is_internal and topics.fullmatch(name)):
            found |= {TopicPartition(name, one.partition_index) for one in topic.partitions}
    return _Seen(found, is_complete, unclear)
