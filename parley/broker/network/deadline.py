"""A client's deadline, which counts only the time in which the event loop is running.

The time is counted in parts, each with its own timer. If the event loop is blocked, or the machine sleeps, that counts
as one part at most: the broker reads what the client has sent before the next part is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PARTS: Final = 10


class Deadline:
    """Calls ``passed`` after ``seconds`` in which the event loop was running, unless it is cancelled first."""

    __slots__ = ("_left", "_loop", "_part_s", "_passed", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, passed: Callable[[], None]) -> None:
        self._loop = loop
        self._part_s = seconds / PARTS
        self._passed = passed
        self._left = PARTS
        self._timer = loop.call_later(self._part_s, self._part_over)

    def _part_over(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part_s, self._part_over)
        else:
            self._passed()

    def cancel(self) -> None:
        """Stop the deadline, so that ``passed`` is not called. Does nothing if it has been called already."""
        self._timer.cancel()
