"""The connection to an etcd cluster: to one server at a time, and to the next one if that server fails.

A task connects, authenticates, waits until the connection breaks or is retired, and continues with the next server. A
request waits for a connection, and is sent again if it cannot have been applied (``grpc_errors.py``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from parley.consensus.errors import BadConfig, Closed, CoordinationError, MaybeApplied, Unauthorized, Unavailable
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.address import Address, Secrets
from parley.consensus.etcd.grpc_errors import Fate
from parley.consensus.etcd.grpc_methods import AUTHENTICATE, Method, RequestT, ResponseT
from parley.consensus.etcd.server_connection import REQUEST_S, RequestFailed, ServerConnection

RESPONSE_BYTES_MAX = 32 << 20
_RESPONSE_MIN_S = 1.0  # for a request that had to wait for its connection
_RESPONSE_MAX_S = 3.0  # requests lost by a leader that died get no response; a new leader is elected sooner than this
_PAUSE_MAX_S = 1.0

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # an http_proxy in the environment is not meant for the coordination store
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new channel would share the old channel's silent connection
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    ("grpc.enable_retries", 0),  # ``Connection.call`` decides which requests may be sent twice
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
)


class Connection:
    """Maintains a connection to one of the servers. Calls ``on_up`` when it is established, ``on_down`` when it
    breaks."""

    def __init__(
        self,
        address: Address,
        secrets: Secrets,
        rng: random.Random,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
    ) -> None:
        self._address = address
        self._secrets = secrets
        self._rng = rng
        self._endpoints = rng.sample(
            address.endpoints, len(address.endpoints)
        )  # so that clients spread over the servers
        self._on_up = on_up
        self._on_down = on_down
        self._server: ServerConnection | None = None
        self._changed = asyncio.Event()  # set, and replaced, at each change that ``server`` waits for
        self._trouble: CoordinationError = Unavailable("not connected yet")
        self._closed = False
        self._closing: dict[asyncio.Task[None], ServerConnection] = {}
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="etcd connection")

    async def close(self) -> None:
        """Close the connection. Waiting requests raise Closed."""
        self._closed = True
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        for closing, server in tuple(self._closing.items()):
            closing.cancel()
            await server.close()
        self._announce_change()

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, *, writes: bool, timeout_s: float = REQUEST_S
    ) -> ResponseT:
        """Send a request, repeat it if that is safe, and return the response.

        ``writes`` is True if an attempt with an unknown outcome may have changed something that matters.

        Raises Unavailable if the request was not applied in time. Raises MaybeApplied if a write may have been applied.
        Also raises the coordination errors to which etcd's errors correspond (``grpc_errors.classify``).
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        attempt = 0
        while True:
            server = await self.server(deadline)
            try:
                left_s = max(deadline - loop.time(), _RESPONSE_MIN_S)
                return await server.unary(method, request, min(left_s, _RESPONSE_MAX_S))
            except RequestFailed as error:
                failure = error.failure
                if failure.error is not None:
                    raise failure.error from error
                if failure.fate is Fate.UNKNOWN and writes:
                    raise MaybeApplied(failure.text) from error
                if loop.time() >= deadline:
                    raise Unavailable(failure.text) from error
            attempt += 1
            await asyncio.sleep(min(self._rng.random() * 0.01 * 2**attempt, 0.25))

    async def server(self, deadline: float) -> ServerConnection:
        """Return the connection in use, or wait for the next one.

        Raises Unavailable if there is none by the deadline (loop time), Unauthorized or BadConfig if the last attempt
        to connect failed with that error, and Closed after ``close``.
        """
        while self._server is None or self._server.is_retired:
            if self._closed:
                raise Closed("the backend is closed")
            if isinstance(self._trouble, Unauthorized | BadConfig):
                raise type(self._trouble)(str(self._trouble))
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                raise Unavailable(f"no etcd server can be reached; the last one tried: {self._trouble}") from None
        return self._server

    async def _keep(self) -> None:
        failures = 0
        while True:
            for endpoint in self._endpoints:
                server = ServerConnection(self._channel(endpoint), endpoint)
                try:
                    await self._use(server)
                finally:
                    self._close_soon(server)
                failures = 0 if server.useful else failures + 1
            if failures >= len(self._endpoints):
                await asyncio.sleep(min(0.01 * 2**failures, _PAUSE_MAX_S) * (0.5 + self._rng.random() / 2))

    async def _use(self, server: ServerConnection) -> None:
        """Connect, and make the connection available to requests until it breaks or is retired."""
        try:
            await server.connect()
            await self._log_in(server)
        except CoordinationError as error:
            self._trouble = error
            self._announce_change()
            return
        server.useful = False
        self._server, self._trouble = server, Unavailable(f"the connection to {server.endpoint} broke")
        self._announce_change()
        self._on_up()
        try:
            await server.until_unusable()
        finally:
            self._server = None
            self._on_down()

    async def _log_in(self, server: ServerConnection) -> None:
        if self._address.user is None:
            return
        request = pb.AuthenticateRequest(name=self._address.user, password=self._secrets.password)
        try:
            server.token = (await server.unary(AUTHENTICATE, request, REQUEST_S)).token
        except RequestFailed as error:
            if "authentication is not enabled" in error.failure.text:
                return  # without authentication every client may do everything
            if isinstance(error.failure.error, CoordinationError):
                raise error.failure.error from error
            raise Unavailable(error.failure.text) from error

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if not self._address.tls:
            return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._secrets.ca, self._secrets.key, self._secrets.cert)
        return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)

    def _close_soon(self, server: ServerConnection) -> None:
        """Close the connection after the requests in progress have finished. Meanwhile the next connection is
        established."""
        closing = asyncio.get_running_loop().create_task(server.close(REQUEST_S), name="etcd connection closing")
        self._closing[closing] = server
        closing.add_done_callback(self._closing.pop)

    def _announce_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
