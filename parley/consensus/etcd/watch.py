"""A watch: a Snapshot at a revision, and etcd's stream from the next one; of both only what the consumer takes next."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parley.consensus.backend import Changed, Entry, Event, Removed, Snapshot, Watch
from parley.consensus.errors import Closed, CoordinationError, Retriable, Unauthorized, Unavailable
from parley.consensus.etcd import etcd_pb2 as pb
from parley.consensus.etcd.connection import REQUEST_S, Broken, Link
from parley.consensus.etcd.grpc_methods import WATCH, Compacted
from parley.consensus.etcd.key_layout import Keyspace

_RETRY_S = 0.05


class Source(Protocol):
    """What a watch needs of its backend."""

    @property
    def keyspace(self) -> Keyspace:
        """Where keys are."""

    async def snapshot(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """Everything below a prefix and the revision it is of.

        :raises Compacted: it changed too fast; again.
        """

    async def link(self) -> Link:
        """The connection there is.

        :raises Unavailable: none came in time.
        """

    async def verify(self, link: Link | None = None) -> None:
        """See that the store is still there, by this connection if one is given.

        :raises WrongStore: it is not.
        """

    def seen(self, revision: int) -> None:
        """A revision that the store has reached."""

    def forget(self, watch: EtcdWatch) -> None:
        """A watch is closed."""


class EtcdWatch(Watch):
    """The watch of one prefix. Nothing happens before it is iterated."""

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._keyspace = source.keyspace
        self._prefix = prefix
        self._events: deque[Event] = deque()  # of one answer; the next is read when all are taken
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._position = 0  # the revision to go on from; 0: begin with a Snapshot
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
        """End with this error, unless it has ended; what was not taken is dropped."""
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
            except Broken as error:
                if isinstance(error.failure.error, CoordinationError):
                    raise error.failure.error from error
                await asyncio.sleep(_RETRY_S)

    def _on_end(self, reader: asyncio.Task[None]) -> None:
        if not reader.cancelled() and (error := reader.exception()) is not None:
            self._end = self._end or error
            self._arrived.set()

    async def _follow(self) -> None:
        """Pass on what the stream says, until it breaks."""
        link = await self._source.link()
        start, end = self._keyspace.range(self._prefix)
        create = pb.WatchCreateRequest(
            key=start, range_end=end, start_revision=self._position, progress_notify=True, fragment=True
        )
        async with link.stream(WATCH, pb.WatchRequest(create_request=create)) as read:
            await self._begin(link, read)
            while True:
                answer: pb.WatchResponse = await read()
                _refused(answer, link)
                await self._pass_on(answer)

    async def _begin(self, link: Link, read: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                _refused(await read(), link)
        except TimeoutError:
            link.distrust()
            raise Unavailable("etcd does not answer a watch") from None
        # A store that was wiped would wait in silence for our revision to come. After this it cannot have been wiped
        # without breaking the stream.
        await self._source.verify(link)

    async def _pass_on(self, answer: pb.WatchResponse) -> None:
        events = [self._event(event) for event in answer.events]
        if any(isinstance(event, Removed) for event in events):
            await self._source.verify()
        # Only part of a revision may have come so far; after a break there a Snapshot is what tells the rest.
        revision = answer.events[-1].kv.mod_revision if answer.events else answer.header.revision
        self._position = 0 if answer.fragment else revision + 1
        self._source.seen(revision)
        await self._give(events)

    async def _give(self, events: Sequence[Event]) -> None:
        """Hand over events, and wait until they are taken."""
        if not events:
            return
        self._taken.clear()
        self._events.extend(events)
        self._arrived.set()
        await self._taken.wait()

    def _event(self, event: pb.Event) -> Event:
        if event.type == pb.Event.DELETE:
            return Removed(self._keyspace.name(event.kv.key))
        return Changed(self._keyspace.entry(event.kv))


def _refused(answer: pb.WatchResponse, link: Link) -> None:
    if not answer.canceled:
        return
    if answer.compact_revision:
        raise Compacted
    if "permission denied" in answer.cancel_reason:
        if link.token and link.old():
            link.distrust()  # it may be the token that ran out, which etcd 3.4 does not tell apart
        else:
            raise Unauthorized(f"etcd: {answer.cancel_reason}")
    raise Unavailable(f"etcd: {answer.cancel_reason or 'the watch was cancelled'}")
