"""A cluster for blocking code: Spark's executors, Connect's tasks, command-line tools.

``Cluster`` runs one ``parley.protocol.client.Client`` on its own event loop, in a thread. The first call starts the
thread, and ``close`` ends it. A ``Cluster`` also works beside a running event loop (in a notebook), and several threads
may call its methods. A ``Connection`` can be pickled and sent to other processes; each creates its own ``Cluster``.

Rules:

* A temporary error (a leader moves, a broker dies and returns) is retried with fresh metadata until ``api_timeout_ms``
  has passed without progress. Then the last error is raised, and names the operation. An unknown topic is retried only
  for a few seconds.
* ``contact`` waits only ``FIRST_CONTACT_S`` if no server listens at the address and none has responded before: the
  address is wrong, or no broker is running. Programs call it before they start long work. Spark's tasks never call it,
  because their cluster was reached before.
* Nothing else is retried: errors are ``parley.protocol.errors.KafkaError`` with the broker's code.
* A closed cluster stays closed: calls from other threads raise RuntimeError.
* ``fetch`` holds at most two responses in memory: the caller decodes one while the next one arrives.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import os
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import uvloop

from parley.pipeline.client.fetching import (
    EARLIEST,
    FETCH_BYTES,
    LATEST,
    Fetched,
    Isolation,
    LogEnded,
    OffsetOutOfRange,
    TopicPartition,
    check_end,
    fetch_once,
)
from parley.protocol.client import Client, NoBrokerListens, NotAuthenticated, parse_bootstrap
from parley.protocol.errors import ErrorCode, KafkaError, check_code
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.offsets import ListOffsetsRequest
from parley.protocol.schema import ZERO_UUID, Request
from parley.protocol.security.client_security import NO_SECURITY, ClientSecurity, SecurityProperties

__all__ = [
    "EARLIEST",
    "LATEST",
    "Cluster",
    "Connection",
    "Fetched",
    "Isolation",
    "LogEnded",
    "Lookup",
    "OffsetOutOfRange",
    "TopicPartition",
    "shared_cluster",
]

FIRST_CONTACT_S: Final = 10.0
"""How long ``Cluster.contact`` waits for a broker to listen."""
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_UNKNOWN_TOPIC_S: Final = 5.0
"""How long a read or a write waits for a topic that the cluster does not know: it may be created meanwhile."""
_NEW_TOPIC_S: Final = 1.0
"""How long a lookup waits for an unknown topic: a new topic is not known to all brokers immediately."""
_UNKNOWN_ERROR_S: Final = 5.0
"""How long a fetch that fails with UNKNOWN_SERVER_ERROR is retried. Kafka's consumers retry it forever."""
_CONSUMER: Final = -1
_LOG_END: Final = -2
"""The replica id for which ListOffsets returns the log end offset instead of the high watermark."""
_NOT_RETRIED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The settings to connect to a cluster, in a form that can be pickled. Raises ValueError if ``bootstrap`` is not a
    list of addresses.
    """

    bootstrap: str
    """``host:port,host:port``, as in Kafka's ``bootstrap.servers``."""
    client_id: str = "parley-pipeline"
    request_timeout_ms: int = 30_000
    """How long one request may take (``request.timeout.ms``)."""
    connect_timeout_ms: int = 10_000
    """How long connecting may take (``socket.connection.setup.timeout.ms``)."""
    api_timeout_ms: int = 60_000
    """How long a call may go without progress, retries included (``default.api.timeout.ms``)."""
    security: SecurityProperties = NO_SECURITY
    """TLS and login. The files that it names must exist in every process that uses the connection."""

    def __post_init__(self) -> None:
        parse_bootstrap(self.bootstrap)


class _Patience(NamedTuple):
    """The deadlines for retrying temporary errors, by the loop's clock."""

    deadline: float
    unknown_topic_deadline: float
    nobody_deadline: float
    unknown_error_deadline: float

    def outlasts(self, error: KafkaError, now: float) -> bool:
        if isinstance(error, NotAuthenticated):
            return False
        if isinstance(error, NoBrokerListens):
            return now < min(self.deadline, self.nobody_deadline)
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return now < min(self.deadline, self.unknown_topic_deadline)
        if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
            return now < min(self.deadline, self.unknown_error_deadline)
        passing = error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
        return passing and error.code not in _NOT_RETRIED and now < self.deadline


