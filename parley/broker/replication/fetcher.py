"""Fetching from one leader: a loop with one request under way, for all the partitions it is given.

Rules of this module:

* What to ask and what to do with an answer is decided in :mod:`parley.broker.replication.follower_decisions`; here it is done.
* A partition that fails, or whose log is being cut, is taken out of the requests and put back later; the others go on.
* An answer counts only if the partition still follows the leader of the epoch that was asked: when it comes, and when
  what follows from it is done. From then on until a log is cut, its role stays what it is.
* What came of records is appended on the loop, as a produce is; after :data:`APPENDED_IN_A_ROW_BYTES` others get
  their turn. Cutting a log waits for the disk and is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol, cast

from parley.broker.config import BrokerConfig
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics import FetcherMetrics
from parley.broker.network.peers import Peers
from parley.broker.replication.follower_decisions import (
    Append,
    AskForRange,
    Cut,
    StartAnew,
    Wait,
    into_range,
    position_of,
    step_for,
)
from parley.broker.replication.follower_fetch_session import SESSION_ENDED, FollowerFetchSession, Key
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.schema import Buffer
from parley.storage.log import Log

_log = logging.getLogger(__name__)

APPENDED_IN_A_ROW_BYTES = 1 << 20
"""Appended before the loop serves others: about a millisecond's work."""
RETRY_FIRST_S = 0.02
COMPLAINTS_GATHERED_S = 1.0
LATEST, EARLIEST = -1, -2


class Config(Protocol):
    """The broker's configuration as it is now."""

    def __call__(self) -> BrokerConfig: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherParts:
    """What all fetchers of a broker share."""

    broker_id: int
    partitions: HostedPartitions
    peers: Peers
    config: Config
    tasks: TaskSet
    epoch: Callable[[], int]
    """This broker's epoch."""
    rng: Random
    throttle: ReplicationThrottle


@dataclass(slots=True)
class Followed:
    """One partition that is followed; ``lag`` counts the committed records beyond this log's end, -1 is unknown."""

    partition: Partition
    leader_epoch: int
    lag: int = -1
    complained: str = ""
    """The trouble that was logged last: a log line per trouble, not per attempt."""
    timer: asyncio.TimerHandle | None = None
    failures: int = 0
    """In a row."""
    first_request: int = 0
    """The number of the first request that names it as it is now; the answers to earlier ones are not meant for it."""


