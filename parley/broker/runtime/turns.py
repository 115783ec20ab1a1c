"""Splits long work on the event loop into steps, so that other work runs between them.

All long work of a broker waits in one queue, and each turn of the event loop runs one step of it. Fifty clients with
large requests therefore occupy the loop for one step at a time, not for fifty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary


class _Queue:
    """The long work of one event loop that waits for its turn, in order of arrival."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    def wait(self) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._begin_next)
        self._waiting.append(turn)
        return turn

    def _begin_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._loop.call_soon(self._begin_next)


_QUEUES: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue]] = WeakKeyDictionary()


async def next_turn() -> None:
    """Return after the event loop has run other work, and long work that was already waiting has had its turn."""
    loop = asyncio.get_running_loop()
    queue = _QUEUES.get(loop)
    if queue is None:
        queue = _QUEUES[loop] = _Queue(loop)
    await queue.wait()
