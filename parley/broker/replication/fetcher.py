"""Fetches from one leader: one request at a time, for all partitions that are assigned to the fetcher.

Rules of this module:

* ``truncation_decisions`` decides what to do with a response. This module carries that out.
* A partition that fails, or whose log is being truncated, is left out of the requests for a while
  (``followed_partition`` defines the states). The other partitions continue.
* A response counts only if the partition still follows the leader epoch that the request contained. This is checked
  when the response arrives, and again before a log is truncated. From then on, changes in the partition's role wait.
* Fetched records are appended on the event loop, like produced records. A truncation waits for the disk, in a task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Protocol, cast

from parley.broker.config import BrokerConfig
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.logging.unexpected_errors import FailureLog
from parley.broker.metrics.catalogue.replication import FetcherMetrics
from parley.broker.network.peers import Peers
from parley.broker.replication.fetch_failures import FetchFailures
from parley.broker.replication.followed_partition import FollowedPartition, FollowEvent, FollowState
from parley.broker.replication.follower_fetch_session import SESSION_ENDED, FollowerFetchSession, Key, position_of
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.partition import Partition
from parley.broker.replication.throttle import ReplicationThrottle
from parley.broker.replication.truncation_decisions import (
    Append,
    AskForRange,
    Backoff,
    Removal,
    StartOver,
    Truncate,
    TruncateFully,
    step_for,
    step_for_range,
)
from parley.broker.replication.truncation_execution import TruncationRefused, Truncations
from parley.broker.runtime.tasks import TaskSet
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.schema import Buffer

_log = logging.getLogger(__name__)

APPENDED_IN_A_ROW_BYTES = 1 << 20
"""The bytes appended before the event loop does other work: about a millisecond of work."""
STORED_EPOCH_BYTES = 100_000
"""The number of bytes that count as appended when an epoch is stored: appending them takes as long as writing the file
that contains the epoch."""
LOOK_AT_ALL_S = 1.0
"""The interval at which a fetcher checks all its partitions for logs that must be fetched again."""
RETRY_FIRST_S = 0.02
LATEST, EARLIEST = -1, -2

_FETCHING = FollowState.FETCHING  # an attribute of an enum costs more than a global


class Config(Protocol):
    """Returns the broker's current configuration."""

    def __call__(self) -> BrokerConfig: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherDependencies:
    """The objects that all fetchers of a broker share."""

    broker_id: int
    partitions: HostedPartitions
    peers: Peers
    config: Config
    tasks: TaskSet
    epoch: Callable[[], int]
    """Returns this broker's epoch, or a negative number until the controller has registered this broker."""
    rng: Random
    throttle: ReplicationThrottle
    truncations: Truncations


