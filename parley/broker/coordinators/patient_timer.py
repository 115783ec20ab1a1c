"""Timers that do not penalize clients for a busy event loop.

When the event loop is busy, requests wait in the sockets, and the timers of the clients that sent them run out. A timer
that fires late is therefore postponed by the same delay: the requests that have already arrived are handled first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LATE_S: Final = 0.1
"""The delay beyond which a timer counts as late, in seconds. Smaller delays are normal."""
GRACE_MAX_S: Final = 10.0
"""The longest single postponement of a timer, in seconds, however late the loop was."""
EARLY_S: Final = 0.001
"""How early the loop may call a timer, in seconds: uvloop rounds delays to milliseconds."""


class PatientTimer:
    """A timer that calls ``call`` on the running loop after ``delay_s`` seconds, unless it is cancelled.

    The timer is postponed each time the loop is late, or at most once if ``once`` is set.
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
        """The loop time at which the loop's own timer is due. uvloop's handles do not return it if the delay is 0."""
        self._timer = loop.call_later(delay_s, self._reached)

    def cancel(self) -> None:
        """Cancel the timer. Does nothing if it has fired."""
        self._timer.cancel()

    def prolong(self, delay_s: float) -> bool:
        """Restart the timer, so that it fires ``delay_s`` seconds from now.

        Returns False, and changes nothing, if the timer has already fired, or if the loop's own timer is due later than
        that. The caller must then set a new timer. Prolonging is cheaper than a new timer: the loop's own timer stays,
        and is restarted when it is due.
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
