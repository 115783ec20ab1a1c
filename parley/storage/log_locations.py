"""The locations of a broker's logs, and the partitions that a task has locked. Used on the event loop only.

Several directories may contain a log of one partition (twins). One of the twins is current; the others will be set
aside. A partition whose directory is offline keeps its location, although its log is not available.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory


class LogLocations:
    """The table of all logs in the broker's directories."""

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        self.directories = directories
        self._logs: dict[TopicPartition, Log] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        self._in: dict[LogDirectory, dict[TopicPartition, Log]] = {directory: {} for directory in directories}
        self._marks: dict[LogDirectory, object] = {directory: object() for directory in directories}
        self._busy: dict[TopicPartition, asyncio.Future[None]] = {}

    # --- Lookup ---

    def get(self, key: TopicPartition) -> Log | None:
        """Return the log of a partition, or None if the partition has no log.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log is in a directory that is offline.
        """
        log = self._logs.get(key)
        if log is None and (home := self._homes.get(key)) is not None and not home.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key[0]}-{key[1]} is in {home}, which is offline")
        return log

    def only(self, key: TopicPartition) -> Log | None:
        """Return the log of a partition, or None if the partition may have twins, has no log, or is locked by a
        task."""
        return self._logs.get(key) if len(self.directories) == 1 and key not in self._busy else None

    def is_unknown(self, key: TopicPartition) -> bool:
        """Return True if the partition has no log in any directory, online or not, and no task is working on one."""
        return key not in self._homes and key not in self._busy and not any(key in logs for logs in self._in.values())

    def home(self, key: TopicPartition) -> LogDirectory | None:
        """Return the directory of the partition's log, online or not; None if it has no log."""
        return self._homes.get(key)

    @property
    def homes(self) -> Mapping[TopicPartition, LogDirectory]:
        """The directory of every log, online or not."""
        return self._homes

    def home_of(self, log: Log) -> LogDirectory:
        """Return the directory of a log.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log was deleted, was replaced, or is in an offline directory.
        """
        key = (log.topic, log.partition)
        if not self.is_current(key, log):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} no longer exists")
        return self._homes[key]

    @property
    def logs(self) -> list[Log]:
        """All available logs."""
        return list(self._logs.values())

    def logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Return the logs in a directory, including twins; empty if it is offline. The result changes with the table:
        copy it before an ``await``."""
        return self._in[directory]

    def is_current(self, key: TopicPartition, log: Log) -> bool:
        """Return True if this is the partition's current log, not a twin or an earlier log."""
        return self._logs.get(key) is log

    def twins(self, key: TopicPartition) -> list[tuple[LogDirectory, Log]]:
        """Return all logs of a partition, each with its directory."""
        return [(directory, logs[key]) for directory, logs in self._in.items() if key in logs]

    def mark(self, directory: LogDirectory) -> object:
        """Return the directory's current mark. Another mark means that its logs have changed (``note_change``)."""
        return self._marks[directory]

    # --- Changes ---

    def note_change(self, directory: LogDirectory) -> None:
        """Record that a log was added to the directory or removed from it, or got files or a topic id. Any thread may
        call this."""
        self._marks[directory] = object()

    def add(self, key: TopicPartition, log: Log, directory: LogDirectory, *, is_current: bool = True) -> None:
        """Add a log; with ``is_current``, make it the partition's current log."""
        self._in[directory][key] = log
        self.note_change(directory)
        if is_current:
            self.choose(key, log, directory)

    def choose(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Make one of the twins the partition's current log."""
        self._logs[key], self._homes[key] = log, directory

    def keep(self, keys: Sequence[TopicPartition], directory: LogDirectory) -> None:
        """Record that the logs of these partitions are in ``directory``, which is offline."""
        self._homes.update(dict.fromkeys(keys, directory))

    def remove(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Remove a log from the table."""
        del self._in[directory][key]
        self.note_change(directory)
        if self.is_current(key, log):
            del self._logs[key], self._homes[key]

    def lose(self, directory: LogDirectory) -> list[Log]:
        """Remove the logs in a directory that has gone offline from the table, and return them. The partitions keep
        their location."""
        lost = list(self._in[directory].items())
        for key, log in lost:
            if self.is_current(key, log):
                del self._logs[key]
        self._in[directory].clear()
        self.note_change(directory)
        return [log for _, log in lost]

    def clear(self) -> None:
        """Remove all logs and locations."""
        for logs in self._in.values():
            logs.clear()
        self._logs.clear()
        self._homes.clear()

    # --- Locks ---

    async def free(self, key: TopicPartition) -> None:
        """Wait until no task has locked the partition to create, truncate or delete a log."""
        while (busy := self._busy.get(key)) is not None:
            await asyncio.wait([busy])

    async def all_free(self) -> None:
        """Wait until no partition is locked."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    def is_busy(self, key: TopicPartition) -> bool:
        """Return True if a task has locked the partition, so that ``free`` would wait."""
        return key in self._busy

    @contextmanager
    def busy(self, key: TopicPartition) -> Iterator[None]:
        """Context manager that locks the partition: other tasks that call ``free`` wait until the block ends. The
        partition must not be locked already, so the caller awaits ``free`` first."""
        self._busy[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._busy.pop(key).set_result(None)
