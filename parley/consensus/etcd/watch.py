"""A watch: a Snapshot at a revision, then etcd's watch stream from the next revision.

Nothing more is read until the consumer has taken the events of the last response.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parley.consensus.backend import Changed, Entry, Event, Removed, Snapshot, Watch
from parley.consensus.errors import Closed, CoordinationError, Retriable, Unauthorized, Unavailable
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.grpc_errors import Compacted
from parley.consensus.etcd.grpc_methods import WATCH
from parley.consensus.etcd.key_layout import KeyLayout
from parley.consensus.etcd.server_connection import REQUEST_S, RequestFailed, ServerConnection

_RETRY_S = 0.05


class Source(Protocol):
    """The interface that a watch requires of its backend."""

    @property
    def layout(self) -> KeyLayout:
        """The layout of the store's keys."""

    async def snapshot(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """Return the entries below a prefix, and their revision.

        Raises Compacted if etcd compacted that revision before everything was read.
        """

    async def server(self) -> ServerConnection:
        """Return the connection in use. Raises Unavailable if none is established in time."""

    async def verify(self, server: ServerConnection | None = None) -> None:
        """Raise WrongStore if the store no longer exists. Uses the given connection, or the backend's current one."""

    def note_revision(self, revision: int) -> None:
        """Record a revision that the store has reached."""

    def forget(self, watch: EtcdWatch) -> None:
        """Forget a closed watch."""


class EtcdWatch(Watch):
    """The watch of one prefix in etcd. It does nothing until it is iterated."""

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._layout = source.layout
        self._prefix = prefix
        self._events: deque[Event] = deque()  # the events of one response; the next response is read when all are taken
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._position = 0  # the revision to continue from; 0: start with a Snapshot
        self._end: BaseException | None = None
        self._reader: asyncio.Task[None] | None = None

    async def _next(self) -> Event:
        if self._reader is None and self._end is None:
            self._reader = asyncio.get_running_loop().create_task(self._read(), name=f"etcd watch {self._prefix}")
            self._reader.add_done_callback(self._on_end)
        while not self._events:
            if self._end is not None:
                raise self._end
            self._arrived.clear()
            await self._arrived.wait()
        event = self._events.popleft()
        if not self._events:
            self._taken.set()
        return event

    async def close(self) -> None:
        self.end(Closed("the watch is closed"))
        self._source.forget(self)
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def end(self, error: CoordinationError) -> None:
        """End the watch with this error, unless it has already ended. Undelivered events are dropped."""
        if self._end is None:
            self._end = error
            self._events.clear()
            self._arrived.set()
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        while True:
            try:
                if not self._position:
                    entries, revision = await self._source.snapshot(self._prefix)
                    await self._give([Snapshot(tuple(entries))])
                    self._position = revision + 1
                await self._follow()
            except Compacted:
                self._position = 0
            except Retriable:
                await asyncio.sleep(_RETRY_S)
            except RequestFailed as error:
                if isinstance(error.failure.error, CoordinationError):
                    raise error.failure.error from error
                await asyncio.sleep(_RETRY_S)

    def _on_end(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self._end = self._end or error
            self._arrived.set()

    async def _follow(self) -> None:
        """Pass on the events of a watch stream until it breaks."""
        server = await self._source.server()
        start, end = self._layout.range(self._prefix)
        create = pb.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._position, progress_notify=True, fragment=True
        )
        async with server.stream(WATCH, pb.WatchRequest(create_request=create)) as read:
            await self._confirm_created(server, read)
            while True:
                response: pb.WatchResponse = await read()
                _raise_if_cancelled(response, server)
                await self._pass_on(response)

    async def _confirm_created(self, server: ServerConnection, read: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                _raise_if_cancelled(await read(), server)
        except TimeoutError:
            server.retire()
            raise Unavailable("etcd does not respond to a watch request") from None
        # A wiped store would silently wait until it reaches the start revision. Once its identity is verified here, it
        # cannot be wiped without breaking the stream.
        await self._source.verify(server)

    async def _pass_on(self, response: pb.WatchResponse) -> None:
        events = [self._event(event) for event in response.events]
        if any(isinstance(event, Removed) for event in events):
            await self._source.verify()  # the keys may have been deleted together with the whole store
        # A fragment is only part of a revision. If the stream breaks after it, a Snapshot brings the rest.
        revision = response.events[-1].kv.mod_revision if response.events else response.header.revision
        self._position = 0 if response.fragment else revision + 1
        self._source.note_revision(revision)
        await self._give(events)

    async def _give(self, events: Sequence[Event]) -> None:
        """Hand events to the consumer, and wait until they are taken."""
        if not events:
            return
        self._taken.clear()
        self._events.extend(events)
        self._arrived.set()
        await self._taken.wait()

    def _event(self, event: pb.Event) -> Event:
        if event.type == pb.Event.DELETE:
            return Removed(self._layout.name(event.kv.key))
        return Changed(self._layout.entry(event.kv))


def _raise_if_cancelled(response: pb.WatchResponse, server: ServerConnection) -> None:
    if not response.canceled:
        return
    if response.compact_revision:
        raise Compacted
    if "permission denied" in response.cancel_reason:
        if server.token and server.is_old:
            server.retire()  # the token may have expired, which etcd 3.4 reports in the same way
        else:
            raise Unauthorized(f"etcd: {response.cancel_reason}")
    raise Unavailable(f"etcd: {response.cancel_reason or 'the watch was cancelled'}")
