"""Periodic log maintenance: retention, flushing, checkpoints, expiry of producers, removal of deleted files.

Rules:

1. Each kind of work has one loop per directory: wait for the interval, do one round over the logs, wait again. A
   directory has therefore at most one round of a kind at a time, and no disk waits for another disk.
2. A round processes the logs in chunks, each of which is one job in the executor.
3. A checkpoint contains the current values of the logs, and is not written if the file already contains them. A job in
   the executor collects the values, because there may be tens of thousands of logs. Callers that request a checkpoint
   while it is being written share the next write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.boot_id import note_power_cut
from parley.storage.log import Log
from parley.storage.log_config import DAY_MS, NEVER
from parley.storage.log_directory import LogDirectory
from parley.storage.unsettled_logs import UnsettledLogs
from parley.storage.unwritten_logs import UnwrittenLog

CHUNK = 100

T = TypeVar("T")
V = TypeVar("V")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceIntervals:
    """The interval of each kind of work in milliseconds, with Kafka's defaults. NEVER disables that kind."""

    retention_check_ms: int = 300_000
    """``log.retention.check.interval.ms``"""
    flush_check_ms: int = NEVER
    """``log.flush.scheduler.interval.ms``"""
    recovery_point_checkpoint_ms: int = 60_000
    """``log.flush.offset.checkpoint.interval.ms``"""
    log_start_checkpoint_ms: int = 60_000
    """``log.flush.start.offset.checkpoint.interval.ms``"""
    high_watermark_checkpoint_ms: int = 5_000
    """``replica.high.watermark.checkpoint.interval.ms``"""
    producer_expiration_check_ms: int = DAY_MS // 144
    """``producer.id.expiration.check.interval.ms``"""


class StartTask(Protocol):
    """A function that starts ``work`` as a background task called ``name``, whose failure is logged."""

    def __call__(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]: ...


class MaintenanceOwner(Protocol):
    """The part of the log manager that the maintenance uses."""

    def unwritten_mark(self, directory: LogDirectory) -> object:
        """Return a value that changes whenever the result of ``unwritten_logs`` may have changed."""

    def is_copying(self, partition: TopicPartition) -> bool:
        """Return True if the partition's log is being copied to another directory."""

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        """Return the logs in a directory; none if it is offline."""

    async def run(self, directory: LogDirectory, work: Callable[..., T], *args: Any) -> T:
        """Run ``work(*args)`` in the executor, and return its result. An ``OSError`` takes the directory offline and is
        raised as ``KafkaError``."""


class Checkpoint(Generic[V]):
    """One checkpoint file of one directory, with a value for each log."""

    def __init__(
        self,
        owner: MaintenanceOwner,
        directory: LogDirectory,
        write: Callable[[dict[TopicPartition, V]], None],
        values: Callable[[Iterable[Log]], dict[TopicPartition, V]],
        *,
        logs: Callable[[LogDirectory], list[Log]] | None = None,
        mark: Callable[[LogDirectory], object] = lambda directory: object(),
        written: Callable[[Iterable[Log], dict[TopicPartition, V]], None] = lambda logs, values: None,
    ) -> None:
        """``logs`` returns the logs, by default all logs of the directory, and ``values`` their values. ``write``
        replaces the file and blocks until it is on disk. A thread of the executor calls both ``values`` and ``write``,
        and then ``written`` is called with the logs and the values. Nothing is called if ``mark`` returns the same
        object as when the file was last up to date.
        """
        self._owner = owner
        self._logs = logs or owner.logs_in
        self._mark = mark
        self._written_mark: object = None
        self._directory = directory
        self._write = write
        self._values = values
        self._when_written = written
        self._writing = asyncio.Lock()
        self._requested = 0
        self._served = 0
        self._written: dict[TopicPartition, V] | None = None

    async def write(self) -> None:
        """Write the checkpoint. The file then contains the values of the logs at the time of the call, or later.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        self._requested += 1
        mine = self._requested
        async with self._writing:
            if self._served >= mine:
                return
            serving = self._requested
            mark = self._mark(self._directory)
            if mark != self._written_mark:
                logs = self._logs(self._directory)
                values = await self._owner.run(self._directory, self._update, logs)
                self._when_written(logs, values)
                self._written_mark = mark
            self._served = serving

    async def extend(self, extend: Callable[[], None]) -> None:
        """Add to the file by calling ``extend`` in a thread, between two writes. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR."""
        async with self._writing:
            self._written = self._written_mark = None  # the next write must not be skipped
            await self._owner.run(self._directory, extend)

    def _update(self, logs: Iterable[Log]) -> dict[TopicPartition, V]:
        values = self._values(logs)
        if values != self._written:
            self._write(values)
            self._written = values
        return values


def recovery_points(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Return the recovery point of each log that has files."""
    return {(log.topic, log.partition): log.recovery_point for log in logs if log.is_written}


