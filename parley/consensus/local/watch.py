"""A watch of the embedded store. It keeps only a position; the database contains the changes not yet delivered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from parley.consensus.backend import Event, Watch
from parley.consensus.errors import Closed, Retriable

RETRY_S = 0.1


class ChangeSource(Protocol):
    """The interface that a watch requires of its backend."""

    @property
    def is_open(self) -> bool:
        """True from ``open`` until ``close``."""

    async def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """Return the events below a prefix since ``position``, and the position reached."""

    def forget_watch(self, watch: LocalWatch) -> None:
        """Forget a closed watch."""


class LocalWatch(Watch):
    """The watch of one prefix in the embedded store."""

    def __init__(self, source: ChangeSource, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        self._position = -1  # below every floor, so that the first event is a Snapshot
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._closed = False

    def wake(self) -> None:
        """Look for changes again."""
        self._woken.set()

    async def _next(self) -> Event:
        while True:
            if self._closed or not self._source.is_open:
                raise Closed("the watch is closed")
            if self._events:
                return self._events.popleft()
            self._woken.clear()
            try:
                self._position, events = await self._source.changes(self._prefix, self._position)
            except Retriable:
                await asyncio.sleep(RETRY_S)
                continue
            self._events.extend(events)
            if not events:
                await self._woken.wait()

    async def close(self) -> None:
        self._closed = True
        self._source.forget_watch(self)
        self.wake()
