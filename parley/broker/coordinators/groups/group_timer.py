"""Timers that do not hold a member to account for a loop that was busy.

While the event loop is held up, what members send waits in the sockets and their time runs out. So a deadline that is
noticed late is put off by as long as the loop was late: what had arrived by then is read first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

LATE_S: Final = 0.1
"""From this much on a timer is late; less is the loop's everyday."""
GRACE_MAX_S: Final = 10.0
"""The longest that a deadline is put off at once, however long the loop was held up."""


class GroupTimer:
    """Calls ``call`` once ``delay_s`` is over, unless it is cancelled; on the running loop."""

    __slots__ = ("_call", "_timer")

    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self._call = call
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._reached)

    @property
    def at(self) -> float:
        """When it is due, in the loop's time."""
        return self._timer.when()

    def cancel(self) -> None:
        """Do not call any more."""
        self._timer.cancel()

    def _reached(self) -> None:
        loop = asyncio.get_running_loop()
        late = loop.time() - self._timer.when()
        if late > LATE_S:
            self._timer = loop.call_later(min(late, GRACE_MAX_S), self._reached)
        else:
            self._call()


def cancel(timer: GroupTimer | None) -> None:
    """Cancel a deadline, if there is one."""
    if timer is not None:
        timer.cancel()