class Complaints:
    """Logs which partitions cannot be followed, one line for all that fail for the same reason within a second.

    When a leader's disk fails, all its partitions fail at once.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._gathered: dict[tuple[str, int], list[Partition]] = {}

    def add(self, partition: Partition, reason: str, *, is_expected: bool) -> None:
        """Log the failure within a second, at debug level if it was to be expected."""
        key = (reason, logging.DEBUG if is_expected else logging.WARNING)
        if key not in self._gathered:
            asyncio.get_running_loop().call_later(COMPLAINTS_GATHERED_S, self._log, key)
        self._gathered.setdefault(key, []).append(partition)

    def _log(self, key: tuple[str, int]) -> None:
        partitions = self._gathered.pop(key)
        reason, level = key
        facts = {
            "leader": self._leader,
            "reason": reason,
            "topic": partitions[0].topic,
            "partition": partitions[0].index,
        }
        if len(partitions) == 1:
            _log.log(level, "a partition cannot be followed now; it is tried again", extra=facts)
        else:
            _log.log(
                level,
                "several partitions cannot be followed now; they are tried again",
                extra={**facts, "partitions": len(partitions)},
            )


class Fetcher:
    """Follows ``leader`` for the partitions given to :meth:`follow`, from :meth:`start` to :meth:`stop`."""

    def __init__(self, leader: int, number: int, parts: FetcherParts) -> None:
        self.leader = leader
        self.number = number
        self._parts = parts
        self._session = FollowerFetchSession()
        self._followed: dict[Key, Followed] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waiting = False  # for an answer
        self._is_hurried = False  # the leader was asked to answer now
        self._sent = 0  # requests
        self._is_down = False  # the last request was not answered
        self._failures = 0  # in a row
        self._failures_seen = FailureLog(_log)
        self._complaints = Complaints(leader)
        self.requests = 0
        """Fetches answered."""
        self.fetched_bytes = 0
        """Bytes of records appended."""

    def metrics(self) -> FetcherMetrics:
        """The numbers of this fetcher now."""
        return FetcherMetrics(
            partitions=len(self._followed),
            failing=sum(bool(followed.complained) for followed in self._followed.values()),
            max_lag=max([0, *(followed.lag for followed in self._followed.values())]),
            requests=self.requests,
            fetched_bytes=self.fetched_bytes,
        )

    def __len__(self) -> int:
        return len(self._followed)

    def start(self) -> None:
        """Begin to fetch."""
        self._task = self._parts.tasks.start(self._run(), name=f"fetcher {self.number} of broker {self.leader}")

    def stop(self) -> None:
        """Fetch no more; an answer under way is dropped."""
        for followed in self._followed.values():
            if followed.timer is not None:
                followed.timer.cancel()
        self._followed.clear()
        if self._task is not None:
            self._task.cancel()

    def follow(self, partition: Partition) -> None:
        """Fetch a partition, whose log is open, from now on; at once where it was waiting to be tried again."""
        key = (partition.topic_id, partition.index)
        self.leave(key)
        self._followed[key] = Followed(partition, partition.leader_epoch)
        self._resume(key)

    def leave(self, key: Key) -> None:
        """Fetch a partition no longer."""
        followed = self._followed.pop(key, None)
        if followed is not None and followed.timer is not None:
            followed.timer.cancel()
        self._session.forget(key)

    def wake(self) -> None:
        """The leader has another address or is back: try at once."""
        self._news.set()

    # The loop.

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._hold_back()
            if not self._session:
                await self._news.wait()
                continue
            if self._parts.epoch() < 0:  # as long as it is not registered it may be another's id
                await self._news_within(RETRY_FIRST_S)
                continue
            try:
                answer = await self._fetch()
            except KafkaError as error:
                await self._unanswered(str(error))
                continue
            self._session.answered(answer)
            if answer.error_code:
                if answer.error_code not in SESSION_ENDED:
                    await self._unanswered(ErrorCode(answer.error_code).name)
                continue
            if self._is_down:
                self._is_down = False
                _log.info("following a leader again", extra={"leader": self.leader})
            self.requests += 1
            self._failures = 0
            await self._take_all(answer)

    async def _fetch(self) -> FetchResponse:
        config = self._parts.config()
        client = self._parts.peers.client(self.leader, f"fetcher-{self.number}")
        request = self._session.request(
            replica=FetchRequest.ReplicaState(replica_id=self._parts.broker_id, replica_epoch=self._parts.epoch()),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
        )
        self._sent += 1
        self._waiting, self._is_hurried = True, False
        try:
            answer: FetchResponse = await client.send(request, timeout=config.replica_socket_timeout_ms / 1000)
        finally:
            self._waiting = False
        return answer

    async def _unanswered(self, reason: str) -> None:
        """The leader cannot be asked: try again in a while, or when there is news of it."""
        self._session.lost()
        self._failures += 1
        if not self._is_down:
            self._is_down = True
            facts = {"leader": self.leader, "partitions": len(self._followed), "reason": reason}
            _log.warning("a leader does not answer; it is asked again until another is elected", extra=facts)
        await self._news_within(self._back_off_s(self._failures))

    async def _news_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass

    def _back_off_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row: hardly at first, since a leader may be about to hear that
        it is one; then longer up to ``replica.fetch.backoff.ms``, and not everybody as long."""
        most_s = self._parts.config().replica_fetch_backoff_ms / 1000
        grown_s = RETRY_FIRST_S * (1 << min(failures, 16))
        return min(most_s, grown_s) * self._parts.rng.uniform(0.8, 1.2)

    # Answers.

    async def _take_all(self, answer: FetchResponse) -> None:
        in_a_row = 0
        for topic in answer.responses:
            for data in topic.partitions:
                key = (topic.topic_id, data.partition_index)
                followed = self._followed.get(key)
                if followed is None or not self._is_asked(key, followed):
                    continue
                in_a_row += self._take(key, followed, data)
                if followed.partition.must_flush_copy:
                    await self._flush(key, followed)
                if in_a_row >= APPENDED_IN_A_ROW_BYTES:
                    in_a_row = 0
                    await asyncio.sleep(0)

    def _is_asked(self, key: Key, followed: Followed) -> bool:
        """Whether the partition is as it was when the fetch was sent; its role may have changed meanwhile."""
        return key in self._session and followed.first_request <= self._sent and self._is_as_assigned(followed)

    @staticmethod
    def _is_as_assigned(followed: Followed) -> bool:
        """Whether the partition has a log, and follows the leader of the epoch that it was given here for."""
        partition = followed.partition
        return partition.is_open and not partition.is_leader and partition.leader_epoch == followed.leader_epoch

    def _take(self, key: Key, followed: Followed, data: FetchResponse.PartitionData) -> int:
        """Act on the answer for one partition; how many bytes were appended."""
        partition = followed.partition
        try:
            match step_for(partition.log, data):
                case Append():
                    return self._append(key, followed, data)
                case (Cut() | StartAnew()) as step:
                    self._cut(key, followed, step)
                case AskForRange():
                    self._away(key)
                    self._parts.tasks.start(self._ask_for_range(key, followed), name=f"range of {partition!r}")
                case Wait() as why:
                    code = ErrorCode(data.error_code).name
                    self._try_later(key, followed, code, is_expected=why is Wait.METADATA)
        except KafkaError as error:
            self._try_later(key, followed, str(error))
        except Exception as error:
            now_s = asyncio.get_running_loop().time()
            self._failures_seen.report("following a partition failed", error, now_s, **_facts(followed))
            self._try_later(key, followed, "UNKNOWN_SERVER_ERROR", is_expected=True)
        return 0

    def _append(self, key: Key, followed: Followed, data: FetchResponse.PartitionData) -> int:
        partition = followed.partition
        size = partition.append_fetched(
            cast("Buffer | None", data.records),  # of a decoded answer: one buffer
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
        )
        self.fetched_bytes += size
        if size and self._parts.throttle.is_set:
            self._parts.throttle.record_if_covered(self._parts.partitions.image, partition.topic, partition.index, size)
        log = partition.log
        followed.lag = max(0, data.high_watermark - log.log_end_offset)
        followed.complained, followed.failures = "", 0
        self._session.ask(key, position_of(log, followed.leader_epoch))
        return size

    async def _flush(self, key: Key, followed: Followed) -> None:
        """Have on disk what the next fetch will say is here."""
        try:
            await self._parts.partitions.flush(followed.partition)
        except KafkaError as error:
            self._try_later(key, followed, str(error))

    # Partitions that must wait.

    def _hold_back(self) -> None:
        """Leave the throttled partitions that catch up out of the requests until they may go on (KIP-73)."""
        throttle, image = self._parts.throttle, self._parts.partitions.image
        if not throttle.is_set or not (wait_s := throttle.wait_s):
            return
        for key, followed in self._followed.items():
            partition = followed.partition
            if followed.lag and key in self._session and throttle.covers(image, partition.topic, partition.index):
                self._away(key)
                followed.timer = asyncio.get_running_loop().call_later(wait_s, self._resume, key)

    def _away(self, key: Key) -> None:
        """Leave a partition out of the requests until :meth:`_resume`."""
        self._session.forget(key)

    def _resume(self, key: Key) -> None:
        """Put a partition back into the requests, if it is followed still."""
        followed = self._followed.get(key)
        if followed is None:
            return
        followed.timer = None
        if not self._is_as_assigned(followed):
            return  # the metadata have been here: the partition is given to whoever follows it now, or not
        self._session.ask(key, position_of(followed.partition.log, followed.leader_epoch))
        followed.first_request = self._sent + 1
        self._news.set()
        if self._waiting and not self._is_hurried:
            self._hurry()

    def _try_later(self, key: Key, followed: Followed, reason: str, *, is_expected: bool = False) -> None:
        if self._followed.get(key) is not followed:
            return
        self._away(key)
        if followed.complained != reason:
            followed.complained = reason
            self._complaints.add(followed.partition, reason, is_expected=is_expected)
        if followed.timer is not None:
            followed.timer.cancel()
        back_off_s = self._back_off_s(followed.failures)
        followed.failures += 1
        followed.timer = asyncio.get_running_loop().call_later(back_off_s, self._resume, key)

    def _hurry(self) -> None:
        """Have the request under way answered now: a leader lets a follower's fetch wait no longer when the next
        request has arrived behind it."""
        self._is_hurried = True
        self._parts.tasks.start(self._send_hurry(), name=f"hurry to broker {self.leader}")

    async def _send_hurry(self) -> None:
        try:
            client = self._parts.peers.client(self.leader, f"fetcher-{self.number}")
            await client.send(ApiVersionsRequest(client_software_name="parley", client_software_version="0"), version=3)
        except KafkaError:
            pass  # the fetch under way hears of it too

    # Cutting.

    def _cut(self, key: Key, followed: Followed, step: Cut | StartAnew) -> None:
        self._away(key)
        self._parts.tasks.start(self._carry_out(key, followed, step), name=f"cutting {followed.partition!r}")

    async def _carry_out(self, key: Key, followed: Followed, step: Cut | StartAnew) -> None:
        partition = followed.partition
        if self._followed.get(key) is not followed or not self._is_as_assigned(followed):
            return  # by the time this task runs the partition may be led here: a leader's log is never cut
        try:
            log = partition.log
            facts = {"log_end": log.log_end_offset, "high_watermark": log.high_watermark, "offset": step.offset}
            level = logging.WARNING if step.offset < log.high_watermark else logging.INFO
            _log.log(level, "a log is cut to agree with its leader's", extra={**_facts(followed), **facts})
            if isinstance(step, Cut):
                await self._parts.partitions.cut(partition, partial(Log.truncate_to, offset=step.offset))
            else:
                await self._parts.partitions.cut(
                    partition, partial(Log.truncate_fully_and_start_at, offset=step.offset)
                )
        except KafkaError as error:
            self._try_later(key, followed, str(error))
        else:
            self._resume(key)

    async def _ask_for_range(self, key: Key, followed: Followed) -> None:
        """The fetch was outside of the leader's log: learn its range, and go there."""
        partition = followed.partition
        try:
            end = await self._ask_offset(followed, LATEST)
            start = await self._ask_offset(followed, EARLIEST)
            if self._followed.get(key) is not followed or partition.leader_epoch != followed.leader_epoch:
                return
            step = into_range(partition.log.log_end_offset, start, end)
            if step is None:
                self._resume(key)
            else:
                await self._carry_out(key, followed, step)
        except KafkaError as error:
            self._try_later(key, followed, str(error))

    async def _ask_offset(self, followed: Followed, position: int) -> int:
        asked = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=followed.partition.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=position,
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=followed.partition.topic, partitions=[asked])
        request = ListOffsetsRequest(replica_id=self._parts.broker_id, topics=[topic])
        timeout_s = self._parts.config().replica_socket_timeout_ms / 1000
        answer = await self._parts.peers.client(self.leader).send(request, timeout=timeout_s)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code), "the leader does not tell its offsets")
        return int(found.offset)


def _facts(followed: Followed) -> dict[str, object]:
    partition = followed.partition
    return {"topic": partition.topic, "partition": partition.index}
