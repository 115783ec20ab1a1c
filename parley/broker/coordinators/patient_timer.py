"""Timers that do not penalize clients for a busy event loop.

While the event loop is busy, the requests of clients wait in the sockets, and the time of these clients runs out. So a
timer that fires late is postponed by as long as the loop was late: the requests that have arrived are handled first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LATE_S: Final = 0.1
"""A timer that fires later than this is late. Smaller delays are normal for the loop."""
GRACE_MAX_S: Final = 10.0
"""A timer is postponed by this at most at a time, however late the loop was."""
EARLY_S: Final = 0.001
"""A loop may call this much too early: uvloop rounds delays to milliseconds."""


class PatientTimer:
    """Calls ``call`` after ``delay_s``, on the running loop, unless it is cancelled.

    While the loop stays late, the timer is postponed again and again; with ``once``, it is postponed once at most.
    """

    __slots__ = ("_call", "_due", "_has_fired", "_may_postpone", "_once", "_timer", "at")

    def __init__(self, delay_s: float, call: Callable[[], None], *, once: bool = False) -> None:
        self._call = call
        self._once = once
        self._may_postpone = True
        self._has_fired = False
        self._start(delay_s)
        self._due = self.at

    def _start(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.at = loop.time() + delay_s
        """The loop time at which the timer fires. Without a delay, uvloop's handles do not know it."""
        self._timer = loop.call_later(delay_s, self._reached)

    def cancel(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def prolong(self, delay_s: float) -> bool:
        """Fire ``delay_s`` from now instead. Returns False, and changes nothing, if the timer would have to fire sooner
        than now set, or has fired.

        That is cheaper than another timer: the loop's own timer stays, and is started again when it fires.
        """
        due = asyncio.get_running_loop().time() + delay_s
        if self._has_fired or due < self.at:
            return False
        self._due = due
        return True

    def _reached(self) -> None:
        now = asyncio.get_running_loop().time()
        late = now - self.at
        if late > LATE_S and self._may_postpone:
            self._may_postpone = not self._once
            self._start(min(late, GRACE_MAX_S))
        elif self._due - now > EARLY_S:
            self._start(self._due - now)
        else:
            self._has_fired = True
            self._call()
