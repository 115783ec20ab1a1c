"""One fetch: looking at its partitions, waiting until there is enough, and the answer.

Rules of this module:

* News of a partition makes a waiting fetch look at that partition again, once the bytes that came add up to what is
  missing; the others keep what was found. It looks when the loop has handled what it is at, so that several appends of
  one moment are answered together.
* In a session the partitions that have nothing to tell are passed over, and stay so until they change.
* A follower is told of a new high watermark with the next records; at once where consumers read from followers. One
  that sends the next request before it has its answer wants it now, to fetch other partitions than these.
* Reads are planned first and carried out last. Large ones are sent from the file; what is not in memory is loaded in a
  thread, and so is the conversion for clients of before KIP-98.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from broker.api.current_leader import MOVED, current_leader, endpoints_of
from broker.api.fetch_sessions import INITIAL_EPOCH, FetchSession, PartitionData, Target
from broker.api.preferred_replica import NOT_ELSEWHERE, preferred_replica
from broker.network.dispatch import RequestContext
from broker.network.sending import FileSlice
from broker.partition import Isolation, Partition
from broker.purgatory import Delayed, Purgatory
from broker.replication import ConsumerView
from broker.replication.progress import FetchClock
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.conversion import to_legacy
from storage.reads import LogRead

if TYPE_CHECKING:
    from broker.api.fetch import FetchApi

_log = logging.getLogger(__name__)

SENT_FROM_FILE_BYTES = 16 << 10
"""Reads of this size or more are sent from the file; below, a copy is cheaper than one more system call."""
BYTES_VERSION = 3
"""From this version on the client bounds the whole answer."""
BATCHES_VERSION = 4
"""From this version on the client reads v2 batches; 2 and 3 read magic 1, older ones magic 0."""
CURRENT_LEADER_VERSION = 12
TOPIC_IDS_VERSION = 13
CONSUMER = -1
FOLLOWER_READS_VERSION = 11
"""From this version on a consumer may read from a follower (KIP-392)."""
REPLICA_STATE_VERSION = 15
NODE_ENDPOINTS_VERSION = 16


@dataclass(frozen=True, slots=True)
class Reader:
    """Who fetches: a follower names its broker and that broker's epoch."""

    replica: int
    broker_epoch: int
    isolation: Isolation

    @property
    def is_follower(self) -> bool:
        """Whether what it has counts for the high watermark."""
        return self.replica >= 0


def reader_of(context: RequestContext, request: FetchRequest) -> Reader:
    """Who sends this request."""
    if context.api_version >= REPLICA_STATE_VERSION:
        replica, epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    else:
        replica, epoch = request.replica_id, -1
    if replica >= 0:
        return Reader(replica, epoch, Isolation.LOG_END)
    committed = request.isolation_level == 1
    return Reader(replica, epoch, Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED)


