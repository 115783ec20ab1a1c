"""Connections to the other brokers of the cluster, over the inter-broker listener.

A connection is opened when it is first needed, and reopened after it is lost. A component with long-running requests (a
replica fetcher, the metadata follower) names a purpose and gets a separate connection, so that other requests do not
wait behind them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import Endpoint
from parley.broker.security.inter_broker_security import InterBrokerSecurity
from parley.protocol.client import Address, Client, NotAuthenticated
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.link import Link
from parley.protocol.schema import Request, Struct

LAST_WORD_S = 1.0
"""The maximum time, in seconds, that a replaced controller may still take to respond. If it carried out the request,
its response shows that."""
RETRY_S = 0.1
UNREACHABLE = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)

_CLIENT_ID = "broker-"

_log = logging.getLogger(__name__)

Local = Callable[[], Awaitable[Any] | None]
"""Handles a request on this broker if this broker is the controller. Otherwise returns None."""


def is_broker(client_id: str | None) -> bool:
    """Return True if this client id has the form of the ids of brokers. That proves nothing, because any client can
    choose such an id."""
    return client_id is not None and client_id.startswith(_CLIENT_ID)


class _PeerClient(Client):
    """A client for another broker. Each connection uses the security settings that are in effect when it is opened.

    A failed login counts as an unreachable broker, so that the client retries: an operator may be replacing
    certificates or passwords one broker at a time.
    """

    def __init__(
        self, endpoint: Endpoint, source: InterBrokerSecurity, refusals: GrowingInterval, **limits: Any
    ) -> None:
        super().__init__([(endpoint.host, endpoint.port)], **limits)
        self._source = source
        self._refusals = refusals

    async def _connect(self, address: Address) -> Link:
        if not self._source.is_plaintext:
            self.security = await asyncio.to_thread(self._source.current)
        try:
            return await super()._connect(address)
        except NotAuthenticated as error:
            if self._refusals.claim_line():
                _log.error(
                    "authentication between this broker and another broker failed", extra={"reason": error.message}
                )
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, error.message) from error


class Peers:
    """Clients for the other brokers, by broker id and purpose."""

    def __init__(
        self,
        broker_id: int,
        metadata: Metadata,
        listener: str,
        security: InterBrokerSecurity,
        *,
        timeout_s: float,
        connect_timeout_s: float,
    ) -> None:
        """``listener`` names the inter-broker listener. ``timeout_s`` (``request.timeout.ms``) limits requests that
        have no separate timeout. ``connect_timeout_s`` limits the time to connect."""
        self._metadata = metadata
        self._listener = listener
        self._security = security
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._client_id = f"{_CLIENT_ID}{broker_id}"
        self._clients: dict[tuple[int, str], tuple[Endpoint, Client]] = {}
        self._refusals = GrowingInterval(lambda: asyncio.get_running_loop().time())
        self._closing: set[asyncio.Future[None]] = set()

    def endpoint(self, broker_id: int) -> Endpoint:
        """Return the inter-broker address of a broker. Raises BROKER_NOT_AVAILABLE if the metadata contains none."""
        broker = self._metadata.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        if endpoint is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"The address of broker {broker_id} is unknown.")
        return endpoint

    def client(self, broker_id: int, purpose: str = "") -> Client:
        """Return the client for a broker. Do not keep it: a change in the broker's address replaces the client.

        Raises BROKER_NOT_AVAILABLE if the metadata contains no address.
        """
        endpoint = self.endpoint(broker_id)
        known = self._clients.get((broker_id, purpose))
        if known is not None and known[0] == endpoint:
            return known[1]
        if known is not None:
            self._close_soon(known[1])
        client = self.client_at(endpoint, purpose)
        self._clients[broker_id, purpose] = (endpoint, client)
        return client

    def client_at(self, endpoint: Endpoint, purpose: str = "") -> Client:
        """Return a new client for an address. The caller must close it."""
        name = f"{self._client_id}-{purpose}" if purpose else self._client_id
        return _PeerClient(
            endpoint,
            self._security,
            self._refusals,
            client_id=name,
            timeout=self._timeout_s,
            connect_timeout=self._connect_timeout_s,
        )

    async def hold(self, endpoint: Endpoint) -> None:
        """Keep a connection to a broker open. Returns when the connection has ended or cannot be opened; it does not
        raise KafkaError."""
        client = self.client_at(endpoint, "watch")
        try:
            await client.hold()
        except KafkaError:
            pass
        finally:
            await client.close()

    async def ask(
        self,
        broker_id: int,
        request: Request,
        *,
        version: int | None = None,
        purpose: str = "",
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request to a broker and return its response, whose error codes are not checked. Raises the errors of
        ``client`` and ``Client.send``."""
        return await self.client(broker_id, purpose).send(request, version=version, timeout=timeout_s)

    async def ask_controller(
        self, request: Request, *, version: int | None = None, purpose: str = "", timeout_s: float | None = None
    ) -> Any:
        """Send a request to the controller that the metadata names, and return its response, even if it is an error.

        If another controller is elected in the meantime, wait at most ``LAST_WORD_S`` for the response of the old
        controller, whose process may be paused. Raises NOT_CONTROLLER if it does not respond within that time, or if
        the metadata names no controller. Also raises the errors of ``ask``.
        """
        image = self._metadata.image
        if image.controller_id < 0:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller at the moment.")
        is_replaced = partial(_has_controller_after, image.controller_epoch)
        asking = asyncio.ensure_future(
            self.ask(image.controller_id, request, version=version, purpose=purpose, timeout_s=timeout_s)
        )
        replaced = asyncio.ensure_future(self._metadata.until(is_replaced, None))
        try:
            await asyncio.wait({asking, replaced}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({asking}, timeout=LAST_WORD_S)
            if not asking.done():
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "Another controller was elected.")
            return asking.result()
        finally:
            asking.cancel()
            replaced.cancel()

    async def ask_elected_controller(
        self, request: Request, local: Local, *, patience_s: float, version: int | None = None, purpose: str = ""
    ) -> Any:
        """Have the controller handle a request, whether it is this broker or another. Wait for an election if there is
        no controller.

        ``local`` handles the request if this broker is the controller. If the controller is unreachable or responds
        with NOT_CONTROLLER, the request is sent again, for up to ``patience_s`` seconds and, after an election, to the
        new controller. A request that was in progress at the end of a controller's term may have been carried out. The
        next controller's response then shows that, for example with TOPIC_ALREADY_EXISTS.

        Raises NOT_CONTROLLER after ``patience_s``, and the other errors of ``ask`` and ``local``.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            is_replaced = partial(_has_controller_after, self._metadata.image.controller_epoch)
            handling = local()
            try:
                if handling is not None:
                    response = await handling
                else:
                    response = await self.ask_controller(request, version=version, purpose=purpose)
            except KafkaError as error:
                if error.code not in (UNREACHABLE if handling is None else (ErrorCode.NOT_CONTROLLER,)):
                    raise
            else:
                if not says_not_controller(response):
                    return response
            # Retry even without a new controller: the old controller may merely have closed the connection.
            if not await self._metadata.until(is_replaced, RETRY_S) and loop.time() >= deadline:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "The cluster has no controller at the moment.")

    def lost_at(self, broker_id: int) -> float | None:
        """Return the time, in seconds of the event loop's clock, at which the latest connection to a broker was lost.
        Returns None if no connection was lost, or all are restored."""
        lost = (client.lost_at for (known, _), (_, client) in self._clients.items() if known == broker_id)
        return max((at for at in lost if at is not None), default=None)

    def _close_soon(self, client: Client) -> None:
        closing = asyncio.ensure_future(client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every connection. Requests in progress fail with NETWORK_EXCEPTION. Idempotent."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for _, client in clients.values()), *self._closing)


def _has_controller_after(epoch: int, image: MetadataImage) -> bool:
    """Return True if the image names a controller that was elected after ``epoch``."""
    return image.controller_epoch > epoch and image.controller_id >= 0


def says_not_controller(response: Any) -> bool:
    """Return True if any part of a response contains the error NOT_CONTROLLER."""
    if not isinstance(response, Struct):
        return False
    if getattr(response, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER:
        return True
    lists = [getattr(response, name) for name in _lists_with_errors(type(response))]
    return any(says_not_controller(element) for elements in lists for element in elements or ())


@cache
def _lists_with_errors(kind: type[Struct]) -> tuple[str, ...]:
    """Return the names of the fields that are lists of structs with error codes. A search for errors can skip all other
    fields, which make up most of a response."""
    found = []
    for each in kind.fields():
        element = each.type.element
        struct = None if element is None else element.struct
        if struct is not None and (
            any(inner.name == "error_code" for inner in struct.fields()) or _lists_with_errors(struct)
        ):
            found.append(each.name)
    return tuple(found)
