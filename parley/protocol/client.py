"""A thin asyncio client: negotiated versions, one connection per broker, pipelining, timeouts.

It sends the messages of ``parley.protocol.messages`` and returns the responses unchanged: the caller checks their error
codes. It never retries. Connections are opened on demand. It raises ``KafkaError`` only if there is no response:

- NETWORK_EXCEPTION: the connection could not be opened, or it ended before the response (``ConnectionClosed`` if the
  broker closed it). The broker may have carried out a request that was sent.
- REQUEST_TIMED_OUT: no response in time. The broker may still carry out the request. The connection is closed, unless
  callers still wait for other responses or the broker throttles this client (KIP-219). Requests that any broker can
  serve avoid this broker until it responds again. The timeout includes the time of throttling.
- UNSUPPORTED_VERSION: the broker and this client have no version of the API in common.
- ``NotAuthenticated``: the broker rejects the login, or the TLS handshake fails.
- BROKER_NOT_AVAILABLE: no bootstrap address responds (``NoBrokerResponds``, or ``NoBrokerListens`` if none accepts a
  connection), or the cluster has no broker with this id.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import Address, ConnectionClosed, Link, NotAuthenticated, tls_refused
from parley.protocol.messages import APIS
from parley.protocol.messages.groups import FindCoordinatorRequest
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from parley.protocol.schema import Request
from parley.protocol.security.client_security import PLAINTEXT, ClientSecurity

__all__ = [
    "Address",
    "Client",
    "ConnectionClosed",
    "NoBrokerListens",
    "NoBrokerResponds",
    "NotAuthenticated",
    "parse_bootstrap",
]

_FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 10.0
_DEFAULT_PORT: Final = 9092
_TLS_SHUTDOWN_S: Final = 1.0
"""How long a closing connection waits for the broker's close_notify alert."""


class NoBrokerResponds(KafkaError):
    """No broker responds at any known address."""

    def __init__(self, code: ErrorCode, message: str, failures: Sequence[KafkaError] = ()) -> None:
        super().__init__(code, message)
        self.failures = tuple(failures)
        """The errors of the addresses, in the order in which they were tried."""


class NoBrokerListens(NoBrokerResponds):
    """No address accepts connections, or no host is known: the addresses are wrong, or no broker is running."""


