"""The log cleaner: compacts the logs of topics with ``cleanup.policy=compact``, the dirtiest first.

Rules (docs/storage.md, "The log cleaner"):

1. Up to ``log.cleaner.threads`` logs are compacted at a time, each by its own worker. If no log is due, the cleaner
   measures the logs again after ``log.cleaner.backoff.ms``. Idle workers end after ``IDLE_S``.
2. A task that deletes, truncates, moves or mends a log first pauses its compaction (``paused``): a compaction in
   progress is stopped, and none starts until the task is done.
3. A log that cannot be compacted is set aside, logged and counted; the other logs are still compacted. If the failure
   may be temporary (a full disk, a killed worker, a log that changed meanwhile), the compaction is retried after
   pauses that double each time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.storage.compaction.cleaner_worker import Worker, WorkerEnded, WorkerNotStarted
from parley.storage.compaction.compactor import CompactedGroup, CompactionResult, CompactionStats, Uncleanable
from parley.storage.compaction.dirtiness import Dirtiness, choose
from parley.storage.io_threads import IoThreads
from parley.storage.log import Log
from parley.storage.log_copies import LogCopies
from parley.storage.log_directory import FULL, LogDirectory
from parley.storage.log_directory_failure import LogDirectoryFailures
from parley.storage.log_maintenance import MaintenanceOwner, StartTask
from parley.storage.resource_exhaustion import reserve_for

_log = logging.getLogger(__name__)

IDLE_S: Final = 60.0
"""How long a worker may be idle before it ends."""
BACKOFF_MIN_S: Final = 0.1
"""The minimum pause before the cleaner measures all logs again, even if ``log.cleaner.backoff.ms`` is shorter."""
PAUSE_MAX_S: Final = 3600.0
"""The longest pause between two attempts to compact a log."""
WORKER_DEATHS_MAX: Final = 5
"""The number of workers in a row that must die while compacting the same log before the log is set aside."""
MAP_BYTES_MIN: Final = 1 << 20
"""The smallest offset map to which the cleaner shrinks when memory runs out. It fits in the memory of any broker."""
VERIFY_BYTES: Final = 1 << 20
"""The number of bytes of a log that are verified in one job of the executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Limits of the cleaner. Memory and bandwidth are totals for all threads."""

    threads: int
    """The number of logs compacted at a time; 0 turns compaction off."""
    map_bytes: int
    map_load_factor: float
    bytes_per_second: float
    backoff_ms: int


class Verdict(Enum):
    """How to proceed after a failed compaction."""

    RETRY = auto()
    """The failure may be temporary: try again after a pause."""
    SHRINK = auto()
    """Memory may have run out: try again with a smaller offset map."""
    SET_ASIDE = auto()
    """The failure is permanent unless an operator or the broker repairs the log."""
    DISK = auto()
    """The disk has failed."""


def verdict(error: Exception, deaths: int) -> Verdict:
    """Decide how to proceed after a failure. ``deaths`` is the number of workers in a row that died while compacting
    this log."""
    match error:
        case WorkerEnded():
            return Verdict.SHRINK if deaths < WORKER_DEATHS_MAX else Verdict.SET_ASIDE
        case MemoryError():
            return Verdict.SHRINK
        case WorkerNotStarted():
            return Verdict.RETRY
        case KafkaError(code=ErrorCode.KAFKA_STORAGE_ERROR) | FileNotFoundError():
            return Verdict.RETRY  # the log was changed meanwhile, or has already reported the failure of its disk
        case OSError() if error.errno in FULL or reserve_for(error) is not None:
            return Verdict.RETRY
        case OSError():
            return Verdict.DISK
    return Verdict.SET_ASIDE


class CleanerOwner(MaintenanceOwner, Protocol):
    """The part of the log manager that the cleaner uses."""

    def online(self) -> list[LogDirectory]:
        """Return the directories that are online."""

    def directory_of(self, log: Log) -> LogDirectory:
        """Return the directory of the log. Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log no longer exists."""

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the current log of a partition, or None if the partition has no log. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR if its directory is offline."""

    def remove_replaced(self, log: Log, paths: Sequence[Path]) -> None:
        """Remove the renamed files of replaced segments after ``file.delete.delay.ms``."""

    async def checkpoint(self, log: Log) -> None:
        """Write the checkpoints of the log's directory. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""

    async def checkpoint_cleaner(self, log: Log) -> None:
        """Write the checkpoint of the offsets up to which logs are compacted. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR."""

    @property
    def failures(self) -> LogDirectoryFailures:
        """The object that takes a directory offline after its disk has failed."""

    @property
    def copies(self) -> LogCopies:
        """The copies of logs in other directories."""


@dataclass(slots=True, eq=False)
class _Running:
    """A compaction in progress."""

    log: Log
    directory: LogDirectory
    worker: Worker
    began_s: float
    to_read: int = 0
    """``CompactionRequest.bytes_to_read``; 0 until the request is made."""
    is_stopped: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class _Failures:
    """The failures of a log since it was last compacted."""

    count: int = 0
    deaths: int = 0
    """The number of workers in a row that died while compacting the log."""
    retry_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """A successful compaction, for the metrics."""

    duration_s: float
    delay_s: float
    """How much older the log's oldest dirty record was than ``max.compaction.lag.ms`` allows; 0 if it was not too
    old."""
    stats: CompactionStats


@dataclass(frozen=True, slots=True)
class CompactionProgress:
    """The progress of a compaction, for an operator.

    Both numbers of bytes count the reads of both passes. ``CompactionStats.bytes_read`` counts the copy pass only.
    """

    log: Log
    done_bytes: int
    bytes_to_read: int
    elapsed_s: float


@dataclass(slots=True)
class CleanerCounts:
    """The work of the cleaner since it started. Bytes and records are the sums of ``CompactionStats``, so they include
    only the reads of the copy pass."""

    runs: int = 0
    failures: int = 0
    worker_deaths: int = 0
    bytes_read: int = 0
    bytes_kept: int = 0
    records_read: int = 0
    records_kept: int = 0


class LogCleaner:
    """Compacts the logs of ``owner`` while ``run`` is running."""

    def __init__(
        self,
        owner: CleanerOwner,
        settings: Callable[[], CleanerSettings],
        make_worker: Callable[[], Worker],
        start_task: StartTask,
        executor: Executor | None,
        *,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        """``settings`` returns the current limits, and ``make_worker`` a new worker. Each worker occupies a thread of
        ``executor``, perhaps for hours. ``start_task`` starts the tasks that await the workers."""
        self.counts = CleanerCounts()
        self.max_dirty_ratio = 0.0
        """The dirty ratio of the dirtiest log when the cleaner last measured the logs."""
        self._owner = owner
        self._settings = settings
        self._make_worker = make_worker
        self._start_task = start_task
        self._executor = executor
        self._threads = IoThreads(executor)
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._looked_s = monotonic()
        self._running: dict[TopicPartition, _Running] = {}
        self._paused: Counter[TopicPartition] = Counter()
        self._idle: deque[tuple[float, Worker]] = deque()  # (idle since, worker), the longest idle one first
        self._failures: dict[Log, _Failures] = {}
        self._set_aside: dict[Log, str] = {}  # the logs set aside after a failure, and why; may include removed logs
        self._runs: deque[CompactionRun] = deque()
        self._map_divisor = 1
        self._wakeup = asyncio.Event()

    # --- For metrics ---

    @property
    def running(self) -> int:
        """The number of logs that are being compacted."""
        return len(self._running)

    @property
    def in_progress(self) -> list[CompactionProgress]:
        """The progress of each compaction that is running."""
        now_s = self._monotonic()
        return [
            CompactionProgress(
                each.log, each.worker.done_bytes if each.to_read else 0, each.to_read, now_s - each.began_s
            )
            for each in self._running.values()
        ]

    @property
    def since_last_look_s(self) -> float:
        """The time since the cleaner last measured the logs."""
        return self._monotonic() - self._looked_s

    @property
    def last_runs(self) -> Sequence[CompactionRun]:
        """The most recent successful compactions, at most as many as there are threads."""
        return tuple(self._runs)

    @property
    def set_aside(self) -> Mapping[Log, str]:
        """The logs that are not compacted, each with the reason: those that a failure has set aside, and those of
        compacted topics with damaged records, until the records are healed."""
        damaged = {log: "damaged records" for log in self._compacted() if log.damage}
        return {**damaged, **{log: reason for log, reason in self._set_aside.items() if self._is_current(log)}}

    # --- Running ---

    async def run(self) -> None:
        """Compact logs until the task is cancelled."""
        try:
            while True:
                self._wakeup.clear()
                await self._begin_due()
                await self._end_idle_workers(self._monotonic() - IDLE_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(BACKOFF_MIN_S, self._settings().backoff_ms / 1000)):
                        await self._wakeup.wait()
        finally:
            for compaction in self._running.values():
                self._stop(compaction)
            for compaction in list(self._running.values()):
                await compaction.ended.wait()
            await self._end_idle_workers(self._monotonic())

    @asynccontextmanager
    async def paused(self, log: Log) -> AsyncIterator[None]:
        """Context manager in which the partition's log is not compacted. Before it enters the block, it stops a
        compaction in progress and waits for its end."""
        key = (log.topic, log.partition)
        self._paused[key] += 1
        try:
            if (compaction := self._running.get(key)) is not None:
                self._stop(compaction)
                await compaction.ended.wait()
            yield
        finally:
            self._paused[key] -= 1
            if not self._paused[key]:
                del self._paused[key]

    # --- What is due ---

    async def _begin_due(self) -> None:
        """Start to compact the dirtiest logs, one for each free thread."""
        settings = self._settings()
        while len(self._running) < settings.threads:
            measured = await self._measure()
            log = choose(measured)
            if log is None:
                return
            compaction = _Running(log, self._owner.directory_of(log), self._worker(), self._monotonic())
            self._running[log.topic, log.partition] = compaction
            work = self._compact(compaction, measured[log], settings)
            self._start_task(work, name=f"compaction of {log.topic}-{log.partition}")

    async def _measure(self) -> dict[Log, Dirtiness]:
        """Return the dirtiness of each log that may be compacted now. Also updates ``max_dirty_ratio``.

        Only flushed segments can be compacted, and the next periodic flush may be a minute away. Therefore, logs that a
        flush would make due are flushed first, and the checkpoints of their directory are written.
        """
        now_ms, found = self._now_ms(), dict[Log, Dirtiness]()
        self._looked_s = self._monotonic()
        self._forget_lost_logs()
        for directory in self._owner.online():
            logs = [log for log in self._owner.logs_in(directory) if log.config.compact and log.is_written]
            with suppress(KafkaError):  # the directory is offline now, and its logs are lost
                may_compact = [log for log in logs if self._may_compact(log)]
                if flushed := await self._owner.run(directory, _flush_due, may_compact, now_ms):
                    await self._owner.checkpoint(flushed[0])
                found |= await self._owner.run(directory, _measure_all, logs, now_ms)
        self.max_dirty_ratio = max((each.ratio for each in found.values()), default=0.0)
        return {log: dirtiness for log, dirtiness in found.items() if self._may_compact(log)}

    def _may_compact(self, log: Log) -> bool:
        key = (log.topic, log.partition)
        failures = self._failures.get(log)
        return (
            self._is_current(log)
            and key not in self._running
            and key not in self._paused
            and not self._owner.copies.is_moving(key)
            and log not in self._set_aside
            and not log.damage
            and (failures is None or failures.retry_s <= self._monotonic())
        )

    def _is_current(self, log: Log) -> bool:
        try:
            return self._owner.get(log.topic, log.partition) is log
        except KafkaError:
            return False

    def _compacted(self) -> list[Log]:
        """Return the logs of compacted topics."""
        return [log for each in self._owner.online() for log in self._owner.logs_in(each) if log.config.compact]

    def _forget_lost_logs(self) -> None:
        for log in [log for log in (*self._failures, *self._set_aside) if not self._is_current(log)]:
            self._failures.pop(log, None)
            self._set_aside.pop(log, None)

    # --- Compacting ---

    async def _compact(self, compaction: _Running, dirtiness: Dirtiness, settings: CleanerSettings) -> None:
        """Compact a log and record the outcome."""
        log, worker, began_s = compaction.log, compaction.worker, compaction.began_s
        try:
            result = await self._result(compaction, dirtiness, settings)
            await self._owner.checkpoint_cleaner(log)
        except BaseException as error:
            await self._threads.run(worker.close)
            if not isinstance(error, Exception):
                raise
            if not compaction.is_stopped:
                await self._failed(compaction, error)
        else:
            self._idle.append((self._monotonic(), worker))
            self._succeeded(log, dirtiness, result, self._monotonic() - began_s)
        finally:
            del self._running[log.topic, log.partition]
            compaction.ended.set()
            self._wakeup.set()

    async def _result(self, compaction: _Running, dirtiness: Dirtiness, settings: CleanerSettings) -> CompactionResult:
        """Run the compaction in a thread. If this task is cancelled, stop the compaction and wait for its end."""
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self._compact_in_thread, compaction, dirtiness, settings, loop)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop(compaction)
            await asyncio.wait([work])
            work.exception()  # it was stopped: asyncio must not log that as an error that was never retrieved
            raise

    def _compact_in_thread(
        self,
        compaction: _Running,
        dirtiness: Dirtiness,
        settings: CleanerSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> CompactionResult:
        log = compaction.log
        began = log.begin_compaction(
            dirtiness,
            now_ms=self._now_ms(),
            map_bytes=self._map_bytes(settings),
            map_load_factor=settings.map_load_factor,
            tombstones_kept_from=log.tombstones_kept_from(self._monotonic()),
        )

        def adopt(group: CompactedGroup) -> None:
            replaced = began.adopt(group)
            loop.call_soon_threadsafe(self._owner.remove_replaced, log, replaced)

        with began:
            compaction.to_read = began.request.bytes_to_read
            result = compaction.worker.compact(began.request, adopt, settings.bytes_per_second / settings.threads)
            began.finish(result)
        return result

    def _map_bytes(self, settings: CleanerSettings) -> int:
        share = settings.map_bytes // settings.threads
        return max(share // self._map_divisor, min(share, MAP_BYTES_MIN))

    def _stop(self, compaction: _Running) -> None:
        compaction.is_stopped = True
        compaction.worker.stop()

    # --- Workers ---

    def _worker(self) -> Worker:
        return self._idle.pop()[1] if self._idle else self._make_worker()

    async def _end_idle_workers(self, idle_since_s: float) -> None:
        """End the workers that have been idle since ``idle_since_s`` or earlier."""
        while self._idle and self._idle[0][0] <= idle_since_s:
            await self._threads.run(self._idle.popleft()[1].close)

    # --- Outcomes ---

    def _succeeded(self, log: Log, dirtiness: Dirtiness, result: CompactionResult, duration_s: float) -> None:
        self._failures.pop(log, None)
        self._map_divisor = max(1, self._map_divisor // 2)
        stats = result.stats
        self._runs.append(CompactionRun(duration_s, dirtiness.overdue_ms / 1000, stats))
        while len(self._runs) > max(1, self._settings().threads):
            self._runs.popleft()
        self.counts.runs += 1
        self.counts.bytes_read += stats.bytes_read
        self.counts.bytes_kept += stats.bytes_kept
        self.counts.records_read += stats.records_read
        self.counts.records_kept += stats.records_kept
        _log.info(
            "a log was compacted",
            extra={
                **_facts_of(log),
                "dirty_from": dirtiness.first_dirty_offset,
                "clean_to": result.cleaned_up_to,
                "records_read": stats.records_read,
                "records_kept": stats.records_kept,
                "bytes_read": stats.bytes_read,
                "bytes_kept": stats.bytes_kept,
                "keys": stats.map_keys,
                "seconds": round(duration_s, 3),
            },
        )
        if stats.records_invalid:
            extra = {**_facts_of(log), "records": stats.records_invalid}
            _log.warning("compaction removed records without a key", extra=extra)

    async def _failed(self, compaction: _Running, error: Exception) -> None:
        """Decide when to retry the log, if at all."""
        log = compaction.log
        self.counts.failures += 1
        failures = self._failures.setdefault(log, _Failures())
        failures.count += 1
        failures.deaths = failures.deaths + 1 if isinstance(error, WorkerEnded) else 0
        self.counts.worker_deaths += isinstance(error, WorkerEnded)
        follows = verdict(error, failures.deaths)
        if follows is Verdict.SET_ASIDE and await self._is_damaged(compaction):
            return  # healing has started; ``set_aside`` lists the log until it is done
        if follows is Verdict.SET_ASIDE:
            self._set_aside[log] = str(error)
            unforeseen = None if isinstance(error, Uncleanable | WorkerEnded | KafkaError) else error
            extra = {**_facts_of(log), "reason": str(error) or repr(error)}
            _log.error("a log cannot be compacted: it is set aside", extra=extra, exc_info=unforeseen)
            return
        if follows is Verdict.DISK:
            assert isinstance(error, OSError), "verdict"
            self._owner.failures.failed(compaction.directory, error)
            return
        if follows is Verdict.SHRINK and self._map_bytes(self._settings()) > MAP_BYTES_MIN:
            self._map_divisor *= 2
        pause_s = min(PAUSE_MAX_S, self._settings().backoff_ms / 1000 * 2 ** (failures.count - 1))
        failures.retry_s = self._monotonic() + pause_s
        extra = {**_facts_of(log), "reason": str(error) or repr(error), "retry_in_s": pause_s}
        _log.warning("a compaction failed and will be retried", extra=extra)

    async def _is_damaged(self, compaction: _Running) -> bool:
        """Verify the whole log, so that any damage is recorded and healed. Returns True if the log is damaged."""
        log = compaction.log
        with suppress(KafkaError):
            for segment in log.segments:
                position = 0
                while position < segment.size and not compaction.is_stopped:
                    position = await self._owner.run(
                        compaction.directory, log.verify_segment, segment, position, VERIFY_BYTES
                    )
        return bool(log.damage)


def _flush_due(logs: Sequence[Log], now_ms: int) -> list[Log]:
    """Flush the sealed segments of each log that should be compacted after the flush, if the flush lets compaction get
    further than before.

    Returns the flushed logs. Blocks.
    """
    flushed = []
    for log in logs:
        with suppress(KafkaError):
            ahead = log.dirtiness(now_ms, if_flushed=True)
            if ahead.is_due and ahead.end_offset > log.dirtiness(now_ms).end_offset:
                log.flush(log.segments[-1].base_offset)
                flushed.append(log)
    return flushed


def _measure_all(logs: Sequence[Log], now_ms: int) -> dict[Log, Dirtiness]:
    """Measure logs, except those that were closed meanwhile. Blocks."""
    found = {}
    for log in logs:
        with suppress(KafkaError):
            found[log] = log.dirtiness(now_ms)
    return found


def _facts_of(log: Log) -> dict[str, object]:
    return {"topic": log.topic, "partition": log.partition}
