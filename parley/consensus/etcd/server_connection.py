"""A connection to one etcd server, and the requests and streams over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from parley.consensus.errors import Unavailable
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.grpc_errors import Failure, Fate, classify
from parley.consensus.etcd.grpc_methods import RANGE, Method, RequestT, ResponseT

REQUEST_S = 5.0
"""How long a request may take, including the wait for a connection. In rare cases it takes slightly longer."""
_CONNECT_S = 2.0


class RequestFailed(Exception):
    """A request failed. ``failure`` contains what is known about its outcome."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class ServerConnection:
    """One connection to one server. It is used until it breaks or is retired."""

    def __init__(self, channel: grpc.aio.Channel, endpoint: str) -> None:
        self.endpoint = endpoint
        self.token = ""
        self.useful = False  # True once the server has responded
        self._channel = channel
        self._made_at = asyncio.get_running_loop().time()
        self._retired = asyncio.Event()
        self._calls: dict[str, Callable[..., Any]] = {}
        self._streams: set[Any] = set()

    async def connect(self) -> None:
        """Wait until the connection is established. Raises Unavailable, with the reason, if that fails."""
        self._channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(_CONNECT_S):
                while (state := self._channel.get_state()) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        await self._raise_reason()
                    await self._channel.wait_for_state_change(state)
        except TimeoutError:
            raise Unavailable(f"{self.endpoint} did not respond within {_CONNECT_S:g} s") from None

    async def _raise_reason(self) -> None:
        try:  # gRPC reports the reason to requests only
            await self.unary(RANGE, pb.RangeRequest(key=b"\0", limit=1, keys_only=True), _CONNECT_S)
        except RequestFailed as error:
            if error.failure.fate is Fate.NOT_APPLIED:
                raise Unavailable(f"{self.endpoint}: {error}") from error

    async def until_unusable(self) -> None:
        """Wait until the connection breaks or is retired."""
        retired = asyncio.ensure_future(self._retired.wait())
        changed = asyncio.ensure_future(self._channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        try:
            await asyncio.wait([retired, changed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (retired, changed):
                waiting.cancel()
            self.retire()

    @property
    def is_retired(self) -> bool:
        """True if no new request may use this connection."""
        return self._retired.is_set()

    @property
    def is_old(self) -> bool:
        """True if the connection has existed long enough for its token to have expired."""
        return asyncio.get_running_loop().time() - self._made_at > 1

    def retire(self) -> None:
        """Start no new request on this connection, and end its streams."""
        self._retired.set()
        for stream in tuple(self._streams):
            stream.cancel()

    async def close(self, grace_s: float | None = None) -> None:
        """Close the connection. Requests in progress have ``grace_s`` seconds to finish."""
        self.retire()
        await self._channel.close(grace_s)

    async def unary(self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float) -> ResponseT:
        """Send a request and return its response. Raises RequestFailed if it fails."""
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls[method.path] = self._channel.unary_unary(
                method.path, method.request.SerializeToString, method.response.FromString
            )
        async with _grpc_errors_as_request_failed(self):
            response: ResponseT = await call(request, timeout=timeout_s, metadata=self._metadata())
            self.useful = True
            return response
        raise AssertionError

    @asynccontextmanager
    async def stream(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> AsyncIterator[Callable[[], Any]]:
        """Open a stream with one request, until the end of the ``with`` block. Yields a function that awaits the next
        response.

        Raises RequestFailed if the stream cannot be opened. The function raises RequestFailed if the stream fails or
        ends.
        """
        make = self._channel.stream_stream(method.path, method.request.SerializeToString, method.response.FromString)
        call: Any = make(timeout=timeout_s, metadata=self._metadata())
        self._streams.add(call)

        async def read() -> ResponseT:
            async with _grpc_errors_as_request_failed(self):
                found: Any = await call.read()
                if found is grpc.aio.EOF:
                    code, details = await call.code(), await call.details()
                    raise RequestFailed(classify(code, details or "the stream has ended"))
                response: ResponseT = found
                self.useful = True
                return response
            raise AssertionError

        try:
            if self.is_retired:
                raise RequestFailed(Failure(Fate.NOT_APPLIED, "the connection is no longer used"))
            async with _grpc_errors_as_request_failed(self):
                await _write(call, request)
            yield read
        finally:
            self._streams.discard(call)
            call.cancel()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        required = (
            ("hasleader", "true"),
        )  # a member without a leader must refuse the request, not hang or return stale data
        return (*required, ("token", self.token)) if self.token else required


async def _write(call: Any, request: object) -> None:
    """Write to a stream. gRPC's own ``write`` would wait forever if the call ended before it started."""
    writing = asyncio.ensure_future(call.write(request))
    call.add_done_callback(lambda _: writing.cancel())
    await writing


@asynccontextmanager
async def _grpc_errors_as_request_failed(server: ServerConnection) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        failure = classify(error.code(), error.details() or "")
        if failure.retires_connection:
            server.retire()
        raise RequestFailed(failure) from error
    except asyncio.InvalidStateError as error:  # from gRPC, for a stream that has ended
        raise RequestFailed(Failure(Fate.UNKNOWN, f"the stream has ended: {error}")) from error
    except grpc.aio.UsageError as error:
        raise RequestFailed(Failure(Fate.NOT_APPLIED, f"the connection is closed: {error}")) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC raises this for a call that ended with its channel. This task was not cancelled.
        raise RequestFailed(Failure(Fate.UNKNOWN, "the connection was closed")) from None
