"""A cluster for code that blocks: Spark's executors, Connect's tasks, command-line tools.

`Cluster` runs one `parley.protocol.client.Client` on an event loop of its own, in a thread that is started by the
first call
and ended by `close`. It works inside a running event loop too (a notebook), and its methods may be called from several
threads. What travels to other processes is a `Connection`, which can be pickled; each process makes its own `Cluster`.

Rules:

* What may pass (a leader that moves, a broker that dies and comes back) is retried with fresh metadata until
  ``api_timeout_ms`` has gone by without progress; then the last error is raised, with what was being done. A topic that
  the cluster says it does not have is asked for only a few seconds.
* `contact` waits `FIRST_CONTACT_S` only if no server listens at the address and none has responded before: the address
  is wrong, or no broker runs. Programs call it before they start anything that takes long; Spark's tasks, which work on
  what was reached, never do.
* Nothing else is retried: errors are `parley.protocol.errors.KafkaError` with the code the broker gave.
* A cluster that was closed stays so: calls from threads that still run raise RuntimeError.
* `fetch` holds at most two answers in memory: the one being decoded and the one behind it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
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
from parley.protocol.errors import ErrorCode, KafkaError
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
    "OffsetOutOfRange",
    "TopicPartition",
]

FIRST_CONTACT_S: Final = 10.0
"""How long `Cluster.contact` waits for a broker to listen."""
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 1.0
_UNKNOWN_TOPIC_S: Final = 5.0
"""How long a topic that the cluster does not have may yet appear, while one of its partitions is read or written."""
_NEW_TOPIC_S: Final = 1.0
"""How long a topic that is asked for may yet appear: word of a new one takes a moment to all brokers."""
_UNKNOWN_ERROR_S: Final = 5.0
"""How long a fetch that fails of what the broker does not name is tried again, as Kafka's consumers do for ever."""
_CONSUMER: Final = -1
_LOG_END: Final = -2
"""Who asks for offsets in this name is told where the log ends, not what is replicated."""
_NOT_RETRIED: Final = frozenset({ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD})

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a cluster is reached. Can be pickled. Raises ValueError for a bootstrap that is no list of addresses."""

    bootstrap: str
    """``host:port,host:port``, as Kafka's ``bootstrap.servers``."""
    client_id: str = "parley-pipeline"
    request_timeout_ms: int = 30_000
    """How long one request may take (``request.timeout.ms``)."""
    connect_timeout_ms: int = 10_000
    """How long a connection may take to be made (``socket.connection.setup.timeout.ms``)."""
    api_timeout_ms: int = 60_000
    """How long a call may go on without progress, with all its retries (``default.api.timeout.ms``)."""
    security: SecurityProperties = NO_SECURITY
    """TLS and login; the files that it names must exist wherever the connection is used."""

    def __post_init__(self) -> None:
        parse_bootstrap(self.bootstrap)


