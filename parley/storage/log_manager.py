"""All logs of a broker, over all its log directories (``log.dirs``): opening, creating, deleting, closing them.

Rules:

1. Everything that may wait for a disk runs in the loop's executor; the tables here are changed on the loop only.
2. A directory whose disk fails goes offline with all its logs, once, and is not used again until the broker starts
   anew; the others go on. With the last one the broker must stop.
3. Checkpoints follow what they speak of: a deleted log's entries are gone before its name is free again, so that a new
   log of that name never inherits them.
4. What is deleted is renamed at once and removed after ``file.delete.delay.ms``; a stop forgets nothing, as the next
   start finds the renamed files.
5. Nothing of a log that was found on disk is let go before :meth:`LogManager.get_or_create` has told its topic's
   configuration.
6. A log is made, given its topic's id, and deleted by one at a time: who deletes it while it is made waits.
7. Work in the executor is never left alone: who is cancelled while waiting for it ends when it does.
8. Where two directories have a log of one partition, of topics with different ids, the one of the topic that is asked
   for counts. The other, and every log of a topic that no longer exists, is a stray: renamed, and kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.checkpoints import TopicPartition
from parley.storage.clean_shutdown import DirectoryCloser, release_all, write_marker
from parley.storage.directory_loader import DirectoryLoader, LogSettings, refuse_twins, report
from parley.storage.future_log import future_name, mark_successor, unmark_successor
from parley.storage.io_threads import IoThreads
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from parley.storage.log_directory import FULL, NAME_MAX, LogDirectory, Mark, is_of_disk, partition_name
from parley.storage.log_locations import LogLocations
from parley.storage.log_maintenance import DirectorySync, LogMaintenance, MaintenanceIntervals, StartTask
from parley.storage.partition_metadata import write_topic_id
from parley.storage.recovery import LastKnown

T = TypeVar("T")

_log = logging.getLogger(__name__)


class NoLogDirectory(RuntimeError):
    """None of the log directories can be used."""


class LogManager:
    """The logs of one broker, on one event loop: :meth:`open` first, :meth:`close` at the end."""

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
        on_offline: Callable[[LogDirectory, list[Log]], None] = lambda directory, logs: None,
        on_all_offline: Callable[[], None] = lambda: None,
        executor: Executor | None = None,
    ) -> None:
        """``default_config`` is for topics that no configuration is given for; ``start_task`` runs the upkeep.

        ``on_offline`` hears of each directory that fails, with its logs, which must not be used any more;
        ``on_all_offline`` when it was the last one. What waits for a disk is done in ``executor``, or the loop's own.
        Raises ``ValueError`` when a directory is named twice.
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
        )
        self._threads_per_directory = max(1, recovery_threads_per_directory)
        self._threads = IoThreads(executor)
        self._on_offline = on_offline
        self._on_all_offline = on_all_offline
        self._start_task = start_task
        self._maintenance = LogMaintenance(self, start_task, intervals, now_ms)
        self._locations = LogLocations(self.directories)
        self._reserved: Counter[LogDirectory] = Counter()
        self._syncs = {directory: DirectorySync(self, directory) for directory in self.directories}
        self._preferred: dict[TopicPartition, LogDirectory] = {}
        self._copies: dict[TopicPartition, tuple[Log, LogDirectory]] = {}
        self.copies_begun: dict[TopicPartition, LogDirectory] = {}
        """Copies that the last broker did not finish, and to where; what it had copied is thrown away."""
        self.was_deleted: Callable[[UUID], bool] = lambda topic_id: False
        """True for the id of a topic that is known to have been deleted. A log of another unknown topic is a stray."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open = False

    # Opening and closing

    async def open(self, cluster_id: str, broker_id: int) -> None:
        """Take the directories over and open every log in them.

        Recovers after a crash, however long it takes, and says how far it is. Raises :class:`NoLogDirectory`, and what
        :meth:`LogDirectory.open <parley.storage.log_directory.LogDirectory.open>` raises to stop the broker, and
        ``OSError`` when the process may not have so many files open; then everything is given back.
        """
        self._loop = asyncio.get_running_loop()
        settings = replace(self._settings, config=replace(self._settings.config, cleanup_policy=frozenset()))
        loaders = [DirectoryLoader(each, settings, partial(self._on_io_error, each)) for each in self.directories]
        try:
            await self._threads.run_all([partial(loader.prepare, cluster_id, broker_id) for loader in loaders])
            await self._threads.run_all([partial(refuse_twins, loaders, self._settings.random)])
            work = [loader.work for loader in loaders for _ in range(self._threads_per_directory)]
            await self._threads.run_all(work, partial(report, loaders))
            if not any(loader.directory.online for loader in loaders):
                raise NoLogDirectory("; ".join(f"{each}: {each.error}" for each in self.directories))
        except BaseException:
            for loader in loaders:
                loader.release()
            raise
        self._open = True
        self._maintenance.start(self.directories)
        for loader in sorted(loaders, key=lambda each: each.directory.online):  # what is online counts
            self._adopt(loader)

    def _adopt(self, loader: DirectoryLoader) -> None:
        directory = loader.directory
        if not directory.online:
            loader.release()
            self._locations.keep(loader.partitions, directory)
            return
        for partition, log in loader.logs.items():
            self._locations.add(partition, log, directory)
        for partition, path in loader.copies.items():
            if self._locations.home(partition) is not None:
                self.copies_begun[partition] = directory
                loader.deleted.append(path)
            else:
                _log.warning("%s is left alone: a copy of a log that is not there", path)
        self._maintenance.remove_later(directory, loader.deleted, 0)

    async def close(self) -> None:
        """Flush and close every log, and note in each directory that it was closed in order. Idempotent."""
        if not await self._end():
            return
        closing = [DirectoryCloser(directory, self._locations.logs_in(directory)) for directory in self.online()]
        await self._threads.run_all([each.work for each in closing for _ in range(self._threads_per_directory)])
        for each in closing:
            if each.clean and each.directory.online:
                try:
                    await self._maintenance.checkpoint(each.directory)
                    await self.run(each.directory, write_marker, each.directory.path)
                except KafkaError as error:
                    _log.error("%s is not closed in order: %s", each.directory, error)
        self._forget()

    async def abandon(self) -> None:
        """Give the files back as a process that is killed does: nothing is flushed, no directory noted as closed."""
        if await self._end():
            await self._release(self.logs)
            self._forget()

    async def _end(self) -> bool:
        """Let what is under way come to its end, and nothing begin; False where that was done before."""
        if not self._open:
            return False
        self._open = False
        await self._maintenance.stop()
        await self._locations.all_free()
        return True

    def _forget(self) -> None:
        for directory in self.directories:
            directory.close()
        self._locations.clear()

    # The logs

    def get(self, topic: str, partition: int) -> Log | None:
        """The log of a partition, or None where there is none.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR when it lies in a directory that is offline.
        """
        return self._locations.get((topic, partition))

    @property
    def logs(self) -> list[Log]:
        """Every log that can be used."""
        return self._locations.logs

    def online(self) -> list[LogDirectory]:
        """The directories that work."""
        return [directory for directory in self.directories if directory.online]

    def logs_in(self, directory: LogDirectory) -> list[Log]:
        """The logs in a directory, none if it is offline."""
        return list(self._locations.logs_in(directory).values())

    def directory_of(self, log: Log) -> LogDirectory:
        """Where the log lies."""
        return self._locations.home_of((log.topic, log.partition))

    async def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: UUID | None = None,
        config: LogConfig | None = None,
        is_new: bool = True,
    ) -> Log:
        """The log of a partition, made in the directory with the fewest partitions if there is none.

        ``is_new`` is False for a replica that was here before: then none is made while a directory is offline, for the
        log may be in it. Raises :class:`KafkaError`: KAFKA_STORAGE_ERROR, INCONSISTENT_TOPIC_ID when the log is that of
        an earlier topic of the name (delete it first).
        """
        key = (topic, partition)
        if topic_id is not None:
            await self._choose_twin(key, topic_id)
        await self._locations.free(key)
        log = self.get(topic, partition)
        if log is None:
            log = await self._create(key, topic_id, config or self._settings.config, is_new)
        elif config is not None:
            log.config = config
        if topic_id is not None and log.topic_id != topic_id:
            await self._identify(log, topic_id)
        return log

    def prefer(self, topic: str, partition: int, directory: LogDirectory) -> None:
        """Make the log of a partition that has none yet in this directory, should one be made (KIP-113)."""
        self._preferred[topic, partition] = directory

    async def _create(self, key: TopicPartition, topic_id: UUID | None, config: LogConfig, is_new: bool) -> Log:
        if len(partition_name(*key)) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition_name(*key)} is too long for a directory")
        online = self.online()
        if not online or (not is_new and len(online) < len(self.directories)):
            offline = ", ".join(str(each) for each in self.directories if not each.online)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition_name(*key)} may be in {offline}: offline")
        preferred = self._preferred.pop(key, None)
        directory = min(
            online, key=lambda each: (each is not preferred, len(self._locations.logs_in(each)) + self._reserved[each])
        )
        settings = replace(self._settings, config=config)
        self._reserved[directory] += 1
        with self._locations.busy(key):
            try:
                log = await self.run(directory, self._create_in, directory, key, topic_id, settings)
                await self._syncs[directory].sync()
            finally:
                self._reserved[directory] -= 1
            if not directory.online:
                log.release()
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is offline: {directory.error}")
            self._locations.add(key, log, directory)
            return log

    def _create_in(
        self, directory: LogDirectory, key: TopicPartition, topic_id: UUID | None, settings: LogSettings
    ) -> Log:
        path = directory.create(partition_name(*key), topic_id)
        return settings.open(path, key, topic_id, LastKnown(), partial(self._on_io_error, directory))

    async def _identify(self, log: Log, topic_id: UUID) -> None:
        if log.topic_id is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"{log!r} is of the topic with id {log.topic_id}, not {topic_id}"
            )
        with self._locations.busy((log.topic, log.partition)):
            await self.run(self.directory_of(log), write_topic_id, log.directory, topic_id)
            log.topic_id = topic_id

    async def delete(self, topic: str, partition: int, *, topic_id: UUID | None = None) -> bool:
        """Delete the log of a partition; False if there is none. Its name is free when this returns.

        With a ``topic_id`` only a log of that topic is, not that of another topic of the name; one that does not say
        whose it is may be. Raises :class:`KafkaError` KAFKA_STORAGE_ERROR.
        """
        key = (topic, partition)
        await self._locations.free(key)
        log = self.get(topic, partition)
        if log is None or (topic_id is not None and log.topic_id not in (None, topic_id)):
            return False
        directory = self.directory_of(log)
        with self._locations.busy(key):
            self._locations.remove(key, log, directory)
            aside = await self.run(directory, self._set_aside, directory, log, Mark.DELETE)
            await self._maintenance.checkpoint(directory)
            self._maintenance.remove_later(directory, [aside], log.config.file_delete_delay_ms)
        return True

    def _set_aside(self, directory: LogDirectory, log: Log, mark: Mark) -> Path:
        log.release()
        aside = directory.set_aside(log.directory, self._settings.random, mark)
        log.moved(aside)
        return aside

    # Strays

    async def set_strays_aside(self, is_wanted: Callable[[Log], bool]) -> None:
        """Rename the logs, twins included, that are not wanted: those of topics that were deleted while this broker was
        away, or of partitions that were moved. To be called once the metadata is known."""
        for directory in self.online():
            for log in self.logs_in(directory):
                key = (log.topic, log.partition)
                if not is_wanted(log) or not self._locations.is_current(key, log):
                    await self._set_stray_aside(key, log, directory)

    async def _choose_twin(self, key: TopicPartition, topic_id: UUID) -> None:
        """Of several logs of a partition, the one of this topic counts from now on; if there is one."""
        twins = self._locations.twins(key)
        right = next((twin for twin in twins if twin[1].topic_id == topic_id), None)
        if right is not None:
            self._locations.choose(key, right[1], right[0])
        for directory, log in twins:
            if not self._locations.is_current(key, log):
                await self._set_stray_aside(key, log, directory)

    async def _set_stray_aside(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        await self._locations.free(key)
        if self._locations.logs_in(directory).get(key) is not log:
            return
        deleted = log.topic_id is not None and self.was_deleted(log.topic_id)
        with self._locations.busy(key):
            self._locations.remove(key, log, directory)
            try:
                aside = await self.run(
                    directory, self._set_aside, directory, log, Mark.DELETE if deleted else Mark.STRAY
                )
                if deleted:  # before the checkpoints, which may need the room on a full disk
                    await self.run(directory, directory.remove, aside)
                await self._maintenance.checkpoint(directory)
            except KafkaError as error:
                _log.error("a stray log cannot be set aside", extra={"path": str(log.directory), "reason": str(error)})
                return
        facts = {"topic_id": str(log.topic_id), "path": str(aside)}
        if deleted:
            _log.info("a log is deleted: its topic was deleted while this broker could not do it", extra=facts)
        else:
            _log.warning("a stray log is set aside: remove it if its records are not needed", extra=facts)

    async def checkpoint(self, log: Log) -> None:
        """Write the checkpoints of the log's directory now: after its end or start went back.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR.
        """
        await self._maintenance.checkpoint(self.directory_of(log))

    async def cut(self, log: Log, cut: Callable[[Log], None]) -> None:
        """Let ``cut`` take records off the log's end, and write its checkpoints: nothing may be appended before.

        Raises :class:`KafkaError`: KAFKA_STORAGE_ERROR, also where the log was deleted meanwhile; CORRUPT_MESSAGE.
        """
        key = (log.topic, log.partition)
        await self._locations.free(key)
        if not self._locations.is_current(key, log):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} is no longer there")
        with self._locations.busy(key):
            directory = self.directory_of(log)
            await self.run(directory, cut, log)
            await self._maintenance.checkpoint(directory)

    # Moving logs between directories (``parley.storage.future_log``)

    @property
    def copies(self) -> Mapping[TopicPartition, tuple[Log, LogDirectory]]:
        """The copies that are being made, and where."""
        return self._copies

    async def begin_copy(self, log: Log, directory: LogDirectory) -> Log:
        """An empty copy of a log, in another directory. One at a time is made of each.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR; INVALID_TOPIC_EXCEPTION where its name would be too long.
        """
        key = (log.topic, log.partition)
        name = future_name(*key, self._settings.random)
        if len(name) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for a directory")
        copy = await self.run(directory, self._begin_copy_in, log, directory, name)
        await self._syncs[directory].sync()
        self._copies[key] = (copy, directory)
        return copy

    def _begin_copy_in(self, log: Log, directory: LogDirectory, name: str) -> Log:
        path = directory.create(name, log.topic_id)
        settings = replace(self._settings, config=log.config)
        on_io_error = partial(self._on_io_error, directory)
        copy = settings.open(path, (log.topic, log.partition), log.topic_id, LastKnown(), on_io_error)
        copy.truncate_fully_and_start_at(log.log_start_offset)
        return copy

    async def drop_copy(self, copy: Log) -> None:
        """Give a copy up, and remove it."""
        key = (copy.topic, copy.partition)
        known = self._copies.get(key)
        if known is not None and known[0] is copy:
            del self._copies[key]
            copy.release()
            if known[1].online:
                self._maintenance.remove_later(known[1], [copy.directory], 0)

    def leave_copy(self, copy: Log) -> None:
        """Stop making a copy: the next start finds it among :attr:`copies_begun`."""
        del self._copies[copy.topic, copy.partition]
        copy.release()

    async def prepare_copy(self, copy: Log) -> None:
        """Bring a copy that is about to replace the log to disk, with a note that it does.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR.
        """
        await self.run(self._copies[copy.topic, copy.partition][1], mark_successor, copy)

    def replace_log(self, log: Log, copy: Log) -> None:
        """Let a copy, which was prepared and is complete, be the partition's log from now on; :meth:`retire` follows.

        On the loop, in one go with the last bytes copied. Raises :class:`KafkaError` KAFKA_STORAGE_ERROR, also where
        the log is being deleted or cut: then all is as it was.
        """
        key = (log.topic, log.partition)
        if self._locations.is_busy(key) or not self._locations.is_current(key, log):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} cannot be replaced now")
        _, directory = self._copies[key]
        target = directory.path / partition_name(*key)
        try:
            copy.directory.rename(target)
        except OSError as error:
            self._fail(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory}: {error}") from error
        copy.moved(target)
        del self._copies[key]
        self._locations.remove(key, log, self.directory_of(log))
        self._locations.add(key, copy, directory)

    async def retire(self, log: Log, directory: LogDirectory) -> None:
        """Set the log aside that a copy has replaced, which was in ``directory``, and remove it later.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR.
        """
        key = (log.topic, log.partition)
        await self._locations.free(key)
        with self._locations.busy(key):
            home = self._locations.home(key)
            if home is not None:
                await self.run(home, home.sync)
            aside = await self.run(directory, self._set_aside, directory, log, Mark.DELETE)
            self._maintenance.remove_later(directory, [aside], log.config.file_delete_delay_ms)
            for each in (directory, home):
                if each is not None and each.online:
                    await self._maintenance.checkpoint(each)
            if home is not None:
                await self.run(home, unmark_successor, self._locations.logs_in(home)[key].directory)

    # Disks that fail

    async def run(self, directory: LogDirectory, work: Callable[..., T], *args: Any) -> T:
        """``work(*args)`` in the executor; an ``OSError`` is a ``KafkaError`` and takes the directory offline."""
        try:
            return await self._threads.run(work, *args)
        except OSError as error:
            if is_of_disk(error):
                self._fail(directory, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory}: {error}") from error

    def _on_io_error(self, directory: LogDirectory, error: OSError) -> None:
        """A log in ``directory`` met ``error``; called in any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail, directory, error)

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        if not self._open or not directory.fail(error):
            return
        logs = self._locations.lose(directory)
        remedy = "Make room on its disk" if error.errno in FULL else "Repair or replace its disk"
        rest = "The other log directories stay online" if self.online() else "No other log directory is online"
        text = "%s is offline, and its %d logs with it: %s. %s. %s, then restart the broker"
        _log.error(text, directory, len(logs), error, rest, remedy)
        directory.close()
        self._start_task(self._release(logs), name=f"release of {directory}")
        self._on_offline(directory, logs)
        if not self.online():
            self._on_all_offline()

    async def _release(self, logs: list[Log]) -> None:
        await self._threads.run_all([partial(release_all, logs)])
