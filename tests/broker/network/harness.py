"""A listener on a free port with handlers of the test's own, and a client that writes and reads raw bytes."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.network.configured_limits import Limits
from parley.broker.network.connection_quotas import ConnectionQuotas
from parley.broker.network.dispatch import Dispatcher, Handler
from parley.broker.network.listener import Listener, bind
from parley.broker.network.load import Load
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.codec import decode, request_frame
from parley.protocol.messages import APIS
from parley.protocol.schema import Request


@asynccontextmanager
async def serving(
    routes: Mapping[int, Handler], *, monotonic: Callable[[], float] = time.monotonic, **limits: Any
) -> AsyncIterator[Listener]:
    """Start a listener that serves ``routes`` and ApiVersions, optionally with the test's own clock."""
    api_versions = ApiVersionsApi(lambda: dispatcher.routes)
    dispatcher = Dispatcher({**api_versions.routes(), **routes}, monotonic=time.monotonic)
    bounds = Limits(**limits)
    tasks = TaskSet()
    listener = Listener(
        "PLAINTEXT",
        dispatcher,
        limits=bounds,
        load=Load(bounds.queued_requests, bounds.queued_bytes),
        quotas=ConnectionQuotas(bounds),
        tasks=tasks,
        monotonic=monotonic,
    )
    await listener.start(bind("127.0.0.1", 0), backlog=2000)
    try:
        yield listener
    finally:
        await listener.close(5)
        await tasks.close()


class Clock:
    """A clock that stands still until the test starts it: no connection is idle before, however slow the test."""

    def __init__(self) -> None:
        self._started_s: float | None = None

    def start(self) -> None:
        self._started_s = time.monotonic()

    def __call__(self) -> float:
        return 100.0 if self._started_s is None else 100.0 + time.monotonic() - self._started_s


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop run until ``condition`` holds, or the test times out."""
    while not condition():  # noqa: ASYNC110  the event happens in the kernel
        await asyncio.sleep(0.001)


class RawClient:
    """Speaks the protocol without Parley's connection code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.client_id = "test"

    @classmethod
    async def connect(cls, listener: Listener) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", listener.port))

    async def send(self, request: Request, version: int, correlation_id: int = 0) -> None:
        self.writer.write(b"".join(request_frame(request, version, correlation_id, self.client_id)))
        await self.writer.drain()

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def answer(self, request: type[Request], version: int) -> tuple[int, Any]:
        """Return the correlation id and the body of the next response."""
        frame = await self.frame()
        response = APIS[request.API_KEY].response
        offset = 4 + (1 if response.header_version(version) else 0)
        return int.from_bytes(frame[:4], "big"), decode(response, version, frame, offset)

    async def ask(self, request: Request, version: int) -> Any:
        await self.send(request, version)
        return (await self.answer(type(request), version))[1]

    async def is_closed(self) -> bool:
        """Return True if the broker closes the connection, False if it sends something first."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
