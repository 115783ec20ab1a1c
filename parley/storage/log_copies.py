"""Copies of logs in other log directories, from their creation until each replaces its log (KIP-113).

``future_log.py`` manages the files of a copy. The log manager owns the copies; ``parley.broker.replication`` fills
them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.storage.future_log import future_name, mark_successor, unmark_successor
from parley.storage.log import Log
from parley.storage.log_directory import NAME_MAX, LogDirectory, Mark, partition_name
from parley.storage.log_directory_failure import LogDirectoryFailures
from parley.storage.log_locations import LogLocations
from parley.storage.log_maintenance import LogMaintenance
from parley.storage.log_place import LogEvents, LogPlace, LogSettings
from parley.storage.unsettled_logs import UnsettledLogs

T = TypeVar("T")


class CopiesAndStraysOwner(Protocol):
    """The part of the log manager that the classes for copies and strays use."""

    @property
    def compaction_paused(self) -> Callable[[Log], AbstractAsyncContextManager[None]]:
        """A function that returns a context manager in which the log is not compacted."""

    async def run(self, directory: LogDirectory, work: Callable[..., T], *args: Any) -> T:
        """Run ``work(*args)`` in the executor, and return its result. An ``OSError`` takes the directory offline and is
        raised as ``KafkaError`` KAFKA_STORAGE_ERROR."""

    def set_aside(self, directory: LogDirectory, log: Log, mark: Mark) -> list[Path]:
        """Close the log and rename its directory, with a suffix for ``mark``. Returns a list with the new path; an
        empty list if the log has no directory yet. Blocks. Raises ``OSError``."""


class LogCopies:
    """The copies of one broker's logs. Used on the event loop only."""

    def __init__(
        self,
        owner: CopiesAndStraysOwner,
        settings: LogSettings,
        locations: LogLocations,
        unsettled: UnsettledLogs,
        maintenance: LogMaintenance,
        failures: LogDirectoryFailures,
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._locations = locations
        self._unsettled = unsettled
        self._maintenance = maintenance
        self._failures = failures
        self.in_progress: dict[TopicPartition, tuple[Log, LogDirectory]] = {}
        """The copies in progress, and their directories."""
        self.begun: dict[TopicPartition, LogDirectory] = {}
        """Copies that the previous process did not finish, and their directories. Their data is discarded."""

    @property
    def logs(self) -> list[Log]:
        """The copies in progress. Any thread may call this."""
        return [copy for copy, _ in list(self.in_progress.values())]

    def is_moving(self, partition: TopicPartition) -> bool:
        """Return True if the log is being copied, or was being copied when the previous process ended. Such a copy
        starts from the beginning."""
        return partition in self.in_progress or partition in self.begun

    async def begin(self, log: Log, directory: LogDirectory) -> Log:
        """Create an empty copy of a log in another directory. Each log has at most one copy.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR; INVALID_TOPIC_EXCEPTION if the name of the copy's directory would be
        too long.
        """
        key = (log.topic, log.partition)
        name = future_name(*key, self._settings.random)
        if len(name) > NAME_MAX:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for a directory name")
        async with self._owner.compaction_paused(log):
            copy = await self._owner.run(directory, self._begin_in, log, directory, name)
            await self._owner.run(directory, directory.sync)
            self.in_progress[key] = (copy, directory)
        return copy

    def _begin_in(self, log: Log, directory: LogDirectory, name: str) -> Log:
        path = directory.create(name, log.topic_id, log.partition)
        settings = replace(self._settings, config=log.config)
        events = LogEvents(partial(self._failures.on_io_error, directory))
        copy = Log.open(LogPlace(path, log.topic, log.partition, log.topic_id, events), settings)
        copy.truncate_fully_and_start_at(log.log_start_offset)
        return copy

    async def drop(self, copy: Log) -> None:
        """Abandon a copy and remove its files. Does nothing if the copy is no longer in progress."""
        key = (copy.topic, copy.partition)
        known = self.in_progress.get(key)
        if known is not None and known[0] is copy:
            del self.in_progress[key]
            self._unsettled.settle(copy)
            copy.release()
            if known[1].online:
                self._maintenance.remove_later(known[1], [copy.directory], 0)

    def leave(self, copy: Log) -> None:
        """Stop a copy in progress, but keep its files, so that the next startup finds the copy in ``begun``."""
        del self.in_progress[copy.topic, copy.partition]
        copy.release()

    async def prepare(self, log: Log, copy: Log) -> None:
        """Flush a copy that is about to replace the log, and mark it as the log's successor.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        if not log.is_written:
            await self._maintenance.checkpoint_unwritten(self._locations.home_of(log))
        directory = self.in_progress[copy.topic, copy.partition][1]
        await self._unsettled.prepare_successor(log, copy, directory)
        await self._owner.run(directory, mark_successor, log, copy)

    def replace(self, log: Log, copy: Log) -> None:
        """Replace the partition's log with a prepared, complete copy. The caller calls ``retire`` next.

        Call this on the event loop, without an ``await`` since ``copy_some`` found the copy complete: otherwise the log
        may have changed. Raises ``KafkaError`` KAFKA_STORAGE_ERROR, and changes nothing, if the disk fails or the log
        is being deleted or truncated.
        """
        key = (log.topic, log.partition)
        if self._locations.is_busy(key) or not self._locations.is_current(key, log):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} cannot be replaced while it is being changed")
        _, directory = self.in_progress[key]
        target = directory.path / partition_name(*key)
        try:
            copy.directory.rename(target)
        except OSError as error:
            raise self._failures.failed(directory, error) from error
        copy.moved(target)
        del self.in_progress[key]
        self._locations.remove(key, log, self._locations.home_of(log))
        self._locations.add(key, copy, directory)
        self._unsettled.succeed(log, copy)

    async def retire(self, log: Log, directory: LogDirectory) -> None:
        """Mark for deletion the log in ``directory`` that a copy has replaced, and remove its files later.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        key = (log.topic, log.partition)
        await self._locations.free(key)
        with self._locations.busy(key):
            home = self._locations.home(key)
            if home is not None:
                await self._owner.run(home, home.sync)
            aside = await self._owner.run(directory, self._owner.set_aside, directory, log, Mark.DELETE)
            self._maintenance.remove_later(directory, aside, log.config.file_delete_delay_ms)
            for each in (directory, home):
                if each is not None and each.online:
                    await self._maintenance.checkpoint(each)
            if home is not None:
                await self._owner.run(home, unmark_successor, self._locations.logs_in(home)[key].directory)
