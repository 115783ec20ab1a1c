"""Splits long work on the event loop into steps, so that other work runs between them.

All long work of a broker waits in one queue, and each turn of the event loop runs one step of it. Fifty clients with
large requests therefore occupy the loop for one step at a time, not for fifty. The clients take turns, so hundreds of
requests of one client hardly delay those of the others. The broker's own work counts as a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from contextvars import ContextVar
from typing import Final
from weakref import WeakKeyDictionary

from parley.broker.runtime.round_robin import RoundRobin

CLIENT: Final[ContextVar[Hashable]] = ContextVar("client", default=None)
"""The client for which the current task works (``ClientSession.user_or_host``); None for the broker itself."""


class _Queue:
    """The long work of one event loop that waits for its turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    def wait(self) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._begin_next)
        self._waiting.add(CLIENT.get(), turn)
        return turn

    def _begin_next(self) -> None:
        while self._waiting:
            turn = self._waiting.pop()
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
