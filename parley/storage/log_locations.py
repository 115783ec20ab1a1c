"""Where the logs of a broker lie, and which of them somebody is busy with. Used on the event loop only.

Several directories may have a log of one partition, twins; one of them is the partition's, the others wait to be set
aside. A partition whose directory is offline keeps its place, though its log cannot be had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
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
        self._busy: dict[TopicPartition, asyncio.Future[None]] = {}

    # What is where.

    def get(self, key: TopicPartition) -> Log | None:
        """The log of a partition, or None where there is none.

        Raises :class:`KafkaError` KAFKA_STORAGE_ERROR when it lies in a directory that is offline.
        """
        log = self._logs.get(key)
        if log is None and (home := self._homes.get(key)) is not None and not home.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{key[0]}-{key[1]} is in {home}, which is offline")
        return log

    def home(self, key: TopicPartition) -> LogDirectory | None:
        """The directory of the partition's log, online or not; None where there is none."""
        return self._homes.get(key)

    def home_of(self, key: TopicPartition) -> LogDirectory:
        """The directory of a partition's log that is there."""
        return self._homes[key]

    @property
    def logs(self) -> list[Log]:
        """Every log that can be used."""
        return list(self._logs.values())

    def logs_in(self, directory: LogDirectory) -> dict[TopicPartition, Log]:
        """The logs in a directory, twins too."""
        return self._in[directory]

    def is_current(self, key: TopicPartition, log: Log) -> bool:
        """Whether this is the partition's log, and no twin of it, nor one that was there before."""
        return self._logs.get(key) is log

    def twins(self, key: TopicPartition) -> list[tuple[LogDirectory, Log]]:
        """Every log of a partition, and where it is."""
        return [(directory, logs[key]) for directory, logs in self._in.items() if key in logs]

    # Changes.

    def add(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """A log in a directory, which is the partition's from now on."""
        self._in[directory][key] = log
        self.choose(key, log, directory)

    def choose(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Make one of the twins the partition's log."""
        self._logs[key], self._homes[key] = log, directory

    def keep(self, keys: Sequence[TopicPartition], directory: LogDirectory) -> None:
        """Partitions whose logs are in a directory that cannot be used."""
        self._homes.update(dict.fromkeys(keys, directory))

    def remove(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        """Forget a log."""
        del self._in[directory][key]
        if self.is_current(key, log):
            del self._logs[key], self._homes[key]

    def lose(self, directory: LogDirectory) -> list[Log]:
        """The directory is offline, and its partitions keep their place; the logs that were in it."""
        lost = list(self._in[directory].items())
        for key, log in lost:
            if self.is_current(key, log):
                del self._logs[key]
        self._in[directory].clear()
        return [log for _, log in lost]

    def clear(self) -> None:
        """Forget everything."""
        for logs in self._in.values():
            logs.clear()
        self._logs.clear()
        self._homes.clear()

    # Who is busy.

    async def free(self, key: TopicPartition) -> None:
        """Wait until nobody makes, cuts or deletes a log of the partition."""
        while (busy := self._busy.get(key)) is not None:
            await asyncio.wait([busy])

    async def all_free(self) -> None:
        """Wait until nobody is busy with any log."""
        while self._busy:
            await asyncio.wait(self._busy.values())

    def is_busy(self, key: TopicPartition) -> bool:
        """Whether :meth:`free` would wait."""
        return key in self._busy

    @contextmanager
    def busy(self, key: TopicPartition) -> Iterator[None]:
        """While it is entered, others who want the partition's log wait."""
        self._busy[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._busy.pop(key).set_result(None)
