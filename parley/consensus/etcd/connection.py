"""The connection to one server at a time, and the requests over it.

A task keeps it: connect, prove who we are, wait until it breaks or is distrusted, go on with the next server. A request
waits for a connection and is sent again while it is certain that it was not applied; see the package for what is.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from parley.consensus.errors import BadConfig, Closed, CoordinationError, MaybeApplied, Unauthorized, Unavailable
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.address import Address, Secrets
from parley.consensus.etcd.grpc_methods import AUTHENTICATE, RANGE, A, Failure, Fate, Method, Q, judge

REQUEST_S = 5.0
"""How long a request may take, waiting for a connection included; seldom a little more."""
ANSWER_BYTES_MAX = 32 << 20
_CONNECT_S = 2.0
_ANSWER_MIN_S = 1.0  # for a request that had to wait for its connection
_ANSWER_MAX_S = 3.0  # what a leader has lost by dying is never answered; a new one is there in less
_PAUSE_MAX_S = 1.0

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # an http_proxy in the environment is not meant for the coordination store
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel would share the old one's silent connection
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
    ("grpc.enable_retries", 0),  # which requests may be sent twice is decided here
    ("grpc.keepalive_time_ms", 10_000),  # etcd closes connections that ping more often than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
)


class Broken(Exception):
    """A request failed; its ``failure`` says what is known."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Link:
    """One connection, from its making until it breaks."""

    def __init__(self, channel: grpc.aio.Channel, endpoint: str) -> None:
        self.endpoint = endpoint
        self.token = ""
        self.useful = False  # it has answered something
        self._channel = channel
        self._made_at = asyncio.get_running_loop().time()
        self._gone = asyncio.Event()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._streams: set[Any] = set()

    async def connect(self) -> None:
        """Wait for the connection.

        :raises Unavailable: there is none, and why.
        """
        self._channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(_CONNECT_S):
                while (state := self._channel.get_state()) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        await self._raise_reason()
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            raise Unavailable(f"{self.endpoint} does not answer within {_CONNECT_S:g} s") from None

    async def _raise_reason(self) -> None:
        try:  # only a request is told why there is no connection
            await self.unary(RANGE, pb.RangeRequest(key=b"\0", limit=1, keys_only=True), _CONNECT_S)
        except Broken as error:
            if error.failure.fate is Fate.NOT_APPLIED:
                raise Unavailable(f"{self.endpoint}: {error}") from error

    async def gone(self) -> None:
        """Wait until the connection breaks or is distrusted."""
        gone = asyncio.ensure_future(self._gone.wait())
        changed = asyncio.ensure_future(self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        try:
            await asyncio.wait([gone, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (gone, changed):
                waiting.cancel()
            self.distrust()

    @property
    def distrusted(self) -> bool:
        """Whether it is to be used for nothing new."""
        return self._gone.is_set()

    def old(self) -> bool:
        """Whether it has been there for long enough for a token to have run out."""
        return asyncio.get_running_loop().time() - self._made_at > 1

    def distrust(self) -> None:
        """Use this connection for nothing new; its streams end."""
        self._gone.set()
        for stream in tuple(self._streams):
            stream.cancel()

    async def close(self, grace_s: float | None = None) -> None:
        """Close it; requests under way have so long to end."""
        self.distrust()
        await self._channel.close(grace_s)

    async def unary(self, method: Method[Q, A], request: Q, timeout_s: float) -> A:
        """Send a request.

        :raises Broken: it failed.
        """
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls[method.path] = self._channel.unary_unary(
                method.path, method.request.SerializeToString, method.answer.FromString
            )
        async with _told_as_broken(self):
            answer: A = await call(request, timeout=timeout_s, metadata=self._metadata())
            self.useful = True
            return answer
        raise AssertionError

    @asynccontextmanager
    async def stream(
        self, method: Method[Q, A], request: Q, timeout_s: float | None = None
    ) -> AsyncIterator[Callable[[], Any]]:
        """Open a stream with one request; gives a function that awaits the next answer.

        :raises Broken: it failed or ended; the block is where that is raised.
        """
        make = self._channel.stream_stream(method.path, method.request.SerializeToString, method.answer.FromString)
        call: Any = make(timeout=timeout_s, metadata=self._metadata())
        self._streams.add(call)

        async def read() -> A:
            async with _told_as_broken(self):
                answer: Any = await call.read()
                if answer is grpc.aio.EOF:
                    code, details = await call.code(), await call.details()
                    raise Broken(judge(code, details or "the stream has ended"))
                message: A = answer
                self.useful = True
                return message
            raise AssertionError

        try:
            if self.distrusted:
                raise Broken(Failure(Fate.NOT_APPLIED, "the connection is gone"))
            async with _told_as_broken(self):
                await _write(call, request)
            yield read
        finally:
            self._streams.discard(call)
            call.cancel()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        required = (("hasleader", "true"),)  # a member cut off from the others must refuse, not hang or go stale
        return (*required, ("token", self.token)) if self.token else required


async def _write(call: Any, request: object) -> None:
    """Write to a stream. gRPC's own ``write`` waits for ever where the call ends before it has begun."""
    writing = asyncio.ensure_future(call.write(request))
    call.add_done_callback(lambda _: writing.cancel())
    await writing


@asynccontextmanager
async def _told_as_broken(link: Link) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        failure = judge(error.code(), error.details() or "")
        if failure.distrust:
            link.distrust()
        raise Broken(failure) from error
    except asyncio.InvalidStateError as error:  # gRPC's, of a stream that has ended
        raise Broken(Failure(Fate.UNKNOWN, f"the stream has ended: {error}")) from error
    except grpc.aio.UsageError as error:
        raise Broken(Failure(Fate.NOT_APPLIED, f"the connection is closed: {error}")) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC raises this for a call that ended with its channel; nobody meant to cancel us.
        raise Broken(Failure(Fate.UNKNOWN, "the connection was closed")) from None


class Connection:
    """The way to a cluster of servers.

    :param on_up: called when there is a connection (again).
    :param on_down: called when it breaks.
    """

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
        self._endpoints = rng.sample(address.endpoints, len(address.endpoints))  # clients spread over the servers
        self._on_up = on_up
        self._on_down = on_down
        self._link: Link | None = None
        self._news = asyncio.Event()  # set and replaced whenever one of these changes
        self._trouble: CoordinationError = Unavailable("not connected yet")
        self._closed = False
        self._closing: dict[asyncio.Task[None], Link] = {}
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="etcd connection")

    async def close(self) -> None:
        """Close it. Waiting requests raise Closed."""
        self._closed = True
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        for closing, link in tuple(self._closing.items()):
            closing.cancel()
            await link.close()
        self._tell()

    async def call(self, method: Method[Q, A], request: Q, *, writes: bool, timeout_s: float = REQUEST_S) -> A:
        """Send a request, again where that is safe, and answer it.

        :param writes: whether an attempt of unknown fate may have changed something that matters.
        :raises Unavailable: not applied within the time.
        :raises MaybeApplied: of a write: not known whether it was.
        :raises CoordinationError: what else etcd said.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        attempt = 0
        while True:
            link = await self.link(deadline)
            try:
                left_s = max(deadline - loop.time(), _ANSWER_MIN_S)
                return await link.unary(method, request, min(left_s, _ANSWER_MAX_S))
            except Broken as error:
                failure = error.failure
                if failure.error is not None:
                    raise failure.error from error
                if failure.fate is Fate.UNKNOWN and writes:
                    raise MaybeApplied(failure.text) from error
                if loop.time() >= deadline:
                    raise Unavailable(failure.text) from error
            attempt += 1
            await asyncio.sleep(min(self._rng.random() * 0.01 * 2**attempt, 0.25))

    async def link(self, deadline: float) -> Link:
        """The connection there is, or the next one.

        :param deadline: the loop time until which to wait.
        :raises Unavailable: there is none by then.
        """
        while self._link is None or self._link.distrusted:
            if self._closed:
                raise Closed("the backend is closed")
            if isinstance(self._trouble, Unauthorized | BadConfig):
                raise type(self._trouble)(str(self._trouble))
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                raise Unavailable(f"no etcd server can be reached; the last one tried: {self._trouble}") from None
        return self._link

    async def _keep(self) -> None:
        failures = 0
        while True:
            for endpoint in self._endpoints:
                link = Link(self._channel(endpoint), endpoint)
                try:
                    await self._use(link)
                finally:
                    self._close_soon(link)
                failures = 0 if link.useful else failures + 1
            if failures >= len(self._endpoints):
                await asyncio.sleep(min(0.01 * 2**failures, _PAUSE_MAX_S) * (0.5 + self._rng.random() / 2))

    async def _use(self, link: Link) -> None:
        """Connect, and be connected until that ends."""
        try:
            await link.connect()
            await self._log_in(link)
        except CoordinationError as error:
            self._trouble = error
            self._tell()
            return
        link.useful = False
        self._link, self._trouble = link, Unavailable(f"the connection to {link.endpoint} broke")
        self._tell()
        self._on_up()
        try:
            await link.gone()
        finally:
            self._link = None
            self._on_down()

    async def _log_in(self, link: Link) -> None:
        if self._address.user is None:
            return
        request = pb.AuthenticateRequest(name=self._address.user, password=self._secrets.password)
        try:
            link.token = (await link.unary(AUTHENTICATE, request, REQUEST_S)).token
        except Broken as error:
            if "authentication is not enabled" in error.failure.text:
                return  # whoever we say we are, we may do all
            if isinstance(error.failure.error, CoordinationError):
                raise error.failure.error from error
            raise Unavailable(error.failure.text) from error

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        if not self._address.tls:
            return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._secrets.ca, self._secrets.key, self._secrets.cert)
        return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)

    def _close_soon(self, link: Link) -> None:
        """Let requests that are under way end, while the next connection is made."""
        closing = asyncio.get_running_loop().create_task(link.close(REQUEST_S), name="etcd connection closing")
        self._closing[closing] = link
        closing.add_done_callback(self._closing.pop)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
