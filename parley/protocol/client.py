"""A thin asyncio client: negotiated versions, one connection per broker, pipelining, time limits.

It sends the messages of ``parley.protocol.messages`` and returns the responses unchanged: the caller reads error codes
in them. It never retries. Connections are made on demand. It raises ``KafkaError`` only if there is no response:

- NETWORK_EXCEPTION: no connection, or it ended before the response. A request that was sent may have been carried out.
- REQUEST_TIMED_OUT: no response in time. The request may still be carried out. The connection stays usable, but
  requests for any broker avoid this one until it responds again.
- UNSUPPORTED_VERSION: the broker and this client have no version of the API in common.
- BROKER_NOT_AVAILABLE: no bootstrap address responds (``NoBrokerListens`` if none accepts a connection), or the cluster
  has no broker with this id.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import cache
from importlib import metadata as distributions
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, cast

from parley.protocol.connection import ClientConnection
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages import APIS
from parley.protocol.messages.api_versions import ApiVersionsRequest
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.schema import Request, Response, VersionRange

__all__ = ["Address", "Client", "NoBrokerListens", "parse_bootstrap"]

_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 10.0
_DEFAULT_PORT: Final = 9092
_discarded = bytearray(4096)  # takes what arrives on a connection that has been given up


class NoBrokerListens(KafkaError):
    """Every address refuses connections, or its host is unknown: the address is wrong, or no broker is running."""


class Address(NamedTuple):
    """The host and port of a broker's listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_bootstrap(text: str) -> list[Address]:
    """Parse "host:port,host,[::1]:port"; the default port is 9092. Raises ValueError.

    Ignores a listener name before an address, as in "PLAINTEXT://host:port", like Kafka's clients.
    """
    addresses = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        address = part.rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or (address.startswith("[") and address.endswith("]")):
            host, port = address, str(_DEFAULT_PORT)
        if not port.isdecimal() or not 0 < int(port) < 65536 or not host:
            raise ValueError(f"{part!r} is not host:port")
        addresses.append(Address(host.strip("[]"), int(port)))
    if not addresses:
        raise ValueError("there is no bootstrap address")
    return addresses


@cache
def _software_version() -> str:
    try:
        return distributions.version("parley-broker")
    except distributions.PackageNotFoundError:
        return "unknown"


class _Link(asyncio.BufferedProtocol):
    """One connection; each response completes the future of its request."""

    def __init__(self, address: Address, client_id: str | None, max_frame_bytes: int) -> None:
        self.address = address
        self.is_open = True
        self.is_silent = False
        """True if a response is overdue and no byte has arrived since."""
        self.versions: dict[int, tuple[int, int]] = {}  # API key -> the broker's lowest and highest version
        self._connection = ClientConnection(client_id, max_frame_bytes)
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended: str | None = None
        self.ended_at: float | None = None

    # --- Calls by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the class

    def get_buffer(self, sizehint: int) -> memoryview:
        try:
            return self._connection.get_buffer(sizehint)
        except MemoryError:
            if self._ended is None:
                self._ended = "no memory for the response"
                # Not now: uvloop crashes if its transport is closed here.
                asyncio.get_running_loop().call_soon(self.abort)
            return memoryview(_discarded)

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended is not None:
            return
        self.is_silent = False
        try:
            for correlation_id, response in self._connection.buffer_updated(nbytes):
                waiting = self._waiting.pop(correlation_id)
                if not waiting.done():
                    waiting.set_result(response)
        except MalformedMessage as malformed:
            self._end(str(malformed))
        except MemoryError:
            self._end("no memory for the response")

    def _end(self, reason: str) -> None:
        self._ended = reason
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.ended_at = asyncio.get_running_loop().time()
        reason = self._ended or exc or "the broker closed the connection"
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address}: {reason}"))
        self._waiting.clear()
        self._writable.set()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- Calls by the client ---

    async def ask(self, request: Request, version: int) -> Response | None:
        """Send a request and return its response, or None if there is none (``acks=0``)."""
        await self._writable.wait()
        if not self.is_open:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self.address}: the connection has ended")
        correlation_id, frame = self._connection.send(request, version)
        if correlation_id is not None:
            waiting = self._waiting[correlation_id] = asyncio.get_running_loop().create_future()
        self._transport.writelines(frame)
        return None if correlation_id is None else await waiting

    async def negotiate(self) -> None:
        """Learn the broker's versions. A broker that does not support our ApiVersions version returns those it supports
        (KIP-511)."""
        request = ApiVersionsRequest(client_software_name="parley", client_software_version=_software_version())
        response: Any = await self.ask(request, request.VERSIONS.max)
        if response.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = next((api.max_version for api in response.api_keys if api.api_key == request.API_KEY), 0)
            response = await self.ask(request, min(known, request.VERSIONS.max))
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code), f"{self.address} refused ApiVersions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}

    def version_for(self, api_key: int, ours: VersionRange) -> int:
        """The highest version that both sides support."""
        name = APIS[api_key].name
        if api_key not in self.versions:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self.address} does not have {name}")
        lowest, highest = self.versions[api_key]
        version = min(highest, ours.max)
        if version < max(lowest, ours.min):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{self.address} has versions {lowest}-{highest} of {name}, this client {ours}",
            )
        return version

    async def close(self, limit: float) -> None:
        """Send what has been written, for at most ``limit`` seconds, then end the connection."""
        self._transport.close()
        try:
            async with asyncio.timeout(limit):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self.abort()

    def abort(self) -> None:
        self.is_open = False
        self._transport.abort()


