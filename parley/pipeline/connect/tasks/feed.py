"""Reads partitions for many sink tasks at the same time, with one long poll for each broker.

Rules:

1. A subscription is a partition that is read for one task from an offset on. Fetched batches wait in the task's
   ``Inbox``. While ``limit_bytes`` of a subscription wait, it is not fetched until the task has ``taken`` some.
2. The feed has its own connections: a broker that delays the response to a long poll delays nothing else.
3. Temporary errors are retried forever, with fresh metadata, after a pause of the affected partition only. If the log
   does not contain an offset, the task decides.
4. A partition that two tasks read is fetched for them in turn, because a request can name a partition only once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from parley.pipeline.client.cluster import Connection, Isolation
from parley.pipeline.client.fetching import Fetched, TopicPartition, fetch_once, fetched_in
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.records.errors import CorruptRecord

BUFFER_BYTES: Final = 4 * 1024 * 1024
"""How many bytes of a partition may wait for a task before fetching pauses."""
_PARTITION_BYTES: Final = 1024 * 1024
_ANSWER_BYTES: Final = 16 * 1024 * 1024
_MAX_WAIT_MS: Final = 100
"""How long a broker may delay an empty response. A new subscription may wait for this long."""
_NAMES_VERSION_MAX: Final = 12
_PAUSE_S: Final = 0.2
_log = logging.getLogger(__name__)


class Inbox:
    """The fetched batches and errors that wait for a task, in order for each partition.

    Its methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Subscription, Fetched | KafkaError]] = deque()
        self._filled = threading.Condition()
        self._woken = False

    def put(self, subscription: Subscription, found: Fetched | KafkaError) -> None:
        with self._filled:
            self._waiting.append((subscription, found))
            self._filled.notify()

    def take(self, timeout_s: float) -> tuple[Subscription, Fetched | KafkaError] | None:
        """Return the next batches or error, with their subscription. Waits up to ``timeout_s``.

        Returns None after the timeout, or if ``wake`` is called and nothing waits. Drops what was fetched for closed
        subscriptions.
        """
        with self._filled:
            if not self._waiting and not self._woken:
                self._filled.wait(timeout_s)
            self._woken = False
            while self._waiting:
                subscription, found = self._waiting.popleft()
                if not subscription.is_closed:
                    return subscription, found
            return None

    def wake(self) -> None:
        """Make a ``take`` that is waiting return now; otherwise the next one does not wait."""
        with self._filled:
            self._woken = True
            self._filled.notify()


@dataclass(eq=False, slots=True)
class Subscription:
    """A partition that is read for a task. Only the feed's loop changes it, except for ``is_closed``."""

    partition: TopicPartition
    position: int
    inbox: Inbox
    limit_bytes: int = BUFFER_BYTES
    buffered: int = 0
    served: int = 0
    is_closed: bool = False
    is_resting: bool = False
    """True after a temporary error: the partition is not fetched for a moment."""
    is_stuck: bool = False
    """True if the task got an error: the partition is not fetched until the task subscribes again."""


