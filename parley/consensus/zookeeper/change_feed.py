"""The feed of changes: one task per client that follows the store's change log for all its watches.

``rearmed_watches.py`` wakes it. The log also contains what happened while there was no connection. If the log was
trimmed beyond the feed's position, ``base`` moves past the cursor of every watch, and each watch restarts with a
Snapshot.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from kazoo.exceptions import KazooException

from parley.consensus.errors import CoordinationError, Retriable
from parley.consensus.zookeeper.connection import Connection, ResponseLost
from parley.consensus.zookeeper.consistent_reads import Change, Reader, State
from parley.consensus.zookeeper.key_layout import KeyLayout
from parley.consensus.zookeeper.rearmed_watches import RearmedWatches

_KEPT_KEYS_MAX = 10_000
_RETRY_S = 0.1


class ChangeFeed:
    """The latest changes, at positions (cursors) from ``base`` to ``end``.

    ``sessions`` contains the sessions that were alive at the last read. ``reads`` counts the reads. ``following`` is
    set while no change has been missed. ``error`` is the reason if the feed has ended permanently.
    """

    def __init__(
        self, connection: Connection, reader: Reader, layout: KeyLayout, on_change: Callable[[], None]
    ) -> None:
        self.base = 0
        self.sessions: frozenset[str] = frozenset()
        self.reads = 0
        self.following = asyncio.Event()
        self.error: CoordinationError | None = None
        self._connection = connection
        self._reader = reader
        self._on_change = on_change
        self._watches = RearmedWatches(layout)
        self._kept: deque[Change] = deque()
        self._kept_keys = 0
        self._position = 0  # the number of the log's next entry

    @property
    def end(self) -> int:
        """The cursor of a watch that knows all changes kept here."""
        return self.base + len(self._kept)

    def since(self, cursor: int) -> Iterator[Change]:
        """Return the changes from this cursor, which must be at least ``base``, to the end."""
        return itertools.islice(self._kept, cursor - self.base, None)

    async def run(self) -> None:
        """Follow the log until this task is cancelled, or until an error ends the feed."""
        while self.error is None:
            try:
                await self._find_end_of_log()
                while True:
                    self._watches.fired.clear()
                    if not await self._advance():
                        break
            except (Retriable, ResponseLost, KazooException):
                await asyncio.sleep(_RETRY_S)
            except CoordinationError as error:
                self.error = error
                self._on_change()

    async def _find_end_of_log(self) -> None:
        """Start at the end of the log, unless the feed has a position in it."""
        if self.following.is_set():
            return
        state = await self._reader.state(fresh=True)
        self._position, self.sessions = state.log_end, state.sessions
        self.following.set()
        self._on_change()

    async def _advance(self) -> bool:
        """Read once; if nothing is new, wait for a watch to fire. Returns False if changes have been missed."""
        state = await self._read()
        self.reads += 1
        self.sessions = state.sessions
        if not state.changes and state.log_end != self._position:
            self._skip_missed_changes()
            return False
        for change in state.changes:
            self._keep(change)
        self._position += len(state.changes)
        self._on_change()
        if not state.changes:
            await self._watches.fired.wait()
        return True

    async def _read(self) -> State:
        """Rearm the watches and read the data that they guard. All requests are sent together, in this order."""
        requests = self._watches.requests_to_rearm(self._position)
        calls = [asyncio.ensure_future(self._connection.call(request, _RETRY_S)) for request in requests]
        read = asyncio.ensure_future(self._reader.changes(self._position))
        try:
            await asyncio.wait([*calls, read])
            for call in calls:
                call.result()
            return read.result()
        except BaseException:
            self._watches.forget()
            for task in (*calls, read):
                task.cancel()
                with suppress(BaseException):
                    await task
            raise

    def _keep(self, change: Change) -> None:
        self._kept.append(change)
        self._kept_keys += len(change.keys)
        while self._kept_keys > _KEPT_KEYS_MAX:
            self._kept_keys -= len(self._kept.popleft().keys)
            self.base += 1

    def _skip_missed_changes(self) -> None:
        self.base = self.end + 1
        self._kept.clear()
        self._kept_keys = 0
        self.following.clear()