def parse_bootstrap(text: str) -> list[Address]:
    """Parse "host:port,host,[::1]:port"; the default port is 9092. Raises ValueError if an address is malformed or
    there is none.

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
        raise ValueError("no bootstrap address given")
    return addresses


class Client:
    """Sends requests to the brokers of a cluster. The module docstring lists the errors that it raises.

    ``async with Client("localhost:9092") as client: response = await client.send(request)``. A ``node`` is a broker id;
    the client finds the broker's address in the cluster's metadata. Timeouts are in seconds.
    """

    def __init__(
        self,
        bootstrap: str | Iterable[tuple[str, int]],
        *,
        client_id: str | None = "parley",
        security: ClientSecurity = PLAINTEXT,
        timeout: float = _TIMEOUT_S,
        connect_timeout: float = _CONNECT_TIMEOUT_S,
        max_frame_bytes: int = _FRAME_BYTES_MAX,
    ) -> None:
        if isinstance(bootstrap, str):
            self._bootstrap = parse_bootstrap(bootstrap)
        else:
            self._bootstrap = [Address(*address) for address in bootstrap]
        self._client_id = client_id
        self.security = security
        """The security settings of the connections that will be opened. May be assigned."""
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._max_frame_bytes = max_frame_bytes
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[tuple[str, int], int] = {}
        self._links: dict[int | None, Link] = {}  # None: a connection to a bootstrap address, whose node is unknown
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
        """Send a request to a broker (None: any) and return its response, or None for a produce request with acks=0.

        ``timeout`` includes the time to connect. ``version`` defaults to the highest one that both sides support.
        Raises ValueError if the version cannot represent a value of the request, and the KafkaErrors of the module
        docstring.
        """
        limit = self._timeout if timeout is None else timeout
        link: Link | None = None
        try:
            async with asyncio.timeout(limit):
                link = await self._link(node)
                if version is None:
                    version = link.version_for(request.API_KEY, request.VERSIONS)
                return await link.ask(request, version)
        except TimeoutError:
            name = APIS[request.API_KEY].name
            if link is not None and link.throttle_left_s > 0:
                name += f" (the broker throttles this client for {link.throttle_left_s:.1f} s more)"
            elif link is not None:
                link.give_up()
            what = f"connection for {name}" if link is None else f"response to {name} v{version} from {link.address}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"no {what} within {limit:g} s") from None

    async def version_for(self, request: type[Request], *, node: int | None = None) -> int:
        """Return the version in which ``send`` would send a request of this type to ``node`` (None: to any broker).

        Connects, if necessary. Raises KafkaError: UNSUPPORTED_VERSION if there is no common version, or an error of the
        connection.
        """
        return (await self._link(node)).version_for(request.API_KEY, request.VERSIONS)

    async def hold(self) -> None:
        """Connect to any broker, unless connected, and wait until the connection ends.

        Raises KafkaError if no connection can be opened.
        """
        await (await self._link(None)).until_closed()

    @property
    def lost_at(self) -> float | None:
        """The time, by the loop's clock, at which the last connection to any broker ended; None if a connection is open
        or there has been none."""
        if any(link.is_open for link in self._links.values()):
            return None
        return max((link.ended_at for link in self._links.values() if link.ended_at is not None), default=None)

    # --- The cluster ---

    async def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> MetadataResponse:
        """Return the cluster's brokers and the topics in ``topics`` (None: all). Errors of topics are in the response.
        With ``create``, the broker creates missing topics if its configuration allows it. A broker that does not
        support version 4 does so even without ``create``.
        """
        version = await self.version_for(MetadataRequest)
        requested = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        if version == 0 and requested is None:
            requested = []  # an empty list means all in version 0
        request = MetadataRequest(topics=requested, allow_auto_topic_creation=create or version < 4)
        response: MetadataResponse = await self.send(request, version=version)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            for partition in topic.partitions:
                self._leaders[topic.name or "", partition.partition_index] = partition.leader_id
        return response

    async def controller(self) -> int:
        """Return the id of the broker that accepts requests for the controller.

        Raises KafkaError(NOT_CONTROLLER) if the cluster currently has no controller.
        """
        node = (await self.metadata([])).controller_id
        if node < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster currently has no controller")
        return node

    async def leader(self, topic: str, partition: int, *, fresh: bool = False) -> int:
        """Return the broker id of the partition's leader. With ``fresh``, request it even if the cache contains it.

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
        """Return the broker id of the coordinator of a group (``key_type`` 0), a transactional id (1), or a share
        group's partition (2).

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

    async def _link(self, node: int | None) -> Link:
        """Return the connection to the node (None: to any broker), opening it if necessary."""
        link = self._open_link(node)
        if link is not None:
            return link
        async with self._connecting.setdefault(node, asyncio.Lock()):
            link = self._open_link(node)
            if link is None:
                link = await (self._connect_any() if node is None else self._connect_node(node))
                if node in self._links:
                    self._links[node].abort()  # the connection has ended or does not respond
                self._links[node] = link
        return link

    def _open_link(self, node: int | None) -> Link | None:
        link = self._links.get(node)
        if node is not None:
            return link if link is not None and link.is_open else None
        others = [other for other in (link, *self._links.values()) if other is not None and other.is_open]
        speaking = [other for other in others if not other.is_silent]
        if not speaking and self._addresses().keys() - self._silent():
            return None
        return next(iter(speaking or others), None)

    def _addresses(self) -> dict[Address, None]:
        """Return the possible addresses of brokers, bootstrap addresses first."""
        return dict.fromkeys([*self._bootstrap, *self._brokers.values()])

    def _silent(self) -> set[Address]:
        return {link.address for link in self._links.values() if link.is_silent}

    async def _connect_any(self) -> Link:
        """Return a connection to the first address that responds. Addresses with an overdue response are tried last.

        Raises NoBrokerResponds, or NotAuthenticated at the first address that rejects the login.
        """
        failures = []
        for address in sorted(self._addresses(), key=self._silent().__contains__):
            try:
                return await self._connect(address)
            except NotAuthenticated:
                raise
            except KafkaError as error:
                failures.append(error)
        all_refuse = all(isinstance(error.__cause__, OSError) for error in failures)
        text = "no broker responds: " + "; ".join(error.message for error in failures)
        raise (NoBrokerListens if all_refuse else NoBrokerResponds)(ErrorCode.BROKER_NOT_AVAILABLE, text, failures)

    async def _connect_node(self, node: int) -> Link:
        if node not in self._brokers:
            await self.metadata([])
        if node not in self._brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"the cluster has no broker {node}")
        try:
            return await self._connect(self._brokers[node])
        except KafkaError:
            self._brokers.pop(node, None)  # the node may have another address now
            raise

    async def _connect(self, address: Address) -> Link:
        loop = asyncio.get_running_loop()
        limit = self._connect_timeout
        security = self.security
        try:
            async with asyncio.timeout(limit):
                _, link = await loop.create_connection(
                    lambda: Link(address, self._client_id, self._max_frame_bytes),
                    *address,
                    ssl=security.tls,
                    ssl_shutdown_timeout=None if security.tls is None else _TLS_SHUTDOWN_S,
                )
                try:
                    await link.start(security)
                except BaseException:
                    link.abort()
                    raise
        except TimeoutError:
            text = f"{address} did not respond within {limit:g} s"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        except ssl.SSLError as error:
            raise tls_refused(address, error, security.trusted) from error
        except OSError as error:
            if security.tls is not None and isinstance(error, ConnectionResetError | ConnectionAbortedError):
                text = f"{address} closed the connection in the TLS handshake; the listener may not use TLS"
                raise ConnectionClosed(ErrorCode.NETWORK_EXCEPTION, text) from None
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {address}: {error}") from error
        return link