class Fetcher:
    """Follows ``leader`` for the partitions given to ``follow``, from ``start`` to ``stop``."""

    def __init__(self, leader: int, number: int, dependencies: FetcherDependencies) -> None:
        self.leader = leader
        self.number = number
        self._dependencies = dependencies
        self._session = FollowerFetchSession()
        self._followed: dict[Key, FollowedPartition] = {}
        self._failing: set[FollowedPartition] = set()  # partitions whose last fetch failed
        self._next_look_s = 0.0
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_awaiting_response = False
        self._is_hurried = False  # ``_hurry`` has been called for the pending fetch
        self._sent = 0  # the number of requests sent
        self._unreachable: dict[int, GrowingInterval] = {}  # error code -> when to log it again
        self._failures = 0  # the number of consecutive failed requests
        self._fetch_failures = FetchFailures(leader)
        self._unexpected = FailureLog(_log)
        self.requests = 0
        """The number of fetches that got a response."""
        self.fetched_bytes = 0
        """The bytes of records appended."""

    def metrics(self) -> FetcherMetrics:
        """Return the metrics of this fetcher."""
        return FetcherMetrics(
            partitions=len(self._followed),
            failing=len(self._failing),
            max_lag=max([0, *(followed.lag for followed in self._followed.values())]),
            requests=self.requests,
            fetched_bytes=self.fetched_bytes,
        )

    def __len__(self) -> int:
        return len(self._followed)

    def start(self) -> None:
        """Start fetching."""
        self._task = self._dependencies.tasks.start(self._run(), name=f"fetcher {self.number} of broker {self.leader}")

    def stop(self) -> None:
        """Stop fetching. A pending response is discarded."""
        for followed in self._followed.values():
            followed.step(FollowEvent.LEAVE)
        self._followed.clear()
        self._failing.clear()
        if self._task is not None:
            self._task.cancel()

    def follow(self, partition: Partition) -> None:
        """Fetch a partition whose log is open. The first fetch is immediate, even if the partition was backing off."""
        followed = FollowedPartition(partition)
        self.leave(followed.key)
        self._followed[followed.key] = followed
        self._fetch_again(followed)

    def leave(self, key: Key) -> None:
        """Stop fetching a partition."""
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.step(FollowEvent.LEAVE)
            self._failing.discard(followed)
        self._session.forget(key)

    def wake(self) -> None:
        """Send the next request immediately if the fetcher is pausing. Call this when the leader has another address,
        or the leader or this broker has registered again."""
        self._wakeup.set()

    # --- The loop ---

    async def _run(self) -> None:
        while True:
            self._wakeup.clear()
            self._throttle()
            if not self._session:
                await self._wakeup.wait()
            elif self._dependencies.epoch() < 0:  # until this broker is registered, another broker may use its id
                await self._pause(RETRY_FIRST_S)
            else:
                try:
                    await self._fetch_and_take()
                except Exception as error:  # without its fetcher, the partitions would never catch up
                    now_s = asyncio.get_running_loop().time()
                    self._unexpected.report("fetching from a leader failed", error, now_s, leader=self.leader)
                    await self._back_off_all()

    async def _fetch_and_take(self) -> None:
        """Send one request, and process its response."""
        try:
            response = await self._fetch()
        except KafkaError as error:
            await self._request_failed(error.code, str(error))
            return
        self._session.take_response(response)
        if response.error_code:
            if response.error_code not in SESSION_ENDED:
                await self._request_failed(response.error_code, ErrorCode(response.error_code).name)
            return
        self._request_succeeded()
        await self._take_all(response)
        self._start_over_where_needed()

    async def _fetch(self) -> FetchResponse:
        config = self._dependencies.config()
        client = self._dependencies.peers.client(self.leader, f"fetcher-{self.number}")
        request = self._session.request(
            replica=FetchRequest.ReplicaState(
                replica_id=self._dependencies.broker_id, replica_epoch=self._dependencies.epoch()
            ),
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            partition_max_bytes=config.replica_fetch_max_bytes,
        )
        self._sent += 1
        self._is_awaiting_response, self._is_hurried = True, False
        try:
            response: FetchResponse = await client.send(request, timeout=config.replica_socket_timeout_ms / 1000)
        finally:
            self._is_awaiting_response = False
        return response

    def _request_succeeded(self) -> None:
        if self._unreachable:
            self._unreachable.clear()
            _log.info("a leader responds again", extra={"leader": self.leader})
        self.requests += 1
        self._failures = 0

    async def _request_failed(self, code: int, reason: str) -> None:
        """Log that a request failed, and pause before the next one."""
        if code not in self._unreachable:
            self._unreachable[code] = GrowingInterval(asyncio.get_running_loop().time)
        if self._unreachable[code].claim_line():
            facts = {"leader": self.leader, "partitions": len(self._followed), "reason": reason}
            _log.warning("a leader does not respond: retrying until a new leader is elected", extra=facts)
        await self._back_off_all()

    async def _back_off_all(self) -> None:
        """Pause before the next request. ``wake`` ends the pause early."""
        self._session.restart()
        self._failures += 1
        await self._pause(self._back_off_s(self._failures))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    def _back_off_s(self, failures: int) -> float:
        """Return the pause, in seconds, after this many consecutive failures.

        It is short at first, because a leader may be about to learn that it leads. It grows to
        ``replica.fetch.backoff.ms``, with jitter.
        """
        most_s = self._dependencies.config().replica_fetch_backoff_ms / 1000
        grown_s = RETRY_FIRST_S * (1 << min(failures, 16))
        return min(most_s, grown_s) * self._dependencies.rng.uniform(0.8, 1.2)

    # --- Responses ---

    async def _take_all(self, response: FetchResponse) -> None:
        in_a_row = 0
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._followed.get((topic.topic_id, data.partition_index))
                if followed is None or not self._is_requested(followed):
                    continue
                in_a_row += self._take(followed, data)
                if followed.state is _FETCHING and followed.partition.must_flush_fetched:
                    await self._flush(followed)
                if in_a_row >= APPENDED_IN_A_ROW_BYTES:
                    in_a_row = 0
                    await asyncio.sleep(0)

    def _is_requested(self, followed: FollowedPartition) -> bool:
        """Return True if the partition has not changed since the request was sent."""
        return followed.state is _FETCHING and followed.first_request <= self._sent and followed.is_current

    def _take(self, followed: FollowedPartition, data: FetchResponse.PartitionData) -> int:
        """Process the response for one partition. Returns the number of bytes appended, plus ``STORED_EPOCH_BYTES`` if
        an epoch was stored."""
        try:
            match step_for(followed.partition.log, data):
                case Append():
                    return self._append(followed, data)
                case (Truncate() | TruncateFully() | StartOver()) as step:
                    self._truncate_soon(followed, step)
                case AskForRange():
                    self._leave_out(followed, FollowEvent.ASK_RANGE)
                    self._dependencies.tasks.start(
                        self._ask_for_range(followed), name=f"range of {followed.partition!r}"
                    )
                case Backoff() as why:
                    code = ErrorCode(data.error_code).name
                    self._back_off(followed, code, is_expected=why is Backoff.METADATA)
        except KafkaError as error:
            self._back_off(followed, str(error))
        except Exception as error:
            self._failed_unexpectedly(followed, error)
        return 0

    def _failed_unexpectedly(self, followed: FollowedPartition, error: Exception) -> None:
        """Log an unexpected error, and fetch the partition again later."""
        now_s = asyncio.get_running_loop().time()
        self._unexpected.report("following a partition failed", error, now_s, **followed.facts)
        self._back_off(followed, "UNKNOWN_SERVER_ERROR", is_expected=True)

    def _append(self, followed: FollowedPartition, data: FetchResponse.PartitionData) -> int:
        partition = followed.partition
        size = partition.append_fetched(
            cast("Buffer | None", data.records),  # a decoded response contains one buffer
            high_watermark=data.high_watermark,
            log_start_offset=data.log_start_offset,
        )
        self.fetched_bytes += size
        if size and self._dependencies.throttle.is_set:
            self._dependencies.throttle.record_if_covered(
                self._dependencies.partitions.image, partition.topic, partition.index, size
            )
        log = partition.log
        followed.lag = max(0, data.high_watermark - log.log_end_offset)
        if followed.failure:
            self._recovered(followed)
        if data.must_store_epoch:
            log.store_epoch(followed.leader_epoch)
            size += STORED_EPOCH_BYTES
        self._session.ask(followed.key, position_of(log, followed.leader_epoch))
        return size

    def _recovered(self, followed: FollowedPartition) -> None:
        followed.failure, followed.failures = "", 0
        self._failing.discard(followed)
        if not self._failing:
            self._fetch_failures.all_recovered()

    async def _flush(self, followed: FollowedPartition) -> None:
        """Flush the records that the next fetch will report as replicated to the leader."""
        try:
            await self._dependencies.partitions.flush(followed.partition)
        except KafkaError as error:
            self._back_off(followed, str(error))
        except Exception as error:
            self._failed_unexpectedly(followed, error)

    # --- Partitions that are left out of the requests ---

    def _throttle(self) -> None:
        """Omit throttled partitions that are catching up from the requests until the throttle allows more (KIP-73)."""
        throttle, image = self._dependencies.throttle, self._dependencies.partitions.image
        if not throttle.is_set or not (wait_s := throttle.wait_s):
            return
        for followed in self._followed.values():
            partition = followed.partition
            if (
                followed.lag
                and followed.state is _FETCHING
                and throttle.covers(image, partition.topic, partition.index)
            ):
                self._leave_out(followed, FollowEvent.THROTTLE)
                self._fetch_again_after(followed, wait_s)

    def _back_off(self, followed: FollowedPartition, reason: str, *, is_expected: bool = False) -> None:
        """Leave a failed partition out of the requests for a while."""
        if followed.state in (FollowState.LEFT, FollowState.SUPERSEDED):
            return
        self._leave_out(followed, FollowEvent.FAIL)
        followed.failure = reason
        self._failing.add(followed)
        self._fetch_failures.note(followed.partition, reason, is_expected=is_expected)
        self._fetch_again_after(followed, self._back_off_s(followed.failures))
        followed.failures += 1

    def _leave_out(self, followed: FollowedPartition, event: FollowEvent) -> None:
        """Leave a partition out of the requests until ``_fetch_again``."""
        followed.step(event)
        self._session.forget(followed.key)

    def _fetch_again_after(self, followed: FollowedPartition, seconds: float) -> None:
        followed.timer = asyncio.get_running_loop().call_later(seconds, self._fetch_again, followed)

    def _fetch_again(self, followed: FollowedPartition) -> None:
        """Include a partition in the requests again, unless the metadata has superseded it."""
        if followed.state is FollowState.LEFT:
            return
        if not followed.is_current:
            followed.step(FollowEvent.SUPERSEDE)
            return
        followed.step(FollowEvent.FETCH)
        self._session.ask(followed.key, position_of(followed.partition.log, followed.leader_epoch))
        followed.first_request = self._sent + 1
        self._wakeup.set()
        if self._is_awaiting_response and not self._is_hurried:
            self._hurry()

    def _hurry(self) -> None:
        """Make the leader respond to the pending fetch, so that the next request can name other partitions.

        A leader stops delaying a follower's fetch as soon as the follower's next request has arrived.
        """
        self._is_hurried = True
        self._dependencies.tasks.start(self._send_hurry(), name=f"hurry to broker {self.leader}")

    async def _send_hurry(self) -> None:
        try:
            client = self._dependencies.peers.client(self.leader, f"fetcher-{self.number}")
            await client.send(ApiVersionsRequest(client_software_name="parley", client_software_version="0"), version=3)
        except KafkaError:
            pass  # the fetch in progress fails, too

    # --- Truncation ---

    def _start_over_where_needed(self) -> None:
        """Start removing the logs that must be fetched again. Call this while no fetch is pending."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_AT_ALL_S
        for followed in list(self._followed.values()):
            partition = followed.partition
            if partition.before_start_over is not None and followed.state is _FETCHING and followed.is_current:
                step = StartOver(partition.log.log_start_offset, tombstones_removed_up_to=0)
                self._truncate_soon(followed, step)

    def _truncate_soon(self, followed: FollowedPartition, step: Removal) -> None:
        self._leave_out(followed, FollowEvent.TRUNCATE)
        self._dependencies.tasks.start(self._truncate(followed, step), name=f"truncation of {followed.partition!r}")

    async def _truncate(self, followed: FollowedPartition, step: Removal) -> None:
        partition = followed.partition
        if followed.state is FollowState.LEFT:
            return
        if not followed.is_current:  # this broker may have become leader: a leader's log is never truncated
            followed.step(FollowEvent.SUPERSEDE)
            return
        try:
            await self._dependencies.truncations.truncate(
                partition, step, lambda: followed.state is FollowState.TRUNCATING and followed.is_current
            )
        except TruncationRefused as error:
            self._back_off(followed, str(error), is_expected=True)
        except KafkaError as error:
            self._back_off(followed, str(error))
        except Exception as error:
            self._failed_unexpectedly(followed, error)
        else:
            self._fetch_again(followed)

    async def _ask_for_range(self, followed: FollowedPartition) -> None:
        """Ask the leader for its log's start and end offsets, and move this log's end into that range."""
        try:
            end = await self._ask_offset(followed, LATEST)
            start = await self._ask_offset(followed, EARLIEST)
            if followed.state is FollowState.LEFT:
                return
            step = step_for_range(followed.partition.log.log_end_offset, start, end) if followed.is_current else None
            if step is None:
                self._fetch_again(followed)
            else:
                followed.step(FollowEvent.TRUNCATE)
                await self._truncate(followed, step)
        except KafkaError as error:
            self._back_off(followed, str(error))
        except Exception as error:
            self._failed_unexpectedly(followed, error)

    async def _ask_offset(self, followed: FollowedPartition, timestamp: int) -> int:
        requested = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=followed.partition.index,
            current_leader_epoch=followed.leader_epoch,
            timestamp=timestamp,
        )
        topic = ListOffsetsRequest.ListOffsetsTopic(name=followed.partition.topic, partitions=[requested])
        request = ListOffsetsRequest(replica_id=self._dependencies.broker_id, topics=[topic])
        timeout_s = self._dependencies.config().replica_socket_timeout_ms / 1000
        response = await self._dependencies.peers.client(self.leader).send(request, timeout=timeout_s)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code), "the leader failed to list its offsets")
        return int(found.offset)
