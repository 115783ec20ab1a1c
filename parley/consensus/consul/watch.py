"""Watches: one feed for each prefix that is watched, and any number of watches that compare what it found with what
they have told.

A feed has two tasks. One holds a blocking query on the names below the prefix, as long as any watch waits for news. The
other reads the state, in one transaction with the identity, when the query was answered or a watch begins: one read at
a time, each from the leader, so that what it finds never goes back. Neither does anything while nobody waits; what is
kept is the last state, and no queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from parley.consensus.backend import Changed, Entry, Event, Removed, Revision, Snapshot, Watch
from parley.consensus.consul.http_client import Answer
from parley.consensus.errors import Closed, CoordinationError, Retriable

FEEDS_MAX = 16
"""Prefixes that a client watches by a query of their own; further ones share a query on everything."""
WAIT_S = 60.0
RETRY_S = 0.1
RETRY_S_MAX = 1.0


class Source(Protocol):
    """What a feed needs of its backend."""

    async def wait_for_news(self, prefix: str, index: int) -> Answer:
        """Wait until there may be something new below a prefix since this index."""

    async def read_state(self, prefix: str, known: Mapping[str, Entry]) -> Mapping[str, Entry]:
        """What is below a prefix now, sorted; entries that have not changed are those of ``known``."""


class Feed:
    """What is below a prefix.

    :ivar watches: how many use it.
    :ivar entries: the last state read.
    :ivar version: rises with every read.
    :ivar gaps: how often changes may have been missed.
    :ivar ended: what ended it.
    """

    def __init__(self, source: Source, prefix: str) -> None:
        self.entries: Mapping[str, Entry] = {}
        self.version = 0
        self.gaps = 0
        self.ended: CoordinationError | None = None
        self.watches = 0
        self._source = source
        self.prefix = prefix
        self._asked = 0  # reads asked for
        self._answered = 0
        self._waiting = 0  # watches that wait for news
        self._index = 0
        self._news = asyncio.Event()
        self._read_wanted = asyncio.Event()
        self._query_wanted = asyncio.Event()
        create = asyncio.get_running_loop().create_task
        self._tasks = [
            create(self._read(), name=f"read below {prefix}"),
            create(self._query(), name=f"query below {prefix}"),
        ]

    def ask(self) -> int:
        """Read anew; once ``answered`` this number, ``entries`` are no older than this call."""
        self._asked += 1
        self._read_wanted.set()
        return self._asked

    def answered(self, number: int) -> bool:
        """Whether a read that began after that ``ask`` has ended."""
        return self._answered >= number

    async def news(self) -> None:
        """Wait until something may have changed."""
        news = self._news
        self._waiting += 1
        self._query_wanted.set()
        try:
            await news.wait()
        finally:
            self._waiting -= 1

    def end(self, error: CoordinationError) -> None:
        """End it, and all who wait for it."""
        if self.ended is None:
            self.ended = error
        for task in self._tasks:
            task.cancel()
        self.entries = {}
        self.tell()

    def tell(self) -> None:
        """Wake all who wait."""
        self._news.set()
        self._news = asyncio.Event()

    async def _read(self) -> None:
        pause_s = RETRY_S
        while True:
            await self._read_wanted.wait()
            self._read_wanted.clear()
            asked = self._asked
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
            self._answered = asked
            self.tell()

    async def _query(self) -> None:
        since = 0  # the index to wait behind; 0: do not wait
        pause_s = RETRY_S
        while True:
            if not self._waiting:
                self._query_wanted.clear()
                await self._query_wanted.wait()
            try:
                answer = await self._source.wait_for_news(self.prefix, since)
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
            if since and answer.index == since:
                # It waited long enough; or the servers were put back to an older state, and nothing would come behind
                # this index for long.
                since = 0
                continue
            if answer.index < self._index:  # put back, or what was deleted has been forgotten
                self.gaps += 1
            since = self._index = answer.index
            self.ask()
            if not since:
                await asyncio.sleep(pause_s)


class ConsulWatch(Watch):
    """See ``Watch``. Keeps the revisions that it told, and what of the last state it still has to tell."""

    def __init__(self, feed: Feed, prefix: str, on_close: Callable[[ConsulWatch], None]) -> None:
        self.feed = feed
        self._prefix = prefix
        self._on_close = on_close
        self._begun: int | None = None
        self._told: dict[str, Revision] | None = None
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
            if self._begun is None:
                self._begun = feed.ask()
            if feed.answered(self._begun) and feed.version > self._version:
                self._version = feed.version
                self._events.extend(self._changes())
                continue
            await feed.news()

    def _changes(self) -> list[Event]:
        entries = {key: entry for key, entry in self.feed.entries.items() if key.startswith(self._prefix)}
        told = self._told
        self._told = {key: entry.revision for key, entry in entries.items()}
        if told is None or self._gaps != self.feed.gaps:
            self._gaps = self.feed.gaps
            return [Snapshot(tuple(entries.values()))]
        events: list[Event] = [Removed(key) for key in told if key not in entries]
        events += [Changed(entry) for key, entry in entries.items() if told.get(key) != entry.revision]
        return events

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._events.clear()
            self._told = None
            self._on_close(self)
            self.feed.tell()
