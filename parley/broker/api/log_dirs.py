"""DescribeLogDirs, AlterReplicaLogDirs (KIP-113, KIP-827): replicas by log directory, and moves between directories."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from pathlib import Path

from parley.broker.api.requested_names import in_slices
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.log_dir_moves import LogDirMoves
from parley.broker.replication.partition import Partition
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.log_manager import LogManager

_Moved = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult
_Partition = DescribeLogDirsResponse.DescribeLogDirsPartition
_Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
_Result = DescribeLogDirsResponse.DescribeLogDirsResult


class LogDirsApi:
    """Handlers of requests about this broker's log directories."""

    def __init__(
        self,
        partitions: HostedPartitions,
        logs: LogManager,
        moves: LogDirMoves,
        threads: Threads = LOOP_THREADS,
    ) -> None:
        self._partitions = partitions
        self._logs = logs
        self._moves = moves
        self._threads = threads

    def routes(self) -> dict[int, Handler]:
        return {
            DescribeLogDirsRequest.API_KEY: self.describe_log_dirs,
            AlterReplicaLogDirsRequest.API_KEY: self.alter_replica_log_dirs,
        }

    def alter_replica_log_dirs(
        self, context: RequestContext, request: AlterReplicaLogDirsRequest
    ) -> AlterReplicaLogDirsResponse:
        """Start moving replicas. DescribeLogDirs shows the progress. Each move succeeds or fails independently. If this
        broker does not have a replica yet, the replica gets REPLICA_NOT_AVAILABLE, and will be created in the
        directory."""
        results: dict[str, list[_Moved]] = {}
        for each in request.dirs:
            for topic in each.topics:
                moved = results.setdefault(topic.name, [])
                moved += [self._move(topic.name, index, each.path) for index in topic.partitions]
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in results.items()
            ]
        )

    def _move(self, topic: str, index: int, path: str) -> _Moved:
        try:
            directory = self._moves.directory(path)
            self._moves.move(self._replica(topic, index, directory), directory)
        except KafkaError as error:
            return _Moved(partition_index=index, error_code=error.code)
        return _Moved(partition_index=index)

    def _replica(self, topic: str, index: int, directory: LogDirectory) -> Partition:
        """Return the replica. If this broker does not have it yet, record that it must be created in ``directory``, and
        raise KafkaError (REPLICA_NOT_AVAILABLE)."""
        try:
            return self._partitions.find(topic, index)
        except KafkaError as error:
            if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self._logs.prefer(topic, index, directory)
                raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE) from error
            raise

    async def describe_log_dirs(
        self, context: RequestContext, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        """Describe each log directory: the size of its volume, and its replicas of the requested partitions, or all its
        replicas. An offline directory gets KAFKA_STORAGE_ERROR."""
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        by_dir: dict[Path, dict[str, list[_Partition]]] = defaultdict(lambda: defaultdict(list))

        def describe(partition: Partition) -> None:
            key = (partition.topic, partition.index)
            if wanted is not None and key not in wanted:
                return
            try:
                home = self._logs.directory_of(partition.log)
            except KafkaError:  # the log is not open, or was deleted between two slices
                return
            by_dir[home.path][partition.topic].append(_described(partition))
            copy, directory = self._logs.copies.in_progress.get(key, (None, None))
            if copy is not None and directory is not None:
                by_dir[directory.path][partition.topic].append(_copy_described(partition, copy))

        await in_slices(describe, tuple(self._partitions))
        usage = await asyncio.get_running_loop().run_in_executor(self._threads.reads, self._usage)
        return DescribeLogDirsResponse(
            results=[
                _Result(
                    log_dir=str(path),
                    error_code=ErrorCode.NONE if sizes else ErrorCode.KAFKA_STORAGE_ERROR,
                    total_bytes=sizes[0] if sizes else -1,
                    usable_bytes=sizes[1] if sizes else -1,
                    topics=[_Topic(name=name, partitions=found) for name, found in sorted(by_dir[path].items())],
                )
                for path, sizes in usage.items()
            ]
        )

    def _usage(self) -> dict[Path, tuple[int, int] | None]:
        """Return the total and free bytes of each log directory's volume; None for an offline directory."""
        usage: dict[Path, tuple[int, int] | None] = {}
        for directory in self._logs.directories:
            try:
                volume = shutil.disk_usage(directory.path)
            except OSError:
                usage[directory.path] = None
            else:
                usage[directory.path] = (volume.total, volume.free) if directory.online else None
        return usage


def _described(partition: Partition) -> _Partition:
    log = partition.log
    return _Partition(
        partition_index=partition.index,
        partition_size=log.size_bytes,
        offset_lag=max(0, log.log_end_offset - log.high_watermark) if not partition.is_leader else 0,
        is_future_key=False,
    )


def _copy_described(partition: Partition, copy: Log) -> _Partition:
    return _Partition(
        partition_index=partition.index,
        partition_size=copy.size_bytes,
        offset_lag=max(0, partition.log.log_end_offset - copy.log_end_offset),
        is_future_key=True,
    )
