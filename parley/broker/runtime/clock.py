"""The clock of a broker: wall-clock time for the timestamps of records, monotonic time for everything that waits.

Code below ``parley/broker/`` that needs the time receives a ``Clock`` or one of its methods, so that tests and
simulations can control it. It does not use the module ``time``, except for ``time.monotonic`` in ``metrics.access`` and
``security.sasl.oauthbearer.issuer_keys``.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks. Their times must not be compared with each other."""

    def wall_ms(self) -> int:
        """Return the number of milliseconds since 1970-01-01 UTC. This clock can jump in both directions: use it for
        timestamps only."""
        ...

    def monotonic(self) -> float:
        """Return the number of seconds since an arbitrary instant. It never decreases."""
        ...


class _SystemClock:
    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


SYSTEM_CLOCK: Clock = _SystemClock()
"""The clock of this machine."""
