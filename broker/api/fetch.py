"""Fetch: reading what producers wrote, waiting for it if need be.

Rules of this module:

* Partitions are served in the order the client gave (its session's order), until the answer has as many bytes as the
  client or ``fetch.max.bytes`` allows; the first one that has records returns at least one batch (KIP-74).
* A fetch that finds fewer than ``min_bytes`` waits as a :class:`~broker.purgatory.Delayed`. News of a partition makes
  it look at that partition again, once the bytes that came add up to what is missing; the others keep what was found.
* Reads are planned first and carried out last. Large ones are sent from the file; what is not in memory is loaded in a
  thread, and so is the conversion for clients of before KIP-98.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable
from functools import partial
from typing import Any

from broker.api.current_leader import MOVED, current_leader, endpoints_of
from broker.api.fetch_sessions import INITIAL_EPOCH, FetchSession, FetchSessions, PartitionData, Target, targets_of
from broker.failures import FailureLog
from broker.metadata.current import Metadata
from broker.network.dispatch import Handler, RequestContext
from broker.network.sending import FileSlice
from broker.partition import Isolation, Partition
from broker.partitions import Partitions
from broker.purgatory import Delayed, Purgatory
from broker.replication.progress import FetchClock
from broker.tasks import TaskSet
from broker.threads import LOOPS_OWN, Threads
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.records.conversion import to_legacy
from storage.reads import LogRead

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
_ZSTD_VERSION = 10


class FetchApi:
    """Serves consumers and followers from the logs this broker leads."""

    def __init__(
        self,
        partitions: Partitions,
        metadata: Metadata,
        sessions: FetchSessions,
        purgatory: Purgatory,
        tasks: TaskSet,
        *,
        max_bytes: int,
        threads: Threads = LOOPS_OWN,
    ) -> None:
        """``max_bytes`` bounds every answer (``fetch.max.bytes``)."""
        self.partitions = partitions
        self.metadata = metadata
        self.sessions = sessions
        self.tasks = tasks
        self.max_bytes = max_bytes
        self.threads = threads
        self.failures = FailureLog(_log)
        self._purgatory = purgatory
        self.conversion = asyncio.Lock()
        """Held while a partition's batches are converted: the threads are for all, and the memory is bounded by one."""

    def routes(self) -> dict[int, Handler]:
        return {FetchRequest.API_KEY: self.fetch}

    def fetch(
        self, context: RequestContext, request: FetchRequest
    ) -> FetchResponse | Delayed[FetchResponse] | Coroutine[Any, Any, FetchResponse]:
        """Answer with what there is, or wait for more; errors of the session fill the whole answer."""
        session = self.sessions.resume(request, uses_ids=context.api_version >= TOPIC_IDS_VERSION)
        if session is not None:
            targets = list(session.targets.values())
        else:
            targets = targets_of(request)
        fetch = DelayedFetch(self, context, request, session, targets)
        fetch.read_all()
        if fetch.is_ready:
            return fetch.answer()
        self._purgatory.watch(fetch, fetch.watched(), request.max_wait_ms / 1000)
        return fetch


