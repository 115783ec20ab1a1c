"""A listener on a free port with the test's own handlers, and a client that writes and reads raw bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from parley.broker.api.api_versions import ApiVersionsApi
from parley.broker.api.sasl import SaslApi
from parley.broker.network.configured_limits import Limits
from parley.broker.network.connection_quotas import ConnectionQuotas, HostRates
from parley.broker.network.dispatch import UNLIMITED, Dispatcher, Throttling
from parley.broker.network.listener import OPEN_TO_ALL, Listener, Security, bind
from parley.broker.network.load import Load
from parley.broker.network.request_context import Handler
from parley.broker.runtime.tasks import TaskSet
from parley.broker.security.session import ClientSession
from parley.protocol.codec import decode, request_frame
from parley.protocol.messages import APIS
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.schema import Request


class Unchanged:
    """Maps principals to themselves; part of a listener's security."""

    def identified(self, session: ClientSession) -> ClientSession:
        return session


WALL_MS = 1_700_000_000_000
"""The wall clock time during these tests."""


@asynccontextmanager
async def serving(
    routes: Mapping[int, Handler],
    *,
    monotonic: Callable[[], float] = time.monotonic,
    security: Security = OPEN_TO_ALL,
    is_broker: Callable[[ClientSession], bool] = lambda session: True,
    throttling: Throttling = UNLIMITED,
    rates_by_host: HostRates | None = None,
    shared: Callable[[], socket.socket] | None = None,
    **limits: Any,
) -> AsyncIterator[Listener]:
    """Start a listener that serves ``routes``, ApiVersions and logins, optionally with the test's own clock. ``shared``
    opens an additional address."""
    tasks = TaskSet()
    api_versions = ApiVersionsApi(lambda: dispatcher.routes)
    sasl = SaslApi(tasks, monotonic, lambda: WALL_MS)
    dispatcher = Dispatcher(
        {**api_versions.routes(), **sasl.routes(), **routes}, monotonic=time.monotonic, throttling=throttling
    )
    bounds = Limits(**limits)
    listener = Listener(
        "PLAINTEXT",
        dispatcher,
        limits=bounds,
        load=Load(bounds.queued_requests, bounds.queued_bytes),
        quotas=ConnectionQuotas(bounds, rates_by_host=rates_by_host),
        tasks=tasks,
        monotonic=monotonic,
        security=security,
        is_broker=is_broker,
    )
    await listener.start(bind("127.0.0.1", 0), backlog=2000, open_shared=shared)
    try:
        yield listener
    finally:
        await listener.close(5)
        await tasks.close()


class Clock:
    """A clock that stands still until the test starts it, so that no connection is idle before, however slow the test
    is."""

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


def produce(acks: int = 1, records: bytes = b"") -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


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
