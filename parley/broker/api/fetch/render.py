"""The answer to a fetch: what was found of each partition, the reads that are planned, and how they are carried out.

Reads are planned first and carried out last. Large ones are sent from the file; small ones never, they are copied.
What is not in memory is loaded in a thread, and so is the conversion for clients of before KIP-98.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from parley.broker.api.fetch.params import (
    BATCHES_VERSION,
    CURRENT_LEADER_VERSION,
    NODE_ENDPOINTS_VERSION,
    SESSIONS_VERSION,
    TOPIC_IDS_VERSION,
    Reader,
)
from parley.broker.api.fetch.sessions import INITIAL_EPOCH, FetchSession, PartitionData, Target
from parley.broker.api.leader_errors import MOVED, current_leader, endpoints_of, withheld
from parley.broker.network.dispatch import RequestContext
from parley.broker.network.sending import FileSlice
from parley.broker.replication.partition import Isolation, Partition
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.records.down_conversion import to_legacy
from parley.storage.log_reader import LogRead

if TYPE_CHECKING:
    from parley.broker.api.fetch.handler import FetchApi

SENT_FROM_FILE_BYTES = 16 << 10
"""Reads of this size or more are sent from the file; below, a copy is cheaper than one more system call."""


class FetchAnswer:
    """What one fetch will be answered, as far as it is known."""

    def __init__(
        self,
        api: FetchApi,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
        reader: Reader,
    ) -> None:
        self._api = api
        self._context = context
        self._request = request
        self._session = session
        self._reader = reader
        self._max_bytes = min(request.max_bytes, api.max_bytes)
        self._reads: dict[Target, LogRead] = {}
        self.found: dict[Target, PartitionData] = {}
        """What is told of each partition, still without its records."""
        self.bytes = 0
        """What the reads planned add up to."""
        self.unplanned: list[Target] = []
        """Those whose reads cannot be planned without waiting for the disk."""

    def drop_read(self, target: Target) -> None:
        """A partition's read is to be planned again."""
        read = self._reads.pop(target, None)
        if read is not None:
            self.bytes -= read.size

    def plan(self, target: Target, partition: Partition, *, nowait: bool) -> None:
        """Plan one partition's read, within what is left of the answer's bytes."""
        room = max(0, min(target.max_bytes, self._max_bytes - self.bytes))
        read = partition.read(
            target.offset, room, isolation=self._reader.isolation, min_one_batch=not self.bytes, nowait=nowait
        )
        if read.size:
            self._reads[target] = read
            self.bytes += read.size

    def failed(self, target: Target, error: KafkaError) -> PartitionData:
        """What is told of a partition that cannot be fetched."""
        if target.partition is not None:
            target.partition.counters.failed_fetch_requests += 1
            if self._is_doubtful(target.partition, target.offset, error):
                error = withheld(error)
        data = PartitionData(
            partition_index=target.index,
            error_code=error.code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            records=b"",
        )
        if error.code in MOVED and self._context.api_version >= CURRENT_LEADER_VERSION:
            leader, epoch = current_leader(self._api.metadata.image, target.topic, target.index)
            data.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
        return data

    def _is_doubtful(self, partition: Partition, offset: int, error: KafkaError) -> bool:
        """Whether a consumer asks for what a new leader may well have."""
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or self._reader.is_follower or not partition.is_open:
            return False
        return offset > partition.log.log_end_offset and self._api.may_be_superseded()

    def make(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """The answer, or the work that leads to it where a disk or a conversion must be waited for."""
        if self.unplanned:
            return self._answer_planned()
        self._count()
        if self._reads:
            if self._context.api_version < BATCHES_VERSION:
                return self._answer_converted()
            cold = self._fill_in()
            if cold:
                return self._answer_loaded(cold)
        return self._response()

    async def _answer_planned(self) -> FetchResponse:
        """As :meth:`make`, once the reads are planned that the disk must be waited for."""
        loop = asyncio.get_running_loop()
        targets, self.unplanned = self.unplanned, []
        for target in targets:
            assert target.partition is not None
            try:
                await loop.run_in_executor(
                    self._api.threads.reads, partial(self.plan, target, target.partition, nowait=False)
                )
            except KafkaError as error:
                self.found[target] = self.failed(target, error)
        answer = self.make()
        return await answer if asyncio.iscoroutine(answer) else answer

    def _count(self) -> None:
        """Count what the answer will hold."""
        for target, read in self._reads.items():
            partition = target.partition
            assert partition is not None
            if self._reader.is_follower:
                partition.counters.replication_bytes_out += read.size
                throttle = self._api.throttle
                if throttle is not None and throttle.is_set:
                    throttle.record_if_covered(self._api.metadata.image, partition.topic, partition.index, read.size)
            else:
                partition.counters.bytes_out += read.size
            if self._context.api_version < BATCHES_VERSION:
                partition.counters.fetch_conversions += 1

    def _fill_in(self) -> dict[Target, FileSlice | None]:
        """Give the records read to the partitions' data; those answered have still to come from disk.

        Large ones as slices that are to be loaded; None: a small one that is to be read.
        """
        cold: dict[Target, FileSlice | None] = {}
        for target, read in self._reads.items():
            data = self.found[target]
            if self._reader.isolation is Isolation.READ_COMMITTED:
                data.aborted_transactions = self._aborted(target, read)
            if read.size < SENT_FROM_FILE_BYTES:
                try:
                    data.records = read.try_read()
                except BlockingIOError:
                    cold[target] = None
                continue
            part = FileSlice(read.fd, read.position, read.size, read)
            data.records = [part]  # type: ignore[list-item]  # written by the connection's sender, not by the codec
            if not part.is_cached():
                cold[target] = part
        return cold

    def _aborted(self, target: Target, read: LogRead) -> list[FetchResponse.AbortedTransaction]:
        partition = target.partition
        assert partition is not None
        end = partition.end_visible(self._reader.isolation) if read.next_offset is None else read.next_offset
        return [
            FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.log.aborted_transactions(read.offset, end)
        ]

    async def _answer_loaded(self, cold: dict[Target, FileSlice | None]) -> FetchResponse:
        loop, threads = asyncio.get_running_loop(), self._api.threads.reads
        for target, part in cold.items():
            if part is not None:
                await loop.run_in_executor(threads, part.load)
                continue
            try:
                self.found[target].records = await loop.run_in_executor(threads, self._reads[target].read)
            except KafkaError as error:
                self.found[target] = self.failed(target, error)
        return self._response()

    async def _answer_converted(self) -> FetchResponse:
        """As clients of before KIP-98 read it: message sets of the magic that their version knows."""
        magic = 1 if self._context.api_version >= 2 else 0
        loop = asyncio.get_running_loop()
        room = self._max_bytes  # messages take more bytes than the batches that were planned
        for target, read in self._reads.items():
            data = self.found[target]
            if room <= 0:
                break
            try:
                async with self._api.conversion:
                    work = partial(_convert, read, magic, target.offset, min(room, target.max_bytes))
                    data.records = converted = await loop.run_in_executor(self._api.threads.records, work)
                    room -= len(converted)
            except KafkaError as error:
                self.found[target] = self.failed(target, error)
        return self._response()

    def _response(self) -> FetchResponse:
        context, session = self._context, self._session
        answers = list(self.found.items())
        session_id = 0
        if session is not None:
            session_id = session.id
            answers = session.select_news(answers)
        elif context.api_version >= SESSIONS_VERSION and self._request.session_epoch == INITIAL_EPOCH:
            session_id = self._api.sessions.create(
                list(self.found),
                self._api.purgatory,
                is_follower=self._reader.is_follower,
                uses_ids=context.api_version >= TOPIC_IDS_VERSION,
            )
            for target, data in answers:
                target.is_news(data)
        response = FetchResponse(session_id=session_id, responses=_by_topic(answers))
        if context.api_version >= NODE_ENDPOINTS_VERSION:
            leaders = [data.current_leader.leader_id for _, data in answers if data.error_code in MOVED]
            if leaders:
                response.node_endpoints = endpoints_of(
                    self._api.metadata.image, leaders, context.listener, FetchResponse.NodeEndpoint
                )
        return response


def _by_topic(answers: list[tuple[Target, PartitionData]]) -> list[FetchResponse.FetchableTopicResponse]:
    """Group neighbours of one topic; the order of the partitions stays."""
    topics: list[FetchResponse.FetchableTopicResponse] = []
    for target, data in answers:
        if not topics or topics[-1].topic != target.topic or topics[-1].topic_id != target.topic_id:
            topics.append(
                FetchResponse.FetchableTopicResponse(topic=target.topic, topic_id=target.topic_id, partitions=[])
            )
        topics[-1].partitions.append(data)
    return topics


def _convert(read: LogRead, magic: int, offset: int, max_bytes: int) -> bytes:
    return b"".join(to_legacy(read.read(), magic, first_offset=offset, max_bytes=max_bytes))
