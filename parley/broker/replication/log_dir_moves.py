"""Moves replicas to other log directories of this broker (KIP-113).

A move copies the log in a thread while the partition is in use. When the copy is nearly complete, the new directory is
reported to the controller (KIP-858), the rest is copied on the event loop, and the partition switches to the copy.
``num.replica.alter.log.dirs.threads`` limits the number of concurrent moves,
``replica.alter.log.dirs.io.max.bytes.per.second`` their rate. Moves that are interrupted because the broker stops are
restarted when it starts again. A move that fails leaves the replica where it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parley.broker.config import BrokerConfig
from parley.broker.config.key_definition import MAX_LONG
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.replica_directories import ReplicaDirectories
from parley.broker.replication.throttle import MeasuredRate
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.future_log import copy_some
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.log_manager import LogManager

_log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""The number of bytes copied at a time. A smaller remainder is copied on the event loop, in a few milliseconds."""
TRUNCATION_PAUSE_S = 0.01
CHECK_S = 1.0
"""How often a throttled move checks whether the limit or the log has changed."""


class LogDirMoves:
    """The current moves, including those that this broker had not finished when it last stopped."""

    def __init__(
        self,
        partitions: HostedPartitions,
        logs: LogManager,
        config: Callable[[], BrokerConfig],
        tasks: TaskSet,
        monotonic: Callable[[], float],
        directories: ReplicaDirectories,
    ) -> None:
        """``directories`` reports each move to the controller before it happens."""
        self._partitions = partitions
        self._logs = logs
        self._config = config
        self._tasks = tasks
        self._monotonic = monotonic
        self._directories = directories
        now = config()
        self._rate = MeasuredRate(
            now.alter_log_dirs_replication_quota_window_num, now.alter_log_dirs_replication_quota_window_size_seconds
        )
        self._at_once = asyncio.Semaphore(now.num_replica_alter_log_dirs_threads or len(logs.directories))
        self._wanted: dict[Partition, tuple[LogDirectory, asyncio.Task[None]]] = {}
        self._retiring: set[asyncio.Task[Any] | None] = set()

    def start(self) -> None:
        """Restart the moves that this broker had not finished when it last stopped, as their partitions are opened."""
        self._partitions.call_when_opened(self._resume)
        for partition in self._partitions:
            if partition.is_open:
                self._resume(partition)

    def directory(self, path: str) -> LogDirectory:
        """Return the directory with this path. Raises LOG_DIR_NOT_FOUND, or KAFKA_STORAGE_ERROR if it is offline."""
        wanted = Path(path).resolve() if path.startswith("/") else None
        directory = next((each for each in self._logs.directories if each.path == wanted), None)
        if directory is None:
            raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND)
        if not directory.online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        return directory

    def move(self, partition: Partition, directory: LogDirectory) -> None:
        """Start moving a replica in the background. This cancels a move of the replica to another directory. Nothing is
        moved if the replica is already in ``directory``. A failure is only logged.

        Raises the errors of ``Partition.log``.
        """
        log = partition.log
        under_way = self._wanted.get(partition)
        if under_way is not None:
            if under_way[0] is directory:
                return
            if under_way[1] not in self._retiring:  # else the old log would block the path of the next copy
                under_way[1].cancel()
            del self._wanted[partition]
        if self._logs.directory_of(log) is not directory:
            after = under_way[1] if under_way is not None else None
            moving = self._tasks.start(self._move(partition, log, directory, after), name=f"move of {partition!r}")
            self._wanted[partition] = (directory, moving)
            moving.add_done_callback(lambda task: self._ended(partition, task))

    def _ended(self, partition: Partition, task: asyncio.Task[None]) -> None:
        if self._wanted.get(partition, (None, None))[1] is task:
            del self._wanted[partition]

    def _resume(self, partition: Partition) -> None:
        """Restart the move of this partition, if this broker had not finished it when it last stopped."""
        directory = self._logs.copies.begun.pop((partition.topic, partition.index), None)
        if directory is not None and directory.online:
            self.move(partition, directory)

    async def _move(
        self, partition: Partition, log: Log, directory: LogDirectory, after: asyncio.Task[None] | None
    ) -> None:
        facts = {"topic": partition.topic, "partition": partition.index, "directory": str(directory)}
        if after is not None:
            await asyncio.wait([after])
        try:
            copy = await self._logs.copies.begin(log, directory)
            try:
                async with self._at_once:
                    await self._catch_up(log, copy)
                    await self._logs.copies.prepare(log, copy)
                    try:
                        await self._directories.announce(partition, directory.id)
                        await self._switch(partition, log, copy)
                    finally:
                        self._directories.settle(partition)
            except asyncio.CancelledError:
                is_copying = self._logs.copies.in_progress.get((log.topic, log.partition), (None,))[0] is copy
                is_wanted = partition in self._wanted and self._wanted[partition][1] is asyncio.current_task()
                if is_copying and is_wanted:
                    self._logs.copies.leave(copy)  # the broker is stopping, and finds the copy when it restarts
                raise
            finally:
                await self._logs.copies.drop(copy)  # does nothing if the copy has become the log, or was left
        except KafkaError as error:
            _log.error("failed to move a replica", extra={**facts, "reason": str(error)})
        else:
            _log.info("a replica was moved", extra=facts)

    async def _catch_up(self, log: Log, copy: Log) -> None:
        """Copy in a thread until one round copies clearly less than a chunk."""
        directory = self._logs.copies.in_progress[log.topic, log.partition][1]
        copied = CHUNK_BYTES
        while copied >= CHUNK_BYTES // 2:
            copied = await self._logs.run(directory, copy_some, log, copy, CHUNK_BYTES)
            await self._wait_for_rate(log, copied)

    async def _wait_for_rate(self, log: Log, copied: int) -> None:
        """Wait until the rate limit allows more bytes. Raises KafkaError (KAFKA_STORAGE_ERROR) if the log no longer
        exists."""
        if self._limit < MAX_LONG:
            self._rate.record(copied, self._monotonic())
        while self._limit < MAX_LONG and (wait_s := self._rate.wait_s(self._limit, self._monotonic())):
            await asyncio.sleep(min(wait_s, CHECK_S))
            if self._logs.get(log.topic, log.partition) is not log:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{log!r} no longer exists")

    @property
    def _limit(self) -> int:
        return self._config().replica_alter_log_dirs_io_max_bytes_per_second

    async def _switch(self, partition: Partition, log: Log, copy: Log) -> None:
        """Copy the rest and switch the partition to the copy, without a pause in between."""
        old = self._logs.directory_of(log)
        await self._catch_up(log, copy)
        while partition.is_truncating:
            await asyncio.sleep(TRUNCATION_PAUSE_S)
            await self._catch_up(log, copy)
        while copy_some(log, copy, CHUNK_BYTES):
            pass
        self._logs.copies.replace(log, copy)
        partition.replace_log(copy)
        moving = asyncio.current_task()
        self._retiring.add(moving)
        try:
            await self._logs.copies.retire(log, old)
        finally:
            self._retiring.discard(moving)