class DelayedFetch(Delayed[Any]):
    """What one fetch asks, what has been found so far, and the answer made of it."""

    def __init__(
        self,
        api: FetchApi,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
        reader: Reader,
    ) -> None:
        super().__init__()
        self._api = api
        self._context = context
        self._request = request
        self._session = session
        self._reader = reader
        self._isolation = reader.isolation
        self._clock = FetchClock() if session is None else session.clock
        self._clock.fetched(context.received_at)
        self._max_bytes = min(request.max_bytes, api.max_bytes)
        self._found: dict[Target, PartitionData] = {}
        self._reads: dict[Target, LogRead] = {}
        self._unplanned: list[Target] = []  # their reads cannot be planned without waiting for the disk
        self._bytes = 0
        self._awaited_bytes = 0
        self._is_urgent = request.max_wait_ms <= 0
        self._is_waiting = False
        self._is_answering = False
        self._looks_again = False  # soon
        self._changed: dict[Target, None] = {}
        self._watched: dict[Partition, Target] = {}  # outside of a session

    # Finding.

    def look_at(self, targets: Iterable[Target]) -> None:
        """Look at partitions, in this order."""
        for target in targets:
            self._look_at(target)
        if not (self._found if self._session is None else self._session.targets):
            self._is_urgent = True  # there is nothing to wait for

    @property
    def is_ready(self) -> bool:
        """Whether the client need not wait: there are bytes enough, an error, or it does not want to wait."""
        return self._is_urgent or self._bytes >= self._request.min_bytes

    def wait(self, purgatory: Purgatory, timeout_s: float) -> None:
        """Wait for news, for at most ``timeout_s``."""
        self._is_waiting = True
        self._awaited_bytes = self._request.min_bytes - self._bytes
        if self._session is not None:
            self._session.waiting = self
            purgatory.watch(self, (self._session,), timeout_s)
        else:
            self._watched = {target.partition: target for target in self._found if target.partition is not None}
            purgatory.watch(self, self._watched, timeout_s)

    def on_news(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, Partition)
        self.news_of(self._watched[key], amount)
        return True

    def news_of(self, target: Target, amount: int) -> None:
        """A partition has changed: ``amount`` bytes have come, or something else has happened."""
        self._changed[target] = None
        self._awaited_bytes -= amount
        if not self._looks_again and (not self._may_wait(target) if not amount else self._awaited_bytes <= 0):
            self._looks_again = True
            self.get_loop().call_soon(self._look_again)

    def _may_wait(self, target: Target) -> bool:
        """Whether what is no record can be told later: to a follower, that the high watermark has moved. (Not the start
        of the log, for which somebody waits who deletes.)"""
        partition = target.partition
        return (
            self._reader.is_follower
            and self._api.selector is None
            and partition is not None
            and partition.is_leader
            and target.leader_epoch in (-1, partition.leader_epoch)
        )

    def _look_again(self) -> None:
        self._looks_again = False
        if self.done():
            return
        self._look_at_changed()
        if self.is_ready:
            self._finish()
        else:
            self._awaited_bytes = self._request.min_bytes - self._bytes

    def expired(self) -> None:
        self._finish()

    def hurry(self) -> None:
        if self._reader.is_follower:
            self.expired()

    def _leave(self) -> None:
        if self._session is not None and self._session.waiting is self:
            self._session.waiting = None
        super()._leave()

    def _look_at_changed(self) -> None:
        changed, self._changed = self._changed, {}
        for target in changed:
            read = self._reads.pop(target, None)
            if read is not None:
                self._bytes -= read.size
            self._look_at(target)

    def _finish(self) -> None:
        try:
            answer = self.answer_now()
        except Exception as error:
            self.fail(error)
            return
        if asyncio.iscoroutine(answer):
            self.complete(self._api.tasks.start(answer, name="fetch from disk"))
        else:
            self.complete(answer)

    def _look_at(self, target: Target) -> None:
        """Look at one partition: note what the client may know of it, and plan the read."""
        try:
            if self._session is not None and self._is_at_end(target):
                if self._is_told(target):
                    self._session.changed.pop(target, None)
                    self._found.pop(target, None)
                    return
                if not self._is_answering and self._may_wait(target):
                    self._changed[target] = None
                    return
            self._found[target] = self._look(target)
        except KafkaError as error:
            self._found[target] = self._failed(target, error)
        except Exception as error:
            facts = {"topic": target.topic, "partition": target.index}
            self._api.failures.report("Fetch failed", error, self._context.received_at, **facts)
            self._found[target] = self._failed(target, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _is_at_end(self, target: Target) -> bool:
        """Whether a partition of a session, where nothing is wrong, has no records for the client."""
        partition = target.partition
        return (
            target.is_settled
            and partition is not None
            and partition.is_open
            and (partition.is_leader or self._may_read_follower)
            and target.leader_epoch in (-1, partition.leader_epoch)
            and target.offset == partition.end_visible(self._isolation)
        )

    def _is_told(self, target: Target) -> bool:
        """Whether the client of a session knows how far a partition goes."""
        assert target.partition is not None
        log = target.partition.log
        return target.told_high_watermark == log.high_watermark and target.told_log_start == log.log_start_offset

    @property
    def _may_read_follower(self) -> bool:
        return self._reader.replica == CONSUMER and self._context.api_version >= FOLLOWER_READS_VERSION

    def _look(self, target: Target) -> PartitionData:
        partition = self._partition(target)
        if self._may_read_follower:
            partition.check_replica(target.leader_epoch)
        else:
            partition.check_leader(target.leader_epoch)
        log = partition.log
        if not self._reader.is_follower:
            partition.counters.fetch_requests += 1
        data = PartitionData(
            partition_index=target.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            records=b"",
        )
        if target.last_fetched_epoch != -1 and not target.is_settled:
            epoch, end = log.end_offset_for_epoch(target.last_fetched_epoch)
            if epoch == -1:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < target.last_fetched_epoch or end < target.offset:
                data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
                self._is_urgent = True
                return data
        target.is_settled = True
        if self._reader.is_follower and not self._is_waiting:  # what it has is ours as well: the logs have not parted
            self._count_progress(target, partition)
            data.high_watermark = log.high_watermark
        if self._api.selector is not None and self._goes_elsewhere(target, partition, data):
            return data
        # Most wait at the end, and there is nothing to read.
        if target.offset != partition.end_visible(self._isolation) and not self._is_held_back(partition):
            try:
                self._plan(target, partition, nowait=True)
            except BlockingIOError:
                self._unplanned.append(target)
                self._is_urgent = True
        return data

    def _is_held_back(self, partition: Partition) -> bool:
        """Whether a follower that is not in sync has had its share for now (KIP-73)."""
        throttle = self._api.throttle
        return (
            self._reader.is_follower
            and throttle is not None
            and throttle.is_set
            and self._reader.replica not in partition.state.isr
            and throttle.covers(self._api.metadata.image, partition.topic, partition.index)
            and throttle.wait_s > 0
        )

    def _count_progress(self, target: Target, partition: Partition) -> None:
        """A follower has everything before the offset it asks for, if that lies in our log."""
        if not partition.log.log_start_offset <= target.offset <= partition.log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.follower_fetched(
            self._reader.replica, target.offset, target.log_start_offset, self._clock, self._reader.broker_epoch
        )

    def _goes_elsewhere(self, target: Target, partition: Partition, data: PartitionData) -> bool:
        """Whether a consumer is sent to a nearer replica. A follower hears at once how far records are committed, since
        consumers may read from it."""
        selector, rack = self._api.selector, self._request.rack_id
        if self._reader.is_follower:
            self._is_urgent |= target.told_high_watermark != data.high_watermark
        elif selector is not None and rack and partition.is_leader and self._may_read_follower:
            context = self._context
            consumer = ConsumerView(rack, context.client_id, context.client_host, context.principal, context.listener)
            image, now_s = self._api.metadata.image, context.received_at
            replica = preferred_replica(selector, image, partition, consumer, target.offset, now_s)
            if replica != NOT_ELSEWHERE:
                data.preferred_read_replica = replica
                self._is_urgent = True
                return True
        return False

    def _plan(self, target: Target, partition: Partition, *, nowait: bool) -> None:
        """Plan one partition's read, within what is left of the answer's bytes."""
        room = max(0, min(target.max_bytes, self._max_bytes - self._bytes))
        read = partition.read(
            target.offset, room, isolation=self._isolation, min_one_batch=not self._bytes, nowait=nowait
        )
        if read.size:
            self._reads[target] = read
            self._bytes += read.size

    def _partition(self, target: Target) -> Partition:
        """The partition meant, by name or id; remembered in the target."""
        if self._context.api_version >= TOPIC_IDS_VERSION:
            name = self._api.metadata.image.topic_names.get(target.topic_id)
            if name is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            target.topic = name
        partition = self._api.partitions.find(target.topic, target.index)
        if self._context.api_version >= TOPIC_IDS_VERSION and partition.topic_id != target.topic_id:
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        target.bind(partition)
        return partition

    def _failed(self, target: Target, error: KafkaError) -> PartitionData:
        self._is_urgent = True
        if target.partition is not None:
            target.partition.counters.failed_fetch_requests += 1
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

    # Answering.

    def answer_now(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """The answer, with all that could wait for it; or the work that leads to it, see :meth:`_answer`."""
        self._is_answering = True
        self._look_at_changed()
        return self._answer()

    def _answer(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """The answer, or the work that leads to it where a disk or a conversion must be waited for."""
        if self._unplanned:
            return self._answer_planned()
        self._count()
        if self._reads:
            if self._context.api_version < BATCHES_VERSION:
                return self._answer_converted()
            slices = self._fill_in()
            if slices:
                return self._answer_loaded(slices)
        return self._response()

    async def _answer_planned(self) -> FetchResponse:
        """As :meth:`answer`, once the reads are planned that the disk must be waited for."""
        loop = asyncio.get_running_loop()
        targets, self._unplanned = self._unplanned, []
        for target in targets:
            assert target.partition is not None
            try:
                await loop.run_in_executor(
                    self._api.threads.reads, partial(self._plan, target, target.partition, nowait=False)
                )
            except KafkaError as error:
                self._found[target] = self._failed(target, error)
        answer = self._answer()
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

    def _fill_in(self) -> list[FileSlice]:
        """Give the records read to the partitions' data; the slices answered have still to be loaded from disk."""
        not_cached = []
        for target, read in self._reads.items():
            data = self._found[target]
            if self._isolation is Isolation.READ_COMMITTED:
                data.aborted_transactions = self._aborted(target, read)
            if read.size < SENT_FROM_FILE_BYTES:
                try:
                    data.records = read.try_read()
                    continue
                except BlockingIOError:
                    pass
            part = FileSlice(read.fd, read.position, read.size, read)
            data.records = [part]  # type: ignore[list-item]  # written by the connection's sender, not by the codec
            if not part.is_cached():
                not_cached.append(part)
        return not_cached

    def _aborted(self, target: Target, read: LogRead) -> list[FetchResponse.AbortedTransaction]:
        partition = target.partition
        assert partition is not None
        end = partition.end_visible(self._isolation) if read.next_offset is None else read.next_offset
        return [
            FetchResponse.AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
            for aborted in partition.log.aborted_transactions(read.offset, end)
        ]

    async def _answer_loaded(self, slices: list[FileSlice]) -> FetchResponse:
        loop = asyncio.get_running_loop()
        for part in slices:
            await loop.run_in_executor(self._api.threads.reads, part.load)
        return self._response()

    async def _answer_converted(self) -> FetchResponse:
        """As clients of before KIP-98 read it: message sets of the magic that their version knows."""
        magic = 1 if self._context.api_version >= 2 else 0
        loop = asyncio.get_running_loop()
        room = self._max_bytes  # messages take more bytes than the batches that were planned
        for target, read in self._reads.items():
            data = self._found[target]
            if room <= 0:
                break
            try:
                async with self._api.conversion:
                    work = partial(_convert, read, magic, target.offset, min(room, target.max_bytes))
                    data.records = converted = await loop.run_in_executor(self._api.threads.records, work)
                    room -= len(converted)
            except KafkaError as error:
                self._found[target] = self._failed(target, error)
        return self._response()

    def _response(self) -> FetchResponse:
        context, session = self._context, self._session
        answers = list(self._found.items())
        session_id = 0
        if session is not None:
            session_id = session.id
            answers = session.select_news(answers)
        elif context.api_version >= 7 and self._request.session_epoch == INITIAL_EPOCH:
            session_id = self._api.sessions.create(
                list(self._found),
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