class DelayedFetch(Delayed[Any]):
    """One fetch: what it asks, what has been found so far, and the answer made of it."""

    def __init__(
        self,
        api: FetchApi,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
        targets: list[Target],
    ) -> None:
        super().__init__()
        version = context.api_version
        self._api = api
        self._context = context
        self._request = request
        self._session = session
        self._targets = targets
        self._replica = request.replica_state.replica_id if version >= 15 else request.replica_id
        self._replica_epoch = request.replica_state.replica_epoch
        self._clock = FetchClock() if session is None else session.clock
        self._clock.fetched(context.received_at)
        if self._replica != CONSUMER:
            self._isolation = Isolation.LOG_END
        else:
            self._isolation = Isolation.READ_COMMITTED if request.isolation_level == 1 else Isolation.READ_UNCOMMITTED
        self._max_bytes = min(request.max_bytes, api.max_bytes)
        self._found: list[PartitionData | None] = [None] * len(targets)  # None: no news for the session
        self._reads: dict[int, LogRead] = {}  # by place among the targets
        self._unplanned: list[int] = []  # places whose reads cannot be planned without waiting for the disk
        self._bytes = 0
        self._awaited_bytes = 0
        self._is_urgent = request.max_wait_ms <= 0 or not targets
        self._changed: set[int] = set()
        self._places: dict[Partition, int] = {}

    # Finding.

    def read_all(self) -> None:
        """Look at every partition, in order."""
        for place in range(len(self._targets)):
            self._read(place)

    @property
    def is_ready(self) -> bool:
        """Whether the client need not wait: there are bytes enough, an error, or it does not want to wait."""
        return self._is_urgent or self._bytes >= self._request.min_bytes

    def watched(self) -> dict[Partition, int]:
        """The partitions whose news matter, with their places."""
        for place, target in enumerate(self._targets):
            if target.partition is not None:
                self._places[target.partition] = place
        self._awaited_bytes = self._request.min_bytes - self._bytes
        return self._places

    def on_news(self, key: Hashable, amount: int) -> bool:
        assert isinstance(key, Partition)
        self._changed.add(self._places[key])
        self._awaited_bytes -= amount
        if self._awaited_bytes <= 0 or not amount:
            self._read_changed()
            if self.is_ready:
                self._finish()
            else:
                self._awaited_bytes = self._request.min_bytes - self._bytes
        return True

    def expired(self) -> None:
        self._read_changed()
        self._finish()

    def _read_changed(self) -> None:
        changed, self._changed = self._changed, set()
        for place in sorted(changed):
            read = self._reads.pop(place, None)
            if read is not None:
                self._bytes -= read.size
            self._read(place)

    def _finish(self) -> None:
        try:
            answer = self.answer()
        except Exception as error:
            self.fail(error)
            return
        if asyncio.iscoroutine(answer):
            self.complete(self._api.tasks.start(answer, name="fetch from disk"))
        else:
            self.complete(answer)

    def _read(self, place: int) -> None:
        """Look at one partition: note what the client may know of it, and plan the read."""
        target = self._targets[place]
        try:
            unchanged = self._session is not None and self._is_unchanged(target)
            self._found[place] = None if unchanged else self._look(place, target)
        except KafkaError as error:
            self._found[place] = self._failed(target, error)
        except Exception as error:
            facts = {"topic": target.topic, "partition": target.index}
            self._api.failures.report("Fetch failed", error, self._context.received_at, **facts)
            self._found[place] = self._failed(target, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))

    def _is_unchanged(self, target: Target) -> bool:
        """Whether a partition of a session has nothing to tell: the quick way past the many idle ones."""
        partition = target.partition
        if (
            partition is None
            or not partition.is_leader
            or target.leader_epoch not in (-1, partition.leader_epoch)
            or target.last_fetched_epoch != -1
            or self._replica != CONSUMER
        ):
            return False
        log = partition.log
        return (
            target.offset == partition.end_visible(self._isolation)
            and target.told_high_watermark == log.high_watermark
            and target.told_log_start == log.log_start_offset
        )

    def _look(self, place: int, target: Target) -> PartitionData:
        partition = self._partition(target)
        partition.check_leader(target.leader_epoch)
        log = partition.log
        if self._replica >= 0:
            partition.follower_fetched(
                self._replica, target.offset, target.log_start_offset, self._clock, self._replica_epoch
            )
        else:
            partition.counters.fetch_requests += 1
        data = PartitionData(
            partition_index=target.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            records=b"",
        )
        if target.last_fetched_epoch != -1:
            epoch, end = log.end_offset_for_epoch(target.last_fetched_epoch)
            if epoch == -1:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if epoch < target.last_fetched_epoch or end < target.offset:
                data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
                self._is_urgent = True
                return data
        if target.offset != partition.end_visible(self._isolation):  # most wait there, and there is nothing to read
            try:
                self._plan(place, partition, nowait=True)
            except BlockingIOError:
                self._unplanned.append(place)
                self._is_urgent = True
        return data

    def _plan(self, place: int, partition: Partition, *, nowait: bool) -> None:
        """Plan one partition's read, within what is left of the answer's bytes."""
        target = self._targets[place]
        room = max(0, min(target.max_bytes, self._max_bytes - self._bytes))
        read = partition.read(
            target.offset, room, isolation=self._isolation, min_one_batch=not self._bytes, nowait=nowait
        )
        if read.size:
            self._reads[place] = read
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
        target.partition = partition
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

    def answer(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
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
        places, self._unplanned = self._unplanned, []
        for place in places:
            target = self._targets[place]
            assert target.partition is not None
            try:
                await loop.run_in_executor(
                    self._api.threads.reads, partial(self._plan, place, target.partition, nowait=False)
                )
            except KafkaError as error:
                self._found[place] = self._failed(target, error)
        answer = self.answer()
        return await answer if asyncio.iscoroutine(answer) else answer

    def _count(self) -> None:
        """Count what the answer will hold."""
        for place, read in self._reads.items():
            partition = self._targets[place].partition
            assert partition is not None
            if self._replica >= 0:
                partition.counters.replication_bytes_out += read.size
            else:
                partition.counters.bytes_out += read.size
            if self._context.api_version < BATCHES_VERSION:
                partition.counters.fetch_conversions += 1

    def _fill_in(self) -> list[FileSlice]:
        """Give the records read to the partitions' data; the slices answered have still to be loaded from disk."""
        not_cached = []
        for place, read in self._reads.items():
            data = self._found[place]
            assert data is not None
            if self._isolation is Isolation.READ_COMMITTED:
                data.aborted_transactions = self._aborted(place, read)
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

    def _aborted(self, place: int, read: LogRead) -> list[FetchResponse.AbortedTransaction]:
        partition = self._targets[place].partition
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
        for place, read in self._reads.items():
            target, data = self._targets[place], self._found[place]
            assert data is not None
            if room <= 0:
                break
            try:
                async with self._api.conversion:
                    work = partial(_convert, read, magic, target.offset, min(room, target.max_bytes))
                    data.records = converted = await loop.run_in_executor(self._api.threads.records, work)
                    room -= len(converted)
            except KafkaError as error:
                self._found[place] = self._failed(target, error)
        return self._response()

    def _response(self) -> FetchResponse:
        context, session = self._context, self._session
        answers = [(t, data) for t, data in zip(self._targets, self._found, strict=True) if data is not None]
        session_id = 0
        if session is not None:
            session_id = session.id
            answers = session.select_news(answers)
        elif context.api_version >= 7 and self._request.session_epoch == INITIAL_EPOCH:
            session_id = self._api.sessions.create(
                self._targets, is_follower=self._replica >= 0, uses_ids=context.api_version >= TOPIC_IDS_VERSION
            )
            for target, data in answers:
                target.is_news(data)
        response = FetchResponse(session_id=session_id, responses=_by_topic(answers))
        if context.api_version >= 16:
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
