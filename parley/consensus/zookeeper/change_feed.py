"""Following the log of changes: one task for all the watches of a client, woken by two one-shot watches of ZooKeeper.

One of them waits for the log's next entry, the other for a session that comes or goes. Both are set before the read
that they guard, and again after every reconnect, so nothing falls between; the log itself holds what happened while
there was no connection. Where it was trimmed beyond our position, ``base`` passes the cursor of every watch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Exists, GetChildren

from parley.consensus.errors import CoordinationError, Retriable
from parley.consensus.zookeeper.connection import Connection, LostAnswer
from parley.consensus.zookeeper.consistent_reads import Change, Reader, State
from parley.consensus.zookeeper.key_layout import Layout

_KEPT_KEYS_MAX = 10_000
_RETRY_S = 0.1


class Feed:
    """What has changed lately, for cursors that count from ``base`` to ``end``.

    :ivar sessions: the sessions alive at the last read.
    :ivar reads: how many reads there have been.
    :ivar following: set while nothing is missed.
    :ivar error: why following has ended for good.
    """

    def __init__(self, connection: Connection, reader: Reader, layout: Layout, on_news: Callable[[], None]) -> None:
        self.base = 0
        self.sessions: frozenset[str] = frozenset()
        self.reads = 0
        self.following = asyncio.Event()
        self.error: CoordinationError | None = None
        self._connection = connection
        self._reader = reader
        self._layout = layout
        self._on_news = on_news
        self._kept: deque[Change] = deque()
        self._kept_keys = 0
        self._position = 0
        self._stirred = asyncio.Event()
        self._entry_watched: int | None = None
        self._sessions_watched = False

    @property
    def end(self) -> int:
        """The cursor of who knows all that is kept."""
        return self.base + len(self._kept)

    def since(self, cursor: int) -> Iterator[Change]:
        """The changes from this cursor, not below ``base``, to the end."""
        return itertools.islice(self._kept, cursor - self.base, None)

    async def run(self) -> None:
        """Follow until cancelled, or until it makes no sense any more (``error``)."""
        while self.error is None:
            try:
                await self._begin()
                while True:
                    self._stirred.clear()
                    if not await self._advance():
                        break
            except (Retriable, LostAnswer, KazooException):
                await asyncio.sleep(_RETRY_S)
            except CoordinationError as error:
                self.error = error
                self._on_news()

    async def _begin(self) -> None:
        """Find the end of the log, unless we have a position in it; watches begin anew where we had none."""
        if self.following.is_set():
            return
        state = await self._reader.state(fresh=True)
        self._position, self.sessions = state.log_end, state.sessions
        self.following.set()
        self._on_news()

    async def _advance(self) -> bool:
        """One read, and if there was nothing new the wait for something; False if changes have been missed."""
        state = await self._read()
        self.reads += 1
        self.sessions = state.sessions
        if not state.changes and state.log_end != self._position:
            self._miss()
            return False
        for change in state.changes:
            self._keep(change)
        self._position += len(state.changes)
        self._on_news()
        if not state.changes:
            await self._stirred.wait()
        return True

    async def _read(self) -> State:
        """Set the watches that are not set, and read what they guard; all sent at once, in this order."""
        requests: list[Any] = []
        if self._entry_watched != self._position:
            self._entry_watched = self._position
            requests.append(Exists(self._layout.entry(self._position), self._on_entry))
        if not self._sessions_watched:
            self._sessions_watched = True
            requests.append(GetChildren(self._layout.sessions, self._on_sessions))
        calls = [asyncio.ensure_future(self._connection.call(request, _RETRY_S)) for request in requests]
        read = asyncio.ensure_future(self._reader.changes(self._position))
        try:
            await asyncio.wait([*calls, read])
            for call in calls:
                call.result()
            return read.result()
        except BaseException:
            self._entry_watched, self._sessions_watched = None, False
            for task in (*calls, read):
                task.cancel()
                with suppress(BaseException):
                    await task
            raise

    def _on_entry(self, event: object) -> None:
        self._entry_watched = None
        self._stirred.set()

    def _on_sessions(self, event: object) -> None:
        self._sessions_watched = False
        self._stirred.set()

    def _keep(self, change: Change) -> None:
        self._kept.append(change)
        self._kept_keys += len(change.keys)
        while self._kept_keys > _KEPT_KEYS_MAX:
            self._kept_keys -= len(self._kept.popleft().keys)
            self.base += 1

    def _miss(self) -> None:
        self.base = self.end + 1
        self._kept.clear()
        self._kept_keys = 0
        self.following.clear()
