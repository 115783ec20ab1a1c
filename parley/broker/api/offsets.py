"""ListOffsets, OffsetForLeaderEpoch: find offsets by position, timestamp and leader epoch.

A position is a negative timestamp. Each position was introduced in some version of ListOffsets. The positions of tiered
storage have the same results as in a Kafka cluster without tiered storage: the earliest local offset is the log start
offset, and there are no remote segments.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

from parley.broker.api.requested_names import SLICE, in_slices, named_twice, once
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Isolation, Partition
from parley.broker.runtime.threads import LOOP_THREADS, Threads
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from parley.protocol.sentinels import NO_EPOCH

_log = logging.getLogger(__name__)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_SINCE = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The version of ListOffsets that introduced each position (KIP-734, KIP-405, KIP-1005, KIP-1023)."""
LEADER_EPOCH_SINCE = 4
"""The first version of ListOffsets that returns the leader epoch of the offset (KIP-320)."""
CONSUMER = -1

_PartitionResponse = ListOffsetsResponse.ListOffsetsPartitionResponse
_Requested = tuple[str, ListOffsetsRequest.ListOffsetsPartition]
_Find = Callable[[_Requested], _PartitionResponse]


class OffsetsApi:
    """Handlers of ListOffsets and OffsetForLeaderEpoch."""

    def __init__(self, partitions: HostedPartitions, threads: Threads = LOOP_THREADS) -> None:
        self._partitions = partitions
        self._failures = FailureLog(_log)
        self._threads = threads

    def routes(self) -> dict[int, Handler]:
        return {
            ListOffsetsRequest.API_KEY: self.list_offsets,
            OffsetForLeaderEpochRequest.API_KEY: self.offset_for_leader_epoch,
        }

    def list_offsets(
        self, context: RequestContext, request: ListOffsetsRequest
    ) -> ListOffsetsResponse | Coroutine[Any, Any, ListOffsetsResponse]:
        """Find the requested offset of each partition: -1 if there is none, or an error code. If the request names a
        partition twice, its only result is INVALID_REQUEST.

        Returns a coroutine if a thread must read the logs, or if there are many partitions.
        """
        named = once(((t.name, t.partitions) for t in request.topics), attrgetter("partition_index"))
        requested = [(topic, each) for topic, partitions in named.items() for each in partitions.values()]
        twice = named_twice((t.name, p.partition_index) for t in request.topics for p in t.partitions)
        find = partial(self._list, context, request, twice)
        if any(reads_records(each.timestamp) for _, each in requested):
            return self._list_in_thread(find, requested)
        if len(requested) > SLICE:
            return self._list_in_slices(find, requested)
        return _listed(requested, map(find, requested))

    async def _list_in_thread(self, find: _Find, requested: list[_Requested]) -> ListOffsetsResponse:
        loop = asyncio.get_running_loop()
        return _listed(requested, await loop.run_in_executor(self._threads.reads, lambda: list(map(find, requested))))

    async def _list_in_slices(self, find: _Find, requested: list[_Requested]) -> ListOffsetsResponse:
        return _listed(requested, await in_slices(find, requested))

    def _list(
        self,
        context: RequestContext,
        request: ListOffsetsRequest,
        twice: set[tuple[str, int]],
        named: _Requested,
    ) -> _PartitionResponse:
        topic, requested = named
        index, version = requested.partition_index, context.api_version
        try:
            if (topic, index) in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST)
            if version < _SINCE.get(requested.timestamp, 0 if requested.timestamp >= 0 else version + 1):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            partition = self._partitions.find(topic, index)
            partition.check_leader(requested.current_leader_epoch)
            isolation = _isolation(request)
            if version == 0:
                offsets = _segment_starts(partition, requested.timestamp, requested.max_num_offsets, isolation)
                return _PartitionResponse(partition_index=index, old_style_offsets=offsets)
            result = _found(partition, requested.timestamp, isolation, version)
            if version < LEADER_EPOCH_SINCE:
                result.leader_epoch = NO_EPOCH
            return result
        except KafkaError as error:
            return _PartitionResponse(partition_index=index, error_code=error.code)
        except Exception as error:
            self._failures.report("ListOffsets failed", error, context.received_at, topic=topic, partition=index)
            return _PartitionResponse(partition_index=index, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)

    def offset_for_leader_epoch(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Return for each partition the largest epoch that is not above the requested leader epoch, and its end offset;
        -1 for both if the requested epoch is newer than the log. Followers and consumers use this to find where they
        diverged from the leader (KIP-101)."""
        named = once(((t.topic, t.partitions) for t in request.topics), attrgetter("partition"))
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic,
                    partitions=[self._epoch_end(context, topic, requested) for requested in partitions.values()],
                )
                for topic, partitions in named.items()
            ]
        )

    def _epoch_end(
        self, context: RequestContext, topic: str, requested: OffsetForLeaderEpochRequest.OffsetForLeaderPartition
    ) -> OffsetForLeaderEpochResponse.EpochEndOffset:
        try:
            partition = self._partitions.find(topic, requested.partition)
            partition.check_leader(requested.current_leader_epoch)
            epoch, end = partition.log.end_offset_for_epoch(requested.leader_epoch)
        except KafkaError as error:
            return OffsetForLeaderEpochResponse.EpochEndOffset(partition=requested.partition, error_code=error.code)
        except Exception as error:
            facts = {"topic": topic, "partition": requested.partition}
            self._failures.report("OffsetForLeaderEpoch failed", error, context.received_at, **facts)
            return OffsetForLeaderEpochResponse.EpochEndOffset(
                partition=requested.partition, error_code=ErrorCode.UNKNOWN_SERVER_ERROR
            )
        return OffsetForLeaderEpochResponse.EpochEndOffset(
            partition=requested.partition, leader_epoch=epoch, end_offset=end
        )


def _listed(requested: list[_Requested], found: Iterable[_PartitionResponse]) -> ListOffsetsResponse:
    topics: dict[str, list[_PartitionResponse]] = {}
    for (topic, _), partition in zip(requested, found, strict=True):
        topics.setdefault(topic, []).append(partition)
    return ListOffsetsResponse(
        topics=[
            ListOffsetsResponse.ListOffsetsTopicResponse(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


def reads_records(timestamp: int) -> bool:
    """Return True if finding the offset of ``timestamp`` requires reading the log's files."""
    return timestamp >= 0 or timestamp == MAX_TIMESTAMP


def _isolation(request: ListOffsetsRequest) -> Isolation:
    if request.replica_id != CONSUMER:
        return Isolation.LOG_END
    return Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED


def _found(partition: Partition, timestamp: int, isolation: Isolation, version: int) -> _PartitionResponse:
    log = partition.log
    result = _PartitionResponse(partition_index=partition.index)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        result.offset = log.log_start_offset
        epoch = log.leader_epochs.epoch_at(result.offset)
        result.leader_epoch = NO_EPOCH if epoch is None else epoch
        return result
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return result
    if isolation != Isolation.LOG_END and not partition.knows_high_watermark:
        # A new leader learns its predecessor's high watermark from its followers (KIP-207).
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)
    end = partition.end_visible(isolation)
    if timestamp == LATEST:
        result.offset = end
        result.leader_epoch = partition.leader_epoch
        return result
    found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is not None and found.offset < end:
        result.offset = found.offset
        result.timestamp = found.timestamp
        result.leader_epoch = found.leader_epoch
    return result


def _segment_starts(partition: Partition, timestamp: int, limit: int, isolation: Isolation) -> list[int]:
    """Return up to ``limit`` base offsets of the segments whose timestamps are at most ``timestamp``, newest first.

    For version 0. EARLIEST selects only the log start offset, LATEST all segments and the end of the readable log.
    """
    log, segments = partition.log, partition.log.segments  # read once: compaction may replace segments at any time
    end = partition.end_visible(isolation)
    starts = [max(segment.base_offset, log.log_start_offset) for segment in segments]
    if timestamp == EARLIEST:
        return [log.log_start_offset][:limit]
    if timestamp == LATEST:
        starts.append(end)
    else:
        starts = [
            start for start, segment in zip(starts, segments, strict=True) if segment.largest_timestamp_ms <= timestamp
        ]
    return sorted({start for start in starts if start <= end}, reverse=True)[: max(0, limit)]
