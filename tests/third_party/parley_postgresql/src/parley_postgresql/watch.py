"""A watch: a position, and the changes read since then. It reads nothing while no consumer iterates."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from parley.consensus.backend import Event, Watch
from parley.consensus.errors import Closed, CoordinationError, Retriable

BEGINNING = -1
_RETRY_S = 0.05


class Source(Protocol):
    """What a watch needs of its backend."""

    async def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """Return the new position, and the changes below a prefix since ``position``; a Snapshot if that is too long
        ago."""

    def forget(self, watch: PostgresqlWatch) -> None:
        """Forget a closed watch."""


class PostgresqlWatch(Watch):
    """See ``Watch``."""

    def __init__(self, source: Source, prefix: str) -> None:
        self._source = source
        self._prefix = prefix
        self._position = BEGINNING
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._news.set()
        self._reading: asyncio.Task[None] | None = None
        self._end: CoordinationError | None = None

    async def _next(self) -> Event:
        while True:
            if self._end is not None:
                raise self._end
            if self._events:
                return self._events.popleft()
            if self._reading is None:
                await self._news.wait()
                if self._end is None and self._reading is None:
                    self._reading = asyncio.get_running_loop().create_task(self._read(), name="postgresql watch")
            else:
                await asyncio.wait([self._reading])  # the read continues if this call is cancelled

    def tell(self, keys: Sequence[str] | None) -> None:
        """Note that these keys have changed; None: any key may have changed."""
        if keys is None or any(key.startswith(self._prefix) for key in keys):
            self._news.set()

    def end(self, error: CoordinationError) -> None:
        """End the watch with this error, unless it has ended. Events not yet taken are dropped."""
        self._end = self._end or error
        self._events.clear()
        self._news.set()
        if self._reading is not None:
            self._reading.cancel()

    async def close(self) -> None:
        self.end(Closed("the watch is closed"))
        self._source.forget(self)
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        self._news.clear()
        try:
            self._position, events = await self._source.changes(self._prefix, self._position)
            self._events.extend(events)
        except Retriable:
            self._news.set()
            await asyncio.sleep(_RETRY_S)
        except CoordinationError as error:
            self.end(error)
        finally:
            self._reading = None