class Cluster:
    """A Kafka cluster, for callers without an event loop: each method blocks until it has its result.

    ``with Cluster(Connection(bootstrap="localhost:9092")) as cluster: ...``. The first call connects; it raises
    ValueError if the connection's security settings cannot be used. Every method may raise KafkaError. After ``close``,
    every method raises RuntimeError.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None
        self._has_answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def contact(self) -> None:
        """Wait until a broker responds. Returns immediately if one has responded before.

        If no server listens at the address, this logs a warning and waits for at most ``FIRST_CONTACT_S``. Then it
        raises KafkaError(BROKER_NOT_AVAILABLE).
        """
        if not self._has_answered:
            self._submit(self._contact).result()

    async def _contact(self, client: Client) -> None:
        limit = min(FIRST_CONTACT_S, self.connection.api_timeout_ms / 1000)
        try:
            await client.version_for(MetadataRequest)
        except NoBrokerListens:
            _log.warning("no broker responds at %s; trying for %g s", self.connection.bootstrap, limit)
        except KafkaError:
            pass  # a broker is listening, and gets the usual time
        await self._patiently(client, lambda client: client.version_for(MetadataRequest), nobody_s=limit)

    # Any request.

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run ``work(client)`` on the cluster's loop, and return its result. Use this for requests that belong
        together.

        For example ``cluster.run(lambda client: client.coordinator(group))``. Nothing is retried: raises what ``work``
        raises.
        """
        return self._submit(work).result()

    def retry(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Run ``work(client)`` like ``run``. If it raises a temporary error, run it again after a pause.

        Raises the last error after ``api_timeout_ms`` (an unknown topic: after a few seconds), and permanent errors
        immediately.
        """
        return self._submit(lambda client: self._patiently(client, work)).result()

    def send(self, request: Request, *, node: int | None = None, version: int | None = None) -> Any:
        """Send a request to the broker ``node`` (None: any broker) and return the response. Does not retry."""
        return self.run(lambda client: client.send(request, node=node, version=version))

    # Reading.

    def partitions(self, topics: Iterable[str] | re.Pattern[str]) -> dict[str, tuple[int, ...]]:
        """Return the partitions of the named topics, or of all topics, except internal topics, that match the pattern.

        A pattern must match the whole name. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION), within a second, if a named
        topic does not exist.
        """
        names = None if isinstance(topics, re.Pattern) else list(dict.fromkeys(topics))
        found = self._submit(
            lambda client: self._patiently(client, lambda client: _partitions(client, names), _NEW_TOPIC_S)
        ).result()
        if isinstance(topics, re.Pattern):
            return {name: ids for name, (ids, internal) in found.items() if not internal and topics.fullmatch(name)}
        return {name: found[name][0] for name in names or ()}

    def topic_id(self, topic: str) -> str:
        """Return the topic's id (KIP-516); "" if the cluster has no ids. A topic that is deleted and created again has
        a new id.

        Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION), after a few seconds, if there is no such topic.
        """

        async def ask(client: Client) -> str:
            (found,) = (await client.metadata([topic])).topics
            check_code(found.error_code, f"topic {topic!r}")
            return "" if found.topic_id == ZERO_UUID else str(found.topic_id)

        return self.retry(ask)

    def offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """Look up an offset of each partition: ``wanted`` maps the partition to ``EARLIEST``, ``LATEST`` or a timestamp
        (ms).

        For a timestamp, this is the offset of the first record at or after that time, or -1 if all records are earlier.
        With READ_COMMITTED, ``LATEST`` is the last stable offset.
        """
        return self.retry(Lookup(wanted, isolation).run)

    def settled(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Wait until consumers can read everything that is now in the leaders' logs. Returns the latest offsets.

        This includes records that are not acknowledged yet, because they may still be committed. Raises
        KafkaError(REQUEST_TIMED_OUT) if the followers do not fetch them within ``api_timeout_ms``.
        """
        return self._submit(lambda client: self._settled(client, dict.fromkeys(partitions, LATEST))).result()

    async def _settled(self, client: Client, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.connection.api_timeout_ms / 1000, _BACKOFF_FIRST_S
        ends: dict[TopicPartition, int] = {}
        while True:
            now = await self._patiently(client, Lookup(wanted, replica_id=_LOG_END).run)
            ends = {
                partition: min(end, ends.get(partition, end)) for partition, end in now.items()
            }  # a log may be truncated meanwhile
            found = await self._patiently(client, Lookup(wanted).run)
            behind = [partition for partition, end in ends.items() if found[partition] < end]
            if not behind:
                return found
            if loop.time() >= deadline:
                names = ", ".join(map(str, sorted(behind)))
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the followers have not fetched all records of {names}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _BACKOFF_MAX_S)

    def fetch(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        *,
        max_bytes: int = FETCH_BYTES,
    ) -> Iterator[Fetched]:
        """Yield whole record batches that contain the offsets [``start``, ``end``); nothing if the range is empty.

        The first and the last batch may extend beyond the range (``parley.pipeline.client.decode`` cuts the rows).
        While the caller uses one result, the next one is fetched. ``max_bytes`` limits a response, unless a single
        batch is larger.

        Raises ``OffsetOutOfRange`` if ``start`` is below the log start or above the log end, and ``LogEnded`` if the
        log ends before ``end``. With READ_COMMITTED, waits for a transaction that is open below ``end``. Raises
        KafkaError(REQUEST_TIMED_OUT) if no batch arrives within ``api_timeout_ms``.
        """
        if start >= end:
            return

        def ask(position: int) -> concurrent.futures.Future[Fetched]:
            return self._submit(lambda client: self._next(client, partition, position, end, isolation, max_bytes))

        pending = ask(start)
        try:
            while True:
                fetched = pending.result()
                if fetched.next_offset >= end:
                    yield fetched
                    return
                pending = ask(fetched.next_offset)
                yield fetched
        finally:
            pending.cancel()

    async def _next(
        self, client: Client, partition: TopicPartition, start: int, end: int, isolation: Isolation, max_bytes: int
    ) -> Fetched:
        """Return the next result that contains batches. Raises ``LogEnded`` if the log ends at ``start`` or before it,
        and KafkaError(REQUEST_TIMED_OUT) if no batch arrives within ``api_timeout_ms``.
        """
        deadline = asyncio.get_running_loop().time() + self.connection.api_timeout_ms / 1000
        while True:
            fetched = await self._patiently(
                client,
                lambda client: fetch_once(client, partition, start, isolation, max_bytes),
                unknown_error_s=_UNKNOWN_ERROR_S,
            )
            if fetched.records:
                return fetched
            await check_end(client, partition, start)
            if asyncio.get_running_loop().time() >= deadline:
                if isolation is Isolation.READ_COMMITTED and fetched.last_stable <= start:
                    reason = "a transaction is still open; commit or abort it"
                else:
                    reason = "the log continues, but may be corrupt there"
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"no records of {partition} from offset {start} on arrived within"
                    f" {self.connection.api_timeout_ms} ms: {reason}",
                )

    # The thread and its loop.

    def _submit(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the connections to {self.connection.bootstrap} were closed")
            if self._loop is None or self._client is None:
                self._start()
            assert self._loop is not None
            assert self._client is not None
            return asyncio.run_coroutine_threadsafe(work(self._client), self._loop)

    def _start(self) -> None:
        security = self.connection.security.read()
        loop = uvloop.new_event_loop()
        made: concurrent.futures.Future[Client] = concurrent.futures.Future()
        self._thread = threading.Thread(target=_serve, args=(loop, self.connection, security, made), daemon=True)
        self._thread.name = f"cluster {self.connection.bootstrap}"
        self._thread.start()
        self._client = made.result()
        self._loop = loop

    def close(self) -> None:
        """Close the connections and end the thread. Calls in progress and later calls fail. Calling this again has no
        effect.
        """
        with self._lock:
            self._is_closed = True
            loop, thread, self._loop, self._thread, self._client = self._loop, self._thread, None, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _patiently(
        self,
        client: Client,
        work: Callable[[Client], Awaitable[T]],
        unknown_topic_s: float = _UNKNOWN_TOPIC_S,
        nobody_s: float = math.inf,
        unknown_error_s: float = 0.0,
    ) -> T:
        """Repeat the call while it raises temporary errors, with longer and longer pauses.

        Raises permanent errors immediately, and a temporary one when the deadline for its kind (``_Patience``) has
        passed.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        deadline = begun + self.connection.api_timeout_ms / 1000
        patience = _Patience(deadline, begun + unknown_topic_s, begun + nobody_s, begun + unknown_error_s)
        pause = _BACKOFF_FIRST_S
        while True:
            try:
                answer = await work(client)
                self._has_answered = True
                return answer
            except KafkaError as error:
                if not patience.outlasts(error, loop.time()):
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _BACKOFF_MAX_S)


def _serve(
    loop: asyncio.AbstractEventLoop,
    connection: Connection,
    security: ClientSecurity,
    made: concurrent.futures.Future[Client],
) -> None:
    """Create the client, pass it to ``made``, and run the loop until it is stopped. Then cancel the loop's remaining
    tasks and close the client. This is the thread's function.
    """
    asyncio.set_event_loop(loop)
    client = Client(
        connection.bootstrap,
        client_id=connection.client_id,
        security=security,
        timeout=connection.request_timeout_ms / 1000,
        connect_timeout=connection.connect_timeout_ms / 1000,
    )
    loop.call_soon(made.set_result, client)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(client.close())
    finally:
        loop.close()


def shared_cluster(connection: Connection) -> Cluster:
    """Return this process's shared ``Cluster`` for a connection: a Spark worker runs many tasks on the same brokers.

    It is never closed, and ends with the process.
    """
    return _cluster_of(connection, os.getpid())


@cache
def _cluster_of(connection: Connection, process: int) -> Cluster:
    return Cluster(connection)  # one per process: a fork inherits the cache, but not the thread


async def _partitions(client: Client, names: list[str] | None) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the partitions of each named topic (None: of all topics), and True if the topic is internal.

    Raises KafkaError if a named topic does not exist.
    """
    found = {}
    for topic in (await client.metadata(names)).topics:
        name = topic.name or ""
        if topic.error_code and (names is not None or topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            raise KafkaError(ErrorCode(topic.error_code), f"topic {name!r}")
        found[name] = (tuple(sorted(one.partition_index for one in topic.partitions)), topic.is_internal)
    for name in names or ():
        if name not in found:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r}")
    return found


class Lookup:
    """A lookup of offsets that can be repeated after an error: it then requests only the missing offsets."""

    def __init__(
        self,
        wanted: Mapping[TopicPartition, int],
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        replica_id: int = _CONSUMER,
    ) -> None:
        self._missing = dict(wanted)
        self._isolation = isolation
        self._replica_id = replica_id
        self._found: dict[TopicPartition, int] = {}
        self._fresh = False

    async def run(self, client: Client) -> dict[TopicPartition, int]:
        """Look up the missing offsets. Returns all offsets, or raises the first error among those still missing."""
        if self._missing:
            await client.metadata(sorted({partition.topic for partition in self._missing}))
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in self._missing:
            leader = await client.leader(*partition)
            by_leader.setdefault(leader, []).append(partition)
        errors = await asyncio.gather(*(self._ask(client, node, ones) for node, ones in by_leader.items()))
        for error in filter(None, errors):
            raise error
        return self._found

    async def _ask(self, client: Client, node: int, partitions: list[TopicPartition]) -> KafkaError | None:
        topics: dict[str, ListOffsetsRequest.ListOffsetsTopic] = {}
        for name, index in partitions:
            topic = topics.setdefault(name, ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[]))
            requested = ListOffsetsRequest.ListOffsetsPartition(
                partition_index=index, timestamp=self._missing[TopicPartition(name, index)]
            )
            topic.partitions.append(requested)
        request = ListOffsetsRequest(
            replica_id=self._replica_id, isolation_level=self._isolation, topics=list(topics.values())
        )
        try:
            answer = await client.send(request, node=node)
        except KafkaError as error:
            return error
        failed = None
        for answered in answer.topics:
            for one in answered.partitions:
                partition = TopicPartition(answered.name, one.partition_index)
                if one.error_code:
                    failed = KafkaError(ErrorCode(one.error_code), f"offsets of {partition}")
                else:
                    self._found[partition] = one.offset
                    self._missing.pop(partition, None)
        return failed
