"""One fetch: looking at its partitions, and waiting until there is enough for an answer.

Rules of this module:

* News of a partition makes a waiting fetch look at that partition again, once the bytes that came add up to what is
  missing; the others keep what was found. It looks when the loop has handled what it is at, so that several appends of
  one moment are answered together.
* In a session the partitions that have nothing to tell are passed over, and stay so until they change.
* A follower is told of a new high watermark with the next records; at once where consumers read from followers. One
  that sends the next request before it has its answer wants it now, to fetch other partitions than these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from parley.broker.api.fetch.params import FOLLOWER_READS_VERSION, TOPIC_IDS_VERSION, Reader
from parley.broker.api.fetch.preferred_replica import NOT_ELSEWHERE, preferred_replica
from parley.broker.api.fetch.render import FetchAnswer
from parley.broker.api.fetch.sessions import FetchSession, PartitionData, Target
from parley.broker.network.dispatch import RequestContext
from parley.broker.replication import ConsumerView
from parley.broker.replication.follower_progress import FetchClock
from parley.broker.replication.partition import Partition
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.sentinels import NO_EPOCH

if TYPE_CHECKING:
    from parley.broker.api.fetch.handler import FetchApi

_log = logging.getLogger(__name__)


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
        self._answer = FetchAnswer(api, context, request, session, reader)
        self._found = self._answer.found
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
        return self._is_urgent or self._answer.bytes >= self._request.min_bytes

    def wait(self, purgatory: Purgatory, timeout_s: float) -> None:
        """Wait for news, for at most ``timeout_s``."""
        self._is_waiting = True
        self._awaited_bytes = self._request.min_bytes - self._answer.bytes
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
            self._awaited_bytes = self._request.min_bytes - self._answer.bytes

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
            self._answer.drop_read(target)
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
                self._insist_on_progress(target)
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
        return not self._reader.is_follower and self._context.api_version >= FOLLOWER_READS_VERSION

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
        if target.last_fetched_epoch != NO_EPOCH and not target.is_settled:
            epoch, end = log.end_offset_for_epoch(target.last_fetched_epoch)
            if epoch == NO_EPOCH:
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
                self._answer.plan(target, partition, nowait=True)
            except BlockingIOError:
                self._answer.unplanned.append(target)
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

    def _insist_on_progress(self, target: Target) -> None:
        """Count once more what a follower's session knows, where a fetch outside of it has said otherwise: the follower
        names a partition to its session when something changes, and would never correct that."""
        assert target.partition is not None
        progress = target.partition.followers.get(self._reader.replica) if self._reader.is_follower else None
        if progress is not None and not self._is_waiting and not progress.is_told_by(self._clock):
            self._count_progress(target, target.partition)

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
        return self._answer.failed(target, error)

    # Answering.

    def answer_now(self) -> FetchResponse | Coroutine[Any, Any, FetchResponse]:
        """The answer, with all that could wait for it; or the work that leads to it, see :meth:`FetchAnswer.make`."""
        self._is_answering = True
        self._look_at_changed()
        return self._answer.make()