def note_checkpointed(logs: Iterable[Log], points: dict[TopicPartition, int]) -> None:
    """Pass each log the recovery point that the checkpoint of its directory now contains."""
    for log in logs:
        point = points.get((log.topic, log.partition))
        if point is not None:
            log.checkpointed(point)


def log_start_offsets(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Return the log start offset of each log that has files. The next startup compares them with the files, to find
    out whether the first segments of a log are missing."""
    return {(log.topic, log.partition): log.log_start_offset for log in logs if log.is_written}


def unwritten_logs(
    owner: MaintenanceOwner, unsettled: UnsettledLogs, directory: LogDirectory, logs: Iterable[Log]
) -> dict[TopicPartition, UnwrittenLog]:
    """Return the logs of the directory that have no files yet, and its ``kept_unwritten`` logs. Leaves out unproven
    logs, because the next startup must not create those again."""
    found = directory.kept_unwritten.copy()
    of_topic: dict[UUID, UnwrittenLog] = {}
    for log in logs:
        if not log.is_written and (topic_id := log.topic_id) and not unsettled.is_unproven(log):
            key = (log.topic, log.partition)
            if owner.is_copying(key):
                found[key] = UnwrittenLog(topic_id, is_moving=True)
                continue
            if topic_id not in of_topic:
                of_topic[topic_id] = UnwrittenLog(topic_id)
            found[key] = of_topic[topic_id]
    return found


def names(logs: Iterable[Log]) -> dict[TopicPartition, None]:
    """Return the partitions of the logs."""
    return dict.fromkeys((log.topic, log.partition) for log in logs)


def cleaner_offsets(logs: Iterable[Log]) -> dict[TopicPartition, int]:
    """Return the offset up to which each log was last compacted, except logs that never were."""
    return {(log.topic, log.partition): log.cleaned_up_to for log in logs if log.cleaned_up_to is not None}


class LogMaintenance:
    """The periodic work on the logs of ``owner``."""

    def __init__(
        self,
        owner: MaintenanceOwner,
        unsettled: UnsettledLogs,
        start_task: StartTask,
        intervals: MaintenanceIntervals,
        now_ms: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._unsettled = unsettled
        self._start_task = start_task
        self._intervals = intervals
        self._now_ms = now_ms
        self._recovery_points: dict[LogDirectory, Checkpoint[int]] = {}
        self._log_starts: dict[LogDirectory, Checkpoint[int]] = {}
        self._high_watermarks: dict[LogDirectory, Checkpoint[int]] = {}
        self._cleaner_offsets: dict[LogDirectory, Checkpoint[int]] = {}
        self._unwritten: dict[LogDirectory, Checkpoint[UnwrittenLog]] = {}
        self._power_cuts: dict[LogDirectory, Checkpoint[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self, directories: Sequence[LogDirectory]) -> None:
        """Start the loops of these directories."""
        for directory in directories:
            self._recovery_points[directory] = Checkpoint(
                self._owner, directory, directory.recovery_points.write, recovery_points, written=note_checkpointed
            )
            self._log_starts[directory] = Checkpoint(
                self._owner, directory, directory.log_start_offsets.write, log_start_offsets
            )
            self._high_watermarks[directory] = Checkpoint(
                self._owner, directory, directory.high_watermarks.write, self._known_high_watermarks
            )
            self._cleaner_offsets[directory] = Checkpoint(
                self._owner, directory, directory.cleaner_offsets.write, cleaner_offsets
            )
            self._unwritten[directory] = Checkpoint(
                self._owner,
                directory,
                directory.unwritten_logs.write,
                partial(unwritten_logs, self._owner, self._unsettled, directory),
                mark=self._owner.unwritten_mark,
            )
            self._power_cuts[directory] = Checkpoint(
                self._owner,
                directory,
                partial(note_power_cut, directory.path),
                names,
                logs=self._unsettled.cut_by_power_in,
            )
        every = self._intervals
        rounds: list[tuple[int, str, Callable[[LogDirectory], Awaitable[None]]]] = [
            (every.retention_check_ms, "log retention", self._delete_old_segments),
            (every.flush_check_ms, "log flush", self._flush_due),
            (every.recovery_point_checkpoint_ms, "recovery point checkpoint", self._checkpoint_recovery_points),
            (every.log_start_checkpoint_ms, "log start checkpoint", lambda at: self._log_starts[at].write()),
            (every.high_watermark_checkpoint_ms, "high watermark", self._checkpoint_high_watermarks),
            (every.producer_expiration_check_ms, "producer expiration", self._expire_producers),
        ]
        for interval_ms, name, work in rounds:
            if interval_ms < NEVER:
                for directory in directories:
                    self._start(self._every(interval_ms, name, work, directory), f"{name} in {directory}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self._start_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def stop(self) -> None:
        """End the loops and wait for the work in progress. Pending removals are left to the next startup.
        Idempotent."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _known_high_watermarks(self, logs: Iterable[Log]) -> dict[TopicPartition, int]:
        """Return the high watermark of each log that has files, or had files before they were lost."""
        known = ((log, self._unsettled.known_high_watermark(log)) for log in logs)
        return {(log.topic, log.partition): offset for log, offset in known if log.is_written or offset}

    async def _checkpoint_high_watermarks(self, directory: LogDirectory) -> None:
        await self._high_watermarks[directory].write()
        await self._unwritten[directory].write()
        await self._power_cuts[directory].write()

    async def checkpoint(self, directory: LogDirectory) -> None:
        """Write all checkpoints of a directory now. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""
        for kind in (self._recovery_points, self._log_starts, self._high_watermarks, self._cleaner_offsets):
            await kind[directory].write()
        await self._unwritten[directory].write()
        await self._power_cuts[directory].write()

    async def checkpoint_unwritten(self, directory: LogDirectory) -> None:
        """Write the list of logs that have no files yet. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""
        await self._unwritten[directory].write()

    async def add_unwritten(self, directory: LogDirectory, logs: Iterable[Log]) -> None:
        """Add these logs to the list of logs that have no files yet, without a sync: a crash of the machine may lose
        the addition. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""
        added = unwritten_logs(self._owner, self._unsettled, directory, logs)
        if added:
            await self._unwritten[directory].extend(partial(directory.unwritten_logs.add, added))

    async def checkpoint_power_cut(self, directory: LogDirectory) -> None:
        """Write the list of logs that may lack records because of a power cut. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR."""
        await self._power_cuts[directory].write()

    def forget_power_cut(self, directory: LogDirectory) -> None:
        """Start a task that empties the directory's list of logs that may lack records because of a power cut. If the
        disk fails, the directory goes offline."""
        self._start(self._forget_power_cut(directory), f"forgetting a power cut of {directory}")

    async def _forget_power_cut(self, directory: LogDirectory) -> None:
        with suppress(KafkaError):  # the directory's failure was reported
            await self.checkpoint_power_cut(directory)

    async def checkpoint_cleaner(self, directory: LogDirectory) -> None:
        """Write the checkpoint of cleaner offsets now. Raises ``KafkaError`` KAFKA_STORAGE_ERROR."""
        await self._cleaner_offsets[directory].write()

    def remove_later(self, directory: LogDirectory, paths: Sequence[Path], delay_ms: int) -> None:
        """Remove renamed files, or a partition's renamed directory, after ``delay_ms``. If the disk fails, the
        directory goes offline. Nothing is removed if it is offline by then."""
        if not paths:
            return

        def begin() -> None:
            self._timers.discard(timer)
            self._start(self._remove(directory, paths), "removal of deleted logs")

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, begin)
        self._timers.add(timer)

    async def _every(
        self, interval_ms: int, name: str, work: Callable[[LogDirectory], Awaitable[None]], directory: LogDirectory
    ) -> None:
        await asyncio.sleep(interval_ms / 1000)
        while directory.online:
            try:
                await work(directory)
            except KafkaError as error:
                _log.warning("%s in %s ended early: %s", name, directory, error)
            except Exception:
                _log.exception("%s in %s failed; the next attempt is in %d ms", name, directory, interval_ms)
            await asyncio.sleep(interval_ms / 1000)

    async def _remove(self, directory: LogDirectory, paths: Sequence[Path]) -> None:
        if directory.online:
            try:
                await self._owner.run(directory, _remove, directory, paths)
            except KafkaError as error:
                _log.warning("cannot remove deleted files: %s", error)

    async def _in_chunks(self, directory: LogDirectory, some: Iterable[Log], work: Callable[[Log], None]) -> None:
        logs = [log for log in some if log.is_written]
        for begin in range(0, len(logs), CHUNK):
            await self._owner.run(directory, _for_each, logs[begin : begin + CHUNK], work)

    async def _delete_old_segments(self, directory: LogDirectory) -> None:
        passed: dict[Log, int] = {}
        removed: list[tuple[int, list[Path]]] = []
        now_ms = self._now_ms()

        def pass_old_segments(log: Log) -> None:
            if (end := log.pass_old_segments(now_ms)) is not None:
                passed[log] = end

        def delete_passed_segments(log: Log) -> None:
            removed.append((log.config.file_delete_delay_ms, log.delete_segments_below(passed[log])))

        await self._in_chunks(directory, self._owner.logs_in(directory), pass_old_segments)
        if passed:
            # Without these checkpoints, recovery would treat the removed segments as lost.
            await self._log_starts[directory].write()
            await self._in_chunks(directory, passed, delete_passed_segments)
            await self._recovery_points[directory].write()
        for delay_ms, paths in removed:
            self.remove_later(directory, paths, delay_ms)

    async def _flush_due(self, directory: LogDirectory) -> None:
        now_ms = self._now_ms()

        def flush(log: Log) -> None:
            if log.flush_due(now_ms):
                log.flush()

        await self._in_chunks(directory, self._owner.logs_in(directory), flush)

    async def _checkpoint_recovery_points(self, directory: LogDirectory) -> None:
        def flush_sealed(log: Log) -> None:
            log.flush(log.segments[-1].base_offset)

        await self._in_chunks(directory, self._owner.logs_in(directory), flush_sealed)
        await self._recovery_points[directory].write()

    async def _expire_producers(self, directory: LogDirectory) -> None:
        now_ms = self._now_ms()

        def expire(log: Log) -> None:
            log.expire_producers(now_ms)

        await self._in_chunks(directory, self._owner.logs_in(directory), expire)


def _for_each(logs: Sequence[Log], work: Callable[[Log], None]) -> None:
    for log in logs:
        try:
            work(log)
        except KafkaError as error:
            _log.warning("maintenance of %r failed: %s", log, error)


def _remove(directory: LogDirectory, paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir():
            directory.remove(path)
        else:
            path.unlink(missing_ok=True)
