"""The clock a broker reads: wall time for timestamps of records, monotonic time for everything that waits.

Nothing else below ``parley/broker/`` touches the module ``time``, except where the broker is put together. Whoever
needs the
time is handed a ``Clock`` or one of its methods, so that a test or a simulation can turn the hands itself.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two hands that are never compared with each other."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC. May jump in both directions: for timestamps only, never for timers."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary instant; never goes back."""
        ...


class _SystemClock:
    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK: Clock = _SystemClock()
"""The clock of the machine."""
