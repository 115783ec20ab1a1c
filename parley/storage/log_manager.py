"""All logs of a broker, in all its log directories (``log.dirs``): opening, creating, deleting and closing them.

Rules (docs/storage.md has them all):

1. Work that may wait for a disk runs in the executor. The tables in this module change on the event loop only.
2. A directory whose disk fails goes offline with all its logs (``parley.storage.log_directory_failure``).
3. A deleted log's checkpoint entries are removed before its name can be used again.
4. Only one task at a time creates, identifies or deletes the log of a partition.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.clean_shutdown import CLOSERS, DirectoryCloser, common_epoch
from parley.storage.damage.mending import Mending
from parley.storage.directory_loader import DirectoryLoader, refuse_twins, report, report_missing
from parley.storage.io_threads import IoThreads
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_copies import LogCopies
from parley.storage.log_directory import NAME_MAX, LogDirectory, Mark, partition_name
from parley.storage.log_directory_failure import LogDirectoryFailures
from parley.storage.log_locations import LogLocations
from parley.storage.log_maintenance import LogMaintenance, MaintenanceIntervals, StartTask
from parley.storage.log_place import LogEvents, LogSettings, SharedByLogs
from parley.storage.new_log import NewLog
from parley.storage.resource_exhaustion import RESERVES
from parley.storage.stray_logs import StrayLogs
from parley.storage.unsettled_logs import UnsettledLogs

T = TypeVar("T")

_log = logging.getLogger(__name__)


class NoLogDirectory(RuntimeError):
    """Raised if all log directories are offline."""


class LogManager:
    """The logs of one broker, on one event loop. Call ``open`` first and ``close`` last."""

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        default_config: LogConfig,
        now_ms: Callable[[], int],
        random: Random,
        start_task: StartTask,
        intervals: MaintenanceIntervals,
        recovery_threads_per_directory: int = 1,
        producer_expiration_ms: int = 86_400_000,
        highest_leader_epoch: int = NO_EPOCH,
        measured_flush: Callable[[], AbstractContextManager[object]] = nullcontext,
        on_offline: Callable[[LogDirectory, list[Log]], None] = lambda directory, logs: None,
        on_all_offline: Callable[[], None] = lambda: None,
        on_opening: Callable[[int, int], None] = lambda opened, logs: None,
        executor: Executor | None = None,
        closing: Executor | None = None,
    ) -> None:
        """``default_config`` applies to topics without a configuration. ``start_task`` starts the maintenance.
        ``highest_leader_epoch`` is the highest leader epoch of all partitions (``LastKnown``). Each flush of a log runs
        in a context manager that ``measured_flush`` returns, in any thread.

        Calls ``on_offline`` for each directory that fails, with its logs, which must no longer be used, and
        ``on_all_offline`` after the last one. If ``open`` takes a long time, it repeatedly calls ``on_opening`` with
        the number of open logs and the number of all logs. Work that waits for a disk runs in ``executor``; ``close``
        closes the logs in ``closing``. Both default to the loop's executor. Raises ``ValueError`` if ``directories``
        contains a directory twice.
        """
        resolved = [path.resolve() for path in directories]
        for path in resolved:
            if resolved.count(path) > 1:
                raise ValueError(f"log.dirs names {path} more than once")
        self.directories = tuple(LogDirectory(path) for path in resolved)
        self._settings = LogSettings(
            config=default_config,
            now_ms=now_ms,
            random=random,
            producer_expiration_ms=producer_expiration_ms,
            highest_leader_epoch=highest_leader_epoch,
            measured_flush=measured_flush,
        )
        self._threads_per_directory = max(1, recovery_threads_per_directory)
        self._threads = IoThreads(executor)
        self._closing_threads = IoThreads(closing)
        self._start_task = start_task
        self._on_offline = on_offline
        self._on_opening = on_opening
        self.unsettled = UnsettledLogs(
            lambda directory: self._maintenance.checkpoint_power_cut(directory),
            lambda directory: self._maintenance.forget_power_cut(directory),
        )
        self._maintenance = LogMaintenance(self, self.unsettled, start_task, intervals, now_ms)
        self._locations = LogLocations(self.directories)
        self.failures = LogDirectoryFailures(
            self._locations,
            self._threads,
            start_task,
            is_open=lambda: self._open,
            on_offline=self._went_offline,
            on_all_offline=on_all_offline,
        )
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        self._shared: dict[LogDirectory, SharedByLogs] = {}  # of the last log that was created in each directory
        self.copies = LogCopies(self, self._settings, self._locations, self.unsettled, self._maintenance, self.failures)
        self.strays = StrayLogs(self, self.directories, self._locations, self.unsettled, self._maintenance)
        self.broker_epoch: Callable[[], int] = lambda: NO_EPOCH
        """Returns the latest broker epoch of this process; ``NO_EPOCH`` before the broker is registered. A clean
        shutdown writes the epoch into the markers (KIP-966)."""
        self.previous_broker_epoch = NO_EPOCH
        """The broker epoch in the markers of the previous shutdown; ``NO_EPOCH`` unless all directories were shut down
        cleanly."""
        self.compaction_paused: Callable[[Log], AbstractAsyncContextManager[None]] = lambda log: nullcontext()
        """Returns a context manager that stops a compaction of the log and prevents another until the block ends."""
        self._created: list[Log] = []  # since the last call of ``note_new_logs``
        self._loaders: Sequence[DirectoryLoader] = ()
        self._open = False

    # --- Opening and closing ---

    async def open(self, cluster_id: str, broker_id: int) -> None:
        """Lock the directories and open every log in them.

        After a crash, recovers the logs, which may take a long time, and logs the progress. Raises ``NoLogDirectory``,
        the errors of ``LogDirectory.open`` that must stop the broker, and ``OSError`` if the process has run out of
        file descriptors or memory. After a failure, everything is closed again.
        """
        self.failures.watch()
        settings = replace(self._settings, config=replace(self._settings.config, cleanup_policy=frozenset()))
        loaders = [
            DirectoryLoader(each, settings, partial(self.failures.on_io_error, each)) for each in self.directories
        ]
        self._loaders = loaders
        for reserve in RESERVES:
            reserve.call_when_short(self.rest)
        try:
            await self._threads.run_all([partial(loader.prepare, cluster_id, broker_id) for loader in loaders])
            await self._threads.run_all([partial(refuse_twins, loaders, self._settings.random)])
            work = [loader.work for loader in loaders for _ in range(self._threads_per_directory)]
            await self._threads.run_all(work, partial(self._report, loaders))
            await self._threads.run_all([loader.finish for loader in loaders])
            if not any(loader.directory.online for loader in loaders):
                raise NoLogDirectory("; ".join(f"{each}: {each.error}" for each in self.directories))
        except BaseException:
            for loader in loaders:
                loader.release()
            self._forget()
            raise
        report_missing(loaders)
        self._open = True
        used = [loader for loader in loaders if loader.directory.online and not loader.directory.is_new]
        self.previous_broker_epoch = common_epoch([loader.marker for loader in used])
        self._maintenance.start(self.directories)
        for loader in sorted(loaders, key=lambda each: each.directory.online):  # so that online directories win
            self._adopt(loader)
        for loader in loaders:
            self._adopt_unwritten(loader)
            self._adopt_missing(loader)
        for loader in loaders:
            self._adopt_copies(loader)
        self._loaders = ()

    def _report(self, loaders: Sequence[DirectoryLoader]) -> None:
        report(loaders)
        online = [loader for loader in loaders if loader.directory.online]
        self._on_opening(sum(len(each.logs) for each in online), sum(len(each.partitions) for each in online))

    def rest(self) -> None:
        """Close the files and maps of all logs until they are needed again. Any thread may call this."""
        for loader in self._loaders:
            loader.rest()
        for log in (*self.logs, *self.copies.logs):
            log.rest()

    def _adopt(self, loader: DirectoryLoader) -> None:
        directory = loader.directory
        if not directory.online:
            loader.release()
            self._locations.keep([*loader.partitions, *loader.unwritten], directory)
            return
        for partition, log in loader.logs.items():
            self._locations.add(partition, log, directory)
        self.unsettled.lost_below.update(loader.lost_below)
        if loader.cut_by_power:
            cut = {loader.logs[key] for key in loader.cut_by_power if key in loader.logs}
            self.unsettled.note_power_cut(directory, cut)

    def _adopt_copies(self, loader: DirectoryLoader) -> None:
        directory = loader.directory
        if not directory.online:
            return
        for partition, path in loader.copies.items():
            if self._locations.home(partition) is not None:
                self.copies.begun[partition] = directory
                loader.deleted.append(path)
            else:
                _log.warning("ignoring a copy of a log that does not exist", extra={"path": str(path)})
        self._maintenance.remove_later(directory, loader.deleted, 0)

    def _adopt_unwritten(self, loader: DirectoryLoader) -> None:
        """Recreate the logs that had no files, unless another directory may contain them with records."""
        if not loader.directory.online:
            return
        some_are_offline = len(self.online()) < len(self.directories)
        for partition, unwritten in loader.unwritten.items():
            twins = [log for _, log in self._locations.twins(partition)]
            if some_are_offline and unwritten.is_moving:
                loader.directory.kept_unwritten[partition] = unwritten
            elif not any(log.topic_id in (None, unwritten.topic_id) for log in twins):
                log = self._new(partition, unwritten.topic_id, self._settings.config, loader.directory)
                self._locations.add(partition, log, loader.directory, is_current=not twins)

    def _adopt_missing(self, loader: DirectoryLoader) -> None:
        """Create an empty log for each log whose directory has disappeared, unless another directory may contain it.

        The report to the controller then includes the missing records, even before the broker hosts the partitions, and
        the checkpoint of high watermarks keeps the high watermarks until the logs are settled.
        """
        if not loader.directory.online or len(self.online()) < len(self.directories):
            return
        for partition, high_watermark in loader.missing.items():
            if self._locations.home(partition) is None:
                log = self._new(partition, None, self._settings.config, loader.directory)
                self._locations.add(partition, log, loader.directory)
                self.unsettled.lost_below[log] = high_watermark

    def _new(self, key: TopicPartition, topic_id: UUID | None, config: LogConfig, directory: LogDirectory) -> Log:
        shared = self._shared.get(directory)
        if shared is None or shared.settings.config is not config:
            settings = replace(self._settings, config=config)
            events = LogEvents(
                partial(self.failures.on_io_error, directory),
                directory.unwritten_logs.begin,
                partial(self._locations.note_change, directory),
            )
            shared = self._shared[directory] = SharedByLogs(directory.path, settings, events)
        return NewLog(key, topic_id, shared)

    async def note_new_logs(self) -> None:
        """Record the directory of each log without files. If the broker is killed before this, it forgets these logs,
        and the controller must assume that their records are lost.

        With a single directory, the record is cheaper, because it is not synced: after a crash of the machine, a log
        can only be in that directory. A directory that fails meanwhile goes offline.
        """
        created, self._created = self._created, []
        for directory in self.online():
            with suppress(KafkaError):  # the directory's failure was reported
                if len(self.directories) > 1:
                    await self._maintenance.checkpoint_unwritten(directory)
                else:
                    await self._maintenance.add_unwritten(directory, created)

    async def close(self) -> None:
        """Flush and close every log, and mark each directory as cleanly shut down. Idempotent.
        A log or directory that cannot be closed cleanly is only reported in the broker's log, and its directory gets no
        mark.
        """
        if not await self._end():
            return
        epoch = self.broker_epoch()
        if epoch == NO_EPOCH:  # nothing was appended, so the last shutdown still counts
            epoch = self.previous_broker_epoch
        closing = [DirectoryCloser(directory, self._locations.logs_in(directory)) for directory in self.online()]
        await self._closing_threads.run_all([each.work for _ in range(CLOSERS) for each in closing])
        for each in closing:
            if each.clean and each.directory.online:
                try:
                    await self._maintenance.checkpoint(each.directory)
                    await self.run(each.directory, each.mark, epoch)
                except KafkaError as error:
                    _log.error("%s cannot be shut down cleanly: %s", each.directory, error)
        self._forget()

    async def abandon(self) -> None:
        """Close the files as if the process were killed, without flushing or marking a directory as cleanly shut
        down."""
        if await self._end():
            await self.failures.release(self.logs)
            self._forget()

    async def _end(self) -> bool:
        """Start no more work, and wait for the work in progress. Returns False if the manager was already closed."""
        if not self._open:
            return False
        self._open = False
        await self._maintenance.stop()
        await self._locations.all_free()
        return True

    def _forget(self) -> None:
        for reserve in RESERVES:
            reserve.forget(self.rest)
        for directory in self.directories:
            directory.close()
        self._locations.clear()

    # --- The logs ---

    def get(self, topic: str, partition: int) -> Log | None:
        """Return the log of a partition, or None if the partition has no log.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log is in a directory that is offline.
        """
        return self._locations.get((topic, partition))

    @property
    def logs(self) -> list[Log]:
        """All available logs."""
        return self._locations.logs

    def online(self) -> list[LogDirectory]:
        """Return the directories that are online."""
        return [directory for directory in self.directories if directory.online]

    def online_ids(self) -> tuple[UUID, ...]:
        """Return the ids of the directories that are online (KIP-858)."""
        return tuple(directory.id for directory in self.online() if directory.id is not None)

    @property
    def homes(self) -> Mapping[TopicPartition, LogDirectory]:
        """The directory of every log, including logs that are unavailable because their directory is offline."""
        return self._locations.homes

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        """Return the logs in a directory; none if it is offline."""
        return list(self._locations.logs_in(directory).values())

    def directory_of(self, log: Log) -> LogDirectory:
        """Return the directory of the log.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log was deleted or replaced, or its directory is offline. This
        may happen during any ``await`` of the caller.
        """
        return self._locations.home_of(log)

    def unwritten_mark(self, directory: LogDirectory) -> object:
        """Return a value that changes whenever the contents of ``unwritten-log-checkpoint`` may have changed."""
        copying, kept = tuple(self.copies.in_progress), directory.kept_unwritten.copy()
        return self._locations.mark(directory), tuple(self.unsettled.unproven), copying, kept

    def is_copying(self, partition: TopicPartition) -> bool:
        """Return True if the partition's log is being copied to another directory."""
        return partition in self.copies.in_progress

    async def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        is_new: bool = True,
        unproven_since: int | None = None,
    ) -> Log:
        """Return the log of a partition. If there is none, create it in the directory that ``prefer`` has set, or else
        in the one with the fewest logs.

        After creating logs, the caller calls ``note_new_logs`` before clients rely on them.

        ``is_new`` is False for a replica that existed before: its log is not created while a directory is offline,
        because that directory may contain it. If the replica may have had another log before, ``unproven_since`` is the
        partition epoch, and a log that is created is *unproven* (``UnsettledLogs``).

        Raises ``KafkaError``: KAFKA_STORAGE_ERROR; INVALID_TOPIC_EXCEPTION if the name of the log's directory would be
        too long; INCONSISTENT_TOPIC_ID if the log belongs to an earlier topic of the same name (delete that log first).
        """
        key = (topic, partition)
        create = partial(self._create, key, topic_id, config or self._settings.config, is_new, unproven_since)
        if self._locations.is_unknown(key):
            return create()
        log = self._locations.only(key)
        if log is None:
            if topic_id is not None:
                await self.strays.choose_twin(key, topic_id)
            await self._locations.free(key)
            log = self.get(topic, partition)
        if log is None:
            log = create()
        elif config is not None:
            log.config = config
        if topic_id is not None and log.topic_id != topic_id:
            await self._identify(log, topic_id)
        return log

    def prefer(self, topic: str, partition: int, directory: LogDirectory) -> None:
        """Set the directory in which the partition's log will be created if it has no log yet (KIP-113)."""
        self._preferred[topic, partition] = directory

    def _create(
        self, key: TopicPartition, topic_id: UUID | None, config: LogConfig, is_new: bool, unproven_since: int | None
    ) -> Log:
        name = partition_name(*key)
        if len(name) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for a directory name")
        directory = self._directory_for(key, self._preferred.pop(key, None), is_new)
        log = self._new(key, topic_id, config, directory)
        self._locations.add(key, log, directory)
        self._created.append(log)
        if unproven_since is not None:
            self.unsettled.unproven[log] = unproven_since
        return log

    def _directory_for(self, key: TopicPartition, preferred: LogDirectory | None, is_new: bool) -> LogDirectory:
        """Return the directory for a new log: the preferred one, or the one with the fewest logs."""
        online = self.online()
        if not online or (not is_new and len(online) < len(self.directories)):
            offline = ", ".join(str(each) for each in self.directories if not each.online)
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{partition_name(*key)} may be in {offline}, which is offline"
            )
        if preferred in online:
            return preferred
        return min(online, key=lambda each: len(self._locations.logs_in(each)))

    async def _identify(self, log: Log, topic_id: UUID) -> None:
        if log.topic_id is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{log!r} belongs to the topic with id {log.topic_id}, not {topic_id}"
            )
        with self._locations.busy((log.topic, log.partition)):
            directory = self.directory_of(log)
            await self.run(directory, log.identify, topic_id)
            self._locations.note_change(directory)

    async def delete(self, topic: str, partition: int, *, topic_id: UUID | None = None) -> bool:
        """Delete the log of a partition. Returns False if there is none. The name can be used again when this returns.

        With a ``topic_id``, deletes only a log of that topic, or a log without a topic id. Raises ``KafkaError``
        KAFKA_STORAGE_ERROR.
        """
        key = (topic, partition)
        await self._locations.free(key)
        log = self.get(topic, partition)
        if log is None or (topic_id is not None and log.topic_id not in (None, topic_id)):
            return False
        directory = self.directory_of(log)
        with self._locations.busy(key):
            async with self.compaction_paused(log):
                self._locations.remove(key, log, directory)
                self.unsettled.settle(log)
                aside = await self.run(directory, self.set_aside, directory, log, Mark.DELETE)
                if aside:  # the checkpoints of offsets do not contain a log without files
                    await self._maintenance.checkpoint(directory)
            self._maintenance.remove_later(directory, aside, log.config.file_delete_delay_ms)
        return True

    def set_aside(self, directory: LogDirectory, log: Log, mark: Mark) -> list[Path]:
        """Close the log and rename its directory. Returns a list with the new path; an empty list if the log has no
        directory yet. Blocks. Raises ``OSError``."""
        log.release()
        if not log.is_written and not log.has_directory():  # a failed first append may have created it
            return []
        aside = directory.set_aside(log.directory, self._settings.random, mark)
        log.moved(aside)
        return [aside]

    async def checkpoint(self, log: Log) -> None:
        """Write the checkpoints of the log's directory. Called after the log's end or start decreased, or after a
        flush.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        await self._maintenance.checkpoint(self.directory_of(log))

    async def cut(self, log: Log, cut: Callable[[Log], None]) -> None:
        """Truncate the log by calling ``cut`` in a thread, then write the checkpoints of its directory. The caller must
        not append before this returns.

        Raises ``KafkaError``: KAFKA_STORAGE_ERROR if the disk fails or the log was deleted meanwhile; CORRUPT_MESSAGE.
        """
        key = (log.topic, log.partition)
        await self._locations.free(key)
        directory = self.directory_of(log)
        with self._locations.busy(key):
            async with self.compaction_paused(log):
                await self.run(directory, cut, log)
                await self._maintenance.checkpoint(directory)

    async def finish_mending(self, log: Log, mending: Mending) -> None:
        """Put the mended records in place, and remove the files of the old segment later.

        Raises ``KafkaError``: KAFKA_STORAGE_ERROR if the disk fails or the log was truncated meanwhile;
        CORRUPT_MESSAGE.
        """
        directory = self.directory_of(log)
        if log.cleaned_up_to is not None:  # it was lowered: the mended range must also be dirty after a crash
            await self._maintenance.checkpoint_cleaner(directory)
        self.remove_replaced(log, await self.run(directory, mending.finish))

    async def checkpoint_cleaner(self, log: Log) -> None:
        """Write the checkpoint of the offsets up to which logs are compacted, in the log's directory.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        await self._maintenance.checkpoint_cleaner(self.directory_of(log))

    def remove_replaced(self, log: Log, paths: Sequence[Path]) -> None:
        """Remove the renamed files of segments that were replaced, after ``file.delete.delay.ms``.

        If the log was deleted or moved, the files are removed with its old directory.
        """
        if self._open and self._locations.is_current((log.topic, log.partition), log):
            self._maintenance.remove_later(self.directory_of(log), paths, log.config.file_delete_delay_ms)

    # --- Work on a disk ---

    async def run(self, directory: LogDirectory, work: Callable[..., T], *args: Any) -> T:
        """Run ``work(*args)`` in the executor, and return its result. An ``OSError`` is raised as ``KafkaError``
        KAFKA_STORAGE_ERROR. It takes the directory offline, unless the process has run out of a resource."""
        try:
            return await self._threads.run(work, *args)
        except OSError as error:
            raise self.failures.failed(directory, error) from error

    def _went_offline(self, directory: LogDirectory, logs: list[Log]) -> None:
        self.unsettled.went_offline(directory)
        self._on_offline(directory, logs)
