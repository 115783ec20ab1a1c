"""The locations of a broker's logs, and which partitions are locked by a task. Used on the event loop only.

Several directories may contain a log of one partition (twins). One of them is current; the others wait to be set aside.
A partition whose directory is offline keeps its location, although its log is not available.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.checkpoints import TopicPartition
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory


class LogLocations:
    """The table of the logs in some directories."""

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
        """Return the log of a partition if it is certainly the only one, and no task is working on it."""
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

    def home_of(self, key: TopicPartition) -> LogDirectory:
        """Return the directory of an existing log of a partition."""
        return self._homes[key]

    @property
    def logs(self) -> list[Log]:
        """Every log that is available."""
        return list(self._logs.values())

    def logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """Return the logs in a directory, including twins."""
        return self._in[directory]

    def is_current(self, key: TopicPartition, log: Log) -> bool:
        """Return True if this is the partition's current log, not a twin or an earlier log."""
        return self._logs.get(key) is log

    def twins(self, key: TopicPartition) -> list[tuple[LogDirectory, Log]]:
        """Return every log of a partition, with its directory."""
        return [(directory, logs[key]) for directory, logs in self._in.items() if key in logs]

    def mark(self, directory: LogDirectory) -> object:
        """Return an object that is another one after each change of the directory's logs (``note_change``)."""
        return self._marks[directory]

    # --- Changes ---

    def note_change(self, directory: LogDirectory) -> None:
        """Note that logs were added to the directory or removed from it, or that one got files or a topic id. Any
        thread may call this."""
        self._marks[directory] = object()

    def add(self, key: TopicPartition, log: Log, directory: LogDirectory, *, is_current: bool = True) -> None:
        """Add a log, and with ``is_current`` make it the partition's current one."""
        self._in[directory][key] = log
        self.note_change(directory)
        if is_current:
            self.choose(key, log, directory)

    def choose(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Make one of the twins the partition's current log."""
        self._logs[key], self._homes[key] = log, directory

    def keep(self, keys: Sequence[TopicPartition], directory: LogDirectory) -> None:
        """Remember the directory of partitions whose directory is offline."""
        self._homes.update(dict.fromkeys(keys, directory))

    def remove(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Remove a log from the table."""
        del self._in[directory][key]
        self.note_change(directory)
        if self.is_current(key, log):
            del self._logs[key], self._homes[key]

    def lose(self, directory: LogDirectory) -> list[Log]:
        """Take a directory offline and return the logs in it. Its partitions keep their location."""
        lost = list(self._in[directory].items())
        for key, log in lost:
            if self.is_current(key, log):
                del self._logs[key]
        self._in[directory].clear()
        self.note_change(directory)
        return [log for _, log in lost]

    def clear(self) -> None:
        """Remove everything."""
        for logs in self._in.values():
            logs.clear()
        self._logs.clear()
        self._homes.clear()

    # --- Locks ---

    async def free(self, key: TopicPartition) -> None:
        """Wait until no task creates, truncates or deletes a log of the partition."""
        while (busy := self._busy.get(key)) is not None:
            await asyncio.wait([busy])

    async def all_free(self) -> None:
        """Wait until no task works on any log."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    def is_busy(self, key: TopicPartition) -> bool:
        """Return True if ``free`` would wait."""
        return key in self._busy

    @contextmanager
    def busy(self, key: TopicPartition) -> Iterator[None]:
        """Lock the partition: other tasks that call ``free`` wait until the block ends."""
        self._busy[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._busy.pop(key).set_result(None)