class Feed:
    """Fetches the subscribed partitions in a separate thread. Any thread may call the methods."""

    def __init__(self, connection: Connection, isolation: Isolation) -> None:
        self._connection = connection
        self._isolation = isolation
        self._subscriptions: set[Subscription] = set()
        self._leaders: dict[Subscription, int] = {}
        self._fetchers: dict[int, asyncio.Task[None]] = {}
        self._turn = 0
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="connect feed", daemon=True)
        self._changed = asyncio.Event()
        self._thread.start()

    def subscribe(
        self, partition: TopicPartition, offset: int, inbox: Inbox, limit_bytes: int = BUFFER_BYTES
    ) -> Subscription:
        """Read the partition into the inbox, starting at ``offset``. Pauses while ``limit_bytes`` or more
        wait there.
        """
        subscription = Subscription(partition, offset, inbox, limit_bytes)
        self._loop.call_soon_threadsafe(self._add, subscription)
        return subscription

    def unsubscribe(self, subscriptions: Iterable[Subscription]) -> None:
        """Stop reading these subscriptions, and drop their fetched batches."""
        for one in subscriptions:
            one.is_closed = True
            self._loop.call_soon_threadsafe(self._remove, one)

    def taken(self, subscription: Subscription, size_bytes: int) -> None:
        """Record that the task has taken this many bytes of the subscription from its inbox, so that fetching may
        continue.
        """
        self._loop.call_soon_threadsafe(self._release, subscription, size_bytes)

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # In the feed's loop.

    def _add(self, subscription: Subscription) -> None:
        self._subscriptions.add(subscription)
        self._changed.set()

    def _remove(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        self._leaders.pop(subscription, None)

    def _release(self, subscription: Subscription, size_bytes: int) -> None:
        was_full = subscription.buffered >= subscription.limit_bytes
        subscription.buffered -= size_bytes
        if was_full and subscription.buffered < subscription.limit_bytes:
            self._changed.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        client = Client(
            self._connection.bootstrap, client_id=self._connection.client_id, security=self._connection.security.read()
        )
        serving = self._loop.create_task(self._serve(client))
        try:
            self._loop.run_forever()
            ended = [serving, *self._fetchers.values()]
            for task in ended:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*ended, return_exceptions=True))
            self._loop.run_until_complete(client.close())
        finally:
            self._loop.close()

    async def _serve(self, client: Client) -> None:
        """Keep a fetcher running for every broker that leads a subscribed partition."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for error in await self._place(client):
                _log.debug("the leaders of partitions cannot be looked up: %s", error)
                await asyncio.sleep(_PAUSE_S)
                self._changed.set()
            for node in {self._leaders[one] for one in self._subscriptions if one in self._leaders}:
                fetcher = self._fetchers.get(node)
                if (fetcher is None or fetcher.done()) and self._wanted(node):
                    self._fetchers[node] = self._loop.create_task(self._fetch_from(client, node))

    async def _place(self, client: Client) -> list[KafkaError]:
        """Look up unknown leaders. Returns a list with the first error, or an empty list."""
        unplaced = [
            one for one in self._subscriptions if one not in self._leaders and not one.is_stuck and not one.is_resting
        ]
        if not unplaced:
            return []
        try:
            await client.metadata(sorted({one.partition.topic for one in unplaced}))
        except KafkaError as error:
            return [error]
        errors = []
        for one in unplaced:
            try:
                self._leaders[one] = await client.leader(*one.partition)
            except KafkaError as error:
                errors.append(error)
        return errors[:1]

    def _wanted(self, node: int) -> dict[TopicPartition, Subscription]:
        """Return the subscriptions to fetch from a broker; for each partition the subscription that has
        waited longest."""
        wanted: dict[TopicPartition, Subscription] = {}
        for one in self._subscriptions:
            if self._leaders.get(one) != node or one.is_stuck or one.buffered >= one.limit_bytes:
                continue
            other = wanted.get(one.partition)
            if other is None or one.served < other.served:
                wanted[one.partition] = one
        return wanted

    async def _fetch_from(self, client: Client, node: int) -> None:
        """Fetch from one broker while it leads a subscribed partition."""
        while wanted := self._wanted(node):
            try:
                version = min(await client.version_for(FetchRequest, node=node), _NAMES_VERSION_MAX)
                answer = await client.send(self._request(wanted), node=node, version=version)
                check_code(answer.error_code, f"fetching from broker {node}")
            except KafkaError as error:
                _log.debug("a fetch from broker %s failed: %s", node, error)
                self._misplaced(wanted.values())
                continue
            for topic in answer.responses:
                for data in topic.partitions:
                    subscription = wanted.get(TopicPartition(topic.topic, data.partition_index))
                    if subscription is not None and not subscription.is_closed:
                        await self._hand_over(client, subscription, data)
            if answer.throttle_time_ms:
                await asyncio.sleep(answer.throttle_time_ms / 1000)

    def _request(self, wanted: Mapping[TopicPartition, Subscription]) -> FetchRequest:
        topics: dict[str, FetchRequest.FetchTopic] = {}
        for (name, index), subscription in wanted.items():
            self._turn += 1
            subscription.served = self._turn
            topic = topics.setdefault(name, FetchRequest.FetchTopic(topic=name, partitions=[]))
            requested = FetchRequest.FetchPartition(
                partition=index, fetch_offset=subscription.position, partition_max_bytes=_PARTITION_BYTES
            )
            topic.partitions.append(requested)
        return FetchRequest(
            max_wait_ms=_MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=_ANSWER_BYTES,
            isolation_level=self._isolation,
            topics=list(topics.values()),
        )

    async def _hand_over(self, client: Client, subscription: Subscription, data: Any) -> None:
        """Put a task's part of a response into its inbox: batches, or an error that the task must handle."""
        try:
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await fetch_once(client, subscription.partition, subscription.position, self._isolation, 1)
                return
            if data.error_code:
                raise KafkaError(ErrorCode(data.error_code), f"fetching {subscription.partition}")
            fetched = fetched_in(subscription.partition, subscription.position, data)
        except KafkaError as error:
            if error.code.retriable and not isinstance(error, CorruptRecord):
                self._misplaced([subscription])
                return
            subscription.is_stuck = True
            subscription.inbox.put(subscription, error)
            return
        if fetched.records:
            subscription.position = fetched.next_offset
            subscription.buffered += len(fetched.records)
            subscription.inbox.put(subscription, fetched)

    def _misplaced(self, subscriptions: Iterable[Subscription]) -> None:
        """Stop fetching these subscriptions for a moment. Then their leaders are looked up again."""
        for one in subscriptions:
            self._leaders.pop(one, None)
            one.is_resting = True
            self._loop.call_later(_PAUSE_S, self._go_on, one)

    def _go_on(self, subscription: Subscription) -> None:
        subscription.is_resting = False
        self._changed.set()
