"""Watches: one feed for each watched prefix, shared by any number of watches.

A feed has two tasks. One sends blocking queries for the keys below the prefix, while any watch waits for a change. The
other reads the state, in one transaction with the identity, when the query returns or a watch starts. It makes one read
at a time, each from the leader, so that no state is older than the one before. Both are idle while no watch waits. The
feed keeps only the last state, and each watch compares it with the revisions that it has delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from parley.consensus.backend import Changed, Entry, Event, Removed, Revision, Snapshot, Watch
from parley.consensus.consul.http_client import Response
from parley.consensus.errors import Closed, CoordinationError, Retriable

FEEDS_MAX = 16
"""The maximum number of prefixes for which a client has separate queries. Other prefixes share a query on all keys."""
WAIT_S = 60.0
RETRY_S = 0.1
RETRY_S_MAX = 1.0


class Source(Protocol):
    """The interface that a feed requires of its backend."""

    async def wait_for_change(self, prefix: str, index: int) -> Response:
        """Wait until something below a prefix may have changed since this index."""

    async def read_state(self, prefix: str, known: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """Read the entries below a prefix, sorted. Unchanged entries are the objects in ``known``."""


class Feed:
    """The state below a prefix.

    ``watches`` is the number of watches that use the feed. ``entries`` is the last state read, and ``version``
    increases with every read. ``gaps`` counts how often changes may have been missed. ``ended`` is the error that ended
    the feed.
    """

    def __init__(self, source: Source, prefix: str) -> None:
        self.entries: Mapping[str, Entry] = {}
        self.version = 0
        self.gaps = 0
        self.ended: CoordinationError | None = None
        self.watches = 0
        self._source = source
        self.prefix = prefix
        self._requested = 0  # the number of the last read requested
        self._completed = 0  # reads requested up to this number are completed
        self._waiting = 0  # watches that wait for a change
        self._index = 0
        self._changed = asyncio.Event()
        self._read_wanted = asyncio.Event()
        self._query_wanted = asyncio.Event()
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(self._read(), name=f"read below {prefix}"),
            create(self._query(), name=f"query below {prefix}"),
        ]

    def request_read(self) -> int:
        """Request another read, and return its number.

        Once ``is_completed`` returns True for this number, ``entries`` are no older than this call.
        """
        self._requested += 1
        self._read_wanted.set()
        return self._requested

    def is_completed(self, request: int) -> bool:
        """Return True if a read that started after this request has been completed (see ``request_read``)."""
        return self._completed >= request

    async def wait_for_change(self) -> None:
        """Wait until something may have changed."""
        changed = self._changed
        self._waiting += 1
        self._query_wanted.set()
        try:
            await changed.wait()
        finally:
            self._waiting -= 1

    def end(self, error: CoordinationError) -> None:
        """End the feed and all its watches with this error."""
        if self.ended is None:
            self.ended = error
        for task in self._tasks:
            task.cancel()
        self.entries = {}
        self.wake()

    def wake(self) -> None:
        """Wake all waiting watches."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read(self) -> None:
        pause_s = RETRY_S
        while True:
            await self._read_wanted.wait()
            self._read_wanted.clear()
            requested = self._requested
            try:
                self.entries = await self._source.read_state(self.prefix, self.entries)
            except Retriable:
                self.gaps += 1
                self._read_wanted.set()
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                continue
            except CoordinationError as error:
                self.end(error)
                return
            pause_s = RETRY_S
            self.version += 1
            self._completed = requested
            self.wake()

    async def _query(self) -> None:
        since = 0  # the index after which to wait for changes; 0: do not wait
        pause_s = RETRY_S
        while True:
            if not self._waiting:
                self._query_wanted.clear()
                await self._query_wanted.wait()
            try:
                response = await self._source.wait_for_change(self.prefix, since)
            except Retriable:
                since = 0
                self.gaps += 1
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                continue
            except CoordinationError as error:
                self.end(error)
                return
            pause_s = RETRY_S
            if since and response.index == since:
                # The wait timed out; or the servers were rolled back, and will not reach this index for a long
                # time.
                since = 0
                continue
            if response.index < self._index:  # the servers were restored, or Consul has forgotten deletions
                self.gaps += 1
            since = self._index = response.index
            self.request_read()
            if not since:
                await asyncio.sleep(pause_s)


class ConsulWatch(Watch):
    """The watch of one prefix in Consul. It keeps the revisions that it has delivered, and the undelivered events."""

    def __init__(self, feed: Feed, prefix: str, on_close: Callable[[ConsulWatch], None]) -> None:
        self.feed = feed
        self._prefix = prefix
        self._on_close = on_close
        self._first_read: int | None = None
        self._delivered: dict[str, Revision] | None = None
        self._version = 0
        self._gaps = 0
        self._events: deque[Event] = deque()
        self._closed = False

    async def _next(self) -> Event:
        while True:
            if self._closed:
                raise Closed("the watch is closed")
            feed = self.feed
            if feed.ended is not None:
                raise type(feed.ended)(*feed.ended.args)
            if self._events:
                return self._events.popleft()
            if self._first_read is None:
                self._first_read = feed.request_read()
            if feed.is_completed(self._first_read) and feed.version > self._version:
                self._version = feed.version
                self._events.extend(self._changes())
                continue
            await feed.wait_for_change()

    def _changes(self) -> list[Event]:
        entries = {key: entry for key, entry in self.feed.entries.items() if key.startswith(self._prefix)}
        delivered = self._delivered
        self._delivered = {key: entry.revision for key, entry in entries.items()}
        if delivered is None or self._gaps != self.feed.gaps:
            self._gaps = self.feed.gaps
            return [Snapshot(tuple(entries.values()))]
        events: list[Event] = [Removed(key) for key in delivered if key not in entries]
        events += [Changed(entry) for key, entry in entries.items() if delivered.get(key) != entry.revision]
        return events

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._events.clear()
            self._delivered = None
            self._on_close(self)
            self.feed.wake()