class _Patience(NamedTuple):
    """Until when what may pass is retried, in the loop's time."""

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
    """A cluster, used by blocking calls; see the rules of the module.

    ``with Cluster(Connection(bootstrap="localhost:9092")) as cluster: ...``. Nothing is connected before the first
    call. Every method raises KafkaError; RuntimeError once it is closed.
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
        """Make sure that there is a cluster, see the rules; a log line says at once that it is waited for.

        Raises KafkaError(BROKER_NOT_AVAILABLE).
        """
        if not self._has_answered:
            self._submit(self._contact).result()

    async def _contact(self, client: Client) -> None:
        limit = min(FIRST_CONTACT_S, self.connection.api_timeout_ms / 1000)
        try:
            await client.version_for(MetadataRequest)
        except NoBrokerListens:
            _log.warning("no broker answers at %s, trying for %g s", self.connection.bootstrap, limit)
        except KafkaError:
            pass  # a broker is there, and gets the usual time
        await self._patiently(client, lambda client: client.version_for(MetadataRequest), nobody_s=limit)

    # Any request.

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """What ``work(client)`` returns, awaited on the cluster's own loop: for several requests that belong together.

        ``cluster.run(lambda client: client.coordinator(group))``. Nothing is retried.
        """
        return self._submit(work).result()

    def retry(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """As `run`; ``work`` is called again, after a pause, while it raises what may pass (see the module)."""
        return self._submit(lambda client: self._patiently(client, work)).result()

    def send(self, request: Request, *, node: int | None = None, version: int | None = None) -> Any:
        """The response to one request, sent to the broker ``node`` (None: to any); not retried."""
        return self.run(lambda client: client.send(request, node=node, version=version))

    # Reading.

    def partitions(self, topics: Iterable[str] | re.Pattern[str]) -> dict[str, tuple[int, ...]]:
        """The partitions of the topics named, or of all topics whose whole name the pattern matches but internal ones.

        Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION), within a second, for a name that the cluster does not have.
        """
        names = None if isinstance(topics, re.Pattern) else list(dict.fromkeys(topics))
        found = self._submit(
            lambda client: self._patiently(client, lambda client: _partitions(client, names), _NEW_TOPIC_S)
        ).result()
        if isinstance(topics, re.Pattern):
            return {name: ids for name, (ids, internal) in found.items() if not internal and topics.fullmatch(name)}
        return {name: found[name][0] for name in names or ()}

    def topic_id(self, topic: str) -> str:
        """The topic's id (KIP-516), another one each time that it is made; "" where the cluster has no ids."""

        async def ask(client: Client) -> str:
            (found,) = (await client.metadata([topic])).topics
            if found.error_code:
                raise KafkaError(ErrorCode(found.error_code), f"topic {topic!r}")
            return "" if found.topic_id == ZERO_UUID else str(found.topic_id)

        return self.retry(ask)

    def offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """An offset for each partition: of `EARLIEST`, of `LATEST`, or of the first record not before a timestamp (ms).

        -1 where no record is as late as the timestamp. With READ_COMMITTED the latest offset is the last stable one.
        """
        return self.retry(_Lookup(wanted, isolation).run)

    def settled(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The latest offset of each, once consumers can read all that its leader has at the time of the call.

        This waits for records that were written and are not acknowledged yet: they may be kept. Raises
        KafkaError(REQUEST_TIMED_OUT) if followers do not get them within ``api_timeout_ms``.
        """
        return self._submit(lambda client: self._settled(client, dict.fromkeys(partitions, LATEST))).result()

    async def _settled(self, client: Client, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.connection.api_timeout_ms / 1000, _BACKOFF_FIRST_S
        ends: dict[TopicPartition, int] = {}
        while True:
            now = await self._patiently(client, _Lookup(wanted, replica_id=_LOG_END).run)
            ends = {partition: min(end, ends.get(partition, end)) for partition, end in now.items()}  # it may be cut
            found = await self._patiently(client, _Lookup(wanted).run)
            behind = [partition for partition, end in ends.items() if found[partition] < end]
            if not behind:
                return found
            if loop.time() >= deadline:
                names = ", ".join(map(str, sorted(behind)))
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"followers do not get what the leaders have of {names}")
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
        """Whole record batches that cover the offsets from ``start`` up to, not with, ``end``.

        The first and the last may reach beyond (`parley.pipeline.client.decode` cuts the rows). The next answer is on
        its way while one is decoded. ``max_bytes`` bounds an answer, except that a single larger batch comes whole.
        Raises `OffsetOutOfRange` where the log does not have the offset (any more, or yet), and `LogEnded` where it
        ends before ``end``. With READ_COMMITTED an open transaction before ``end`` is waited for, at most
        ``api_timeout_ms``.
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
        """The next answer that holds anything."""
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
                    reason = "a transaction is still open there: commit or abort it"
                else:
                    reason = "though there is more: is the log corrupt there?"
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"nothing of {partition} from offset {start} on came within {self.connection.api_timeout_ms} ms,"
                    f" {reason}",
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
        """End the connections and the thread; calls under way fail, and all later ones. May be called again."""
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
        """Call again while what is raised may pass, each time after a longer pause."""
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
    """What the thread does: run the loop until it is stopped, then end what is left on it."""
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


async def _partitions(client: Client, names: list[str] | None) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Topic -> its partitions, and whether it is internal."""
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


class _Lookup:
    """A search for offsets, which keeps what it has found when it must begin again."""

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
        """All offsets; raises the first error of those that are still missing."""
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
            asked = ListOffsetsRequest.ListOffsetsPartition(
                partition_index=index, timestamp=self._missing[TopicPartition(name, index)]
            )
            topic.partitions.append(asked)
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