class Client:
    """Sends requests to the brokers of a cluster; the module docstring says what it raises.

    ``async with Client("localhost:9092") as client: response = await client.send(request)``. Nodes are broker ids; the
    client takes the brokers' addresses from the cluster's metadata. Time limits are in seconds.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[tuple[str, int]],
        *,
        client_id: str | None = "parley",
        ssl: ssl.SSLContext | None = None,
        timeout: float = _TIMEOUT_S,
        connect_timeout: float = _CONNECT_TIMEOUT_S,
        max_frame_bytes: int = _FRAME_BYTES_MAX,
    ) -> None:
        if isinstance(bootstrap, str):
            self._bootstrap = parse_bootstrap(bootstrap)
        else:
            self._bootstrap = [Address(*address) for address in bootstrap]
        self._client_id = client_id
        self._ssl = ssl
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_frame_bytes = max_frame_bytes
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._links: dict[int | None, _Link] = {}  # None: to a bootstrap address, its node unknown
        self._connecting: dict[int | None, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        try:
            await self._link(None)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; requests in flight fail with NETWORK_EXCEPTION. Idempotent."""
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.close(self._timeout)

    async def send(
        self, request: Request, *, node: int | None = None, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Send a request to a broker (None: to any) and return its response, or None for a produce request with acks=0.

        ``timeout`` includes the time to connect. ``version`` defaults to the highest one that both sides support.
        Raises ValueError if the request has values that the version cannot carry, and KafkaError as the module says.
        """
        limit = self._timeout if timeout is None else timeout
        link: _Link | None = None
        try:
            async with asyncio.timeout(limit):
                link = await self._link(node)
                if version is None:
                    version = link.version_for(request.API_KEY, request.VERSIONS)
                return await link.ask(request, version)
        except TimeoutError:
            if link is not None:
                link.is_silent = True
            name = APIS[request.API_KEY].name
            what = f"connection for {name}" if link is None else f"response to {name} v{version} from {link.address}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no {what} within {limit:g} s") from None

    async def version_for(self, request: type[Request], *, node: int | None = None) -> int:
        """The version in which ``send`` would send such a request."""
        return (await self._link(node)).version_for(request.API_KEY, request.VERSIONS)

    @property
    def lost_at(self) -> float | None:
        """When the node's last connection ended, in the loop's time; None if one is open or none ever existed."""
        if any(link.is_open for link in self._links.values()):
            return None
        return max((link.ended_at for link in self._links.values() if link.ended_at is not None), default=None)

    # --- The cluster ---

    async def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """The brokers, and the named topics (None: all). With ``create``, missing topics are created if the broker
        allows it."""
        version = await self.version_for(MetadataRequest)
        asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        if version == 0 and asked is None:
            asked = []  # which means all in version 0
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=create or version < 4)
        response: MetadataResponse = await self.send(request, version=version)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            for partition in topic.partitions:
                self._leaders[topic.name or "", partition.partition_index] = partition.leader_id
        return response

    async def controller(self) -> int:
        """The node to which requests for the controller are sent. Raises KafkaError(NOT_CONTROLLER) if the cluster has
        no controller."""
        node = (await self.metadata([])).controller_id
        if node < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at this moment")
        return node

    async def leader(self, topic: str, partition: int, *, fresh: bool = False) -> int:
        """The leader of the partition, cached unless ``fresh``.

        Raises KafkaError with the error code of the topic or partition, such as UNKNOWN_TOPIC_OR_PARTITION or
        LEADER_NOT_AVAILABLE.
        """
        node = self._leaders.get((topic, partition), -1)
        if node >= 0 and not fresh:
            return node
        described = next((one for one in (await self.metadata([topic])).topics if one.name == topic), None)
        if described is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic)
        if described.error_code:
            raise KafkaError(ErrorCode(described.error_code), topic)
        found = next((one for one in described.partitions if one.partition_index == partition), None)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has no partition {partition}")
        if found.leader_id < 0:
            code = ErrorCode(found.error_code) if found.error_code else ErrorCode.LEADER_NOT_AVAILABLE
            raise KafkaError(code, f"{topic}-{partition}")
        return found.leader_id

    async def coordinator(self, key: str, key_type: int = 0) -> int:
        """The coordinator of a group (``key_type`` 0) or a transactional id (1).

        Raises KafkaError with the broker's error code, such as COORDINATOR_NOT_AVAILABLE.
        """
        version = await self.version_for(FindCoordinatorRequest)
        if version >= 4:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        else:
            request = FindCoordinatorRequest(key_type=key_type, key=key)
        response = await self.send(request, version=version)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code), found.error_message or key)
        self._brokers[found.node_id] = Address(found.host, found.port)
        return int(found.node_id)

    # --- Connections ---

    async def _link(self, node: int | None) -> _Link:
        """The connection to the node, made if necessary."""
        link = self._open_link(node)
        if link is not None:
            return link
        async with self._connecting.setdefault(node, asyncio.Lock()):
            link = self._open_link(node)
            if link is None:
                link = await (self._connect_any() if node is None else self._connect_node(node))
                if node in self._links:
                    self._links[node].abort()  # it has ended, or is silent
                self._links[node] = link
        return link

    def _open_link(self, node: int | None) -> _Link | None:
        link = self._links.get(node)
        if node is not None:
            return link if link is not None and link.is_open else None
        others = [other for other in (link, *self._links.values()) if other is not None and other.is_open]
        speaking = [other for other in others if not other.is_silent]
        if not speaking and self._addresses().keys() - self._silent():
            return None
        return next(iter(speaking or others), None)

    def _addresses(self) -> dict[Address, None]:
        """The possible addresses of brokers, bootstrap addresses first."""
        return dict.fromkeys([*self._bootstrap, *self._brokers.values()])

    def _silent(self) -> set[Address]:
        return {link.address for link in self._links.values() if link.is_silent}

    async def _connect_any(self) -> _Link:
        """A connection to the first address that responds; addresses that were silent before are tried last."""
        failures = []
        for address in sorted(self._addresses(), key=self._silent().__contains__):
            try:
                return await self._connect(address)
            except KafkaError as error:
                failures.append(error)
        all_refuse = all(isinstance(error.__cause__, OSError) for error in failures)
        text = "no broker responds: " + "; ".join(error.message for error in failures)
        raise (NoBrokerListens if all_refuse else KafkaError)(ErrorCode.BROKER_NOT_AVAILABLE, text)

    async def _connect_node(self, node: int) -> _Link:
        if node not in self._brokers:
            await self.metadata([])
        if node not in self._brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node}")
        try:
            return await self._connect(self._brokers[node])
        except KafkaError:
            self._brokers.pop(node, None)  # it may have another address by now
            raise

    async def _connect(self, address: Address) -> _Link:
        loop = asyncio.get_running_loop()
        limit = self._connect_timeout
        try:
            async with asyncio.timeout(limit):
                _, link = await loop.create_connection(
                    lambda: _Link(address, self._client_id, self._max_frame_bytes), *address, ssl=self._ssl
                )
                try:
                    await link.negotiate()
                except BaseException:
                    link.abort()
                    raise
        except TimeoutError:
            text = f"{address} does not respond within {limit:g} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        except OSError as error:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {address}: {error}") from error
        return link
