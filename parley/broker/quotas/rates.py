"""Measures of clients' usage, and how long a client that exceeds its quota must wait. Callers pass the time.

Kafka has two measures, which this module reproduces exactly:

* ``SampledRate``, for bytes and request time: the rate over the latest windows. A burst counts until its
  window has passed.
* ``TokenBucket``, for topic changes: tokens arrive at the allowed rate, and a burst may spend saved tokens.
"""

from __future__ import annotations

from collections import deque

from parley.light_dataclasses import dataclass

THROTTLE_MAX_S = (2**31 - 1) / 1000
"""The longest throttle time that a response can express, in seconds."""
_MIN_ELAPSED_S = 0.001


@dataclass(frozen=True, slots=True)
class Windows:
    """``count`` windows of ``seconds`` each (``quota.window.num``, ``quota.window.size.seconds``)."""

    count: int = 11
    seconds: float = 1.0

    @property
    def total_s(self) -> float:
        """The length of all windows together, in seconds."""
        return self.count * self.seconds


class _Sample:
    """The amount recorded in one window."""

    __slots__ = ("began_s", "last_s", "total")

    def __init__(self, now_s: float) -> None:
        self.began_s = self.last_s = now_s
        self.total = 0.0


class SampledRate:
    """The rate over the latest windows, as Kafka's ``Rate`` computes it.

    A window begins with the first amount after the end of the previous one, so there can be gaps between windows. Until
    all windows have been used, the missing ones count as empty: a new client may immediately use what is allowed in
    ``count - 1`` windows.
    """

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()
        self._total = 0.0

    def record(self, amount: float, now_s: float) -> None:
        """Count an amount. A negative amount takes back what was counted at the same time."""
        samples, windows = self._samples, self._windows
        if not samples or now_s - samples[-1].began_s >= windows.seconds:
            if len(samples) > windows.count:  # an additional window overlaps the start
                self._total -= samples.popleft().total
            samples.append(_Sample(now_s))
        sample = samples[-1]
        sample.total += amount
        sample.last_s = now_s
        self._total += amount

    def per_second(self, now_s: float) -> float:
        """Return the current rate, in units per second."""
        elapsed_s = self._elapsed_s(now_s)
        return self._total / elapsed_s

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return how many seconds must pass without use until the rate has fallen to ``limit``, but at most
        ``THROTTLE_MAX_S``; 0 if the rate does not exceed the limit."""
        elapsed_s = self._elapsed_s(now_s)
        if self._total <= limit * elapsed_s:
            return 0.0
        if limit <= 0:
            return THROTTLE_MAX_S
        return min(THROTTLE_MAX_S, self._total / limit - elapsed_s)

    def left(self, limit: float, now_s: float) -> float:
        """Return the amount that can be recorded now without exceeding ``limit``. It is negative if the limit is
        already exceeded."""
        elapsed_s = self._elapsed_s(now_s)
        return limit * elapsed_s - self._total

    def is_unused(self, now_s: float) -> bool:
        """Return True if no recorded amount still counts."""
        self._elapsed_s(now_s)
        return self._total <= 0

    def _elapsed_s(self, now_s: float) -> float:
        """Return the seconds over which the rate is computed: since the oldest window, but at least ``count - 1``
        windows."""
        samples, windows = self._samples, self._windows
        while samples and now_s - samples[0].last_s >= windows.total_s:
            self._total -= samples.popleft().total
        if not samples:
            self._total = 0.0  # drop rounding errors
        elapsed_s = now_s - samples[0].began_s if samples else 0.0
        missing = windows.count - 1 - int(elapsed_s / windows.seconds)
        if missing > 0:
            elapsed_s += missing * windows.seconds
        return max(elapsed_s, _MIN_ELAPSED_S)


class TokenBucket:
    """A bucket that receives tokens at the allowed rate. It starts full, and holds at most the tokens that arrive in
    all windows.

    An amount may take more tokens than the bucket holds. Nothing is allowed then until the missing tokens have arrived.
    """

    __slots__ = ("_at_s", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._at_s = 0.0

    def record(self, amount: float, limit: float, now_s: float) -> None:
        """Take ``amount`` tokens. ``limit`` is the number of tokens that arrive per second."""
        self._tokens = self.tokens(limit, now_s) - amount

    def tokens(self, limit: float, now_s: float) -> float:
        """Return the number of tokens. It is negative if too many have been taken."""
        came = max(0.0, now_s - self._at_s) * limit
        self._tokens = min(limit * self._windows.total_s, self._tokens + came)
        self._at_s = now_s
        return self._tokens

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return the seconds until no token is missing, but at most ``THROTTLE_MAX_S``; 0 if none is missing now."""
        missing = -self.tokens(limit, now_s)
        if missing <= 0:
            return 0.0
        return min(THROTTLE_MAX_S, missing / limit) if limit > 0 else THROTTLE_MAX_S


def milliseconds(seconds: float) -> int:
    """Convert a throttle time from seconds to milliseconds, as responses contain it, but at most ``THROTTLE_MAX_S``."""
    return round(min(seconds, THROTTLE_MAX_S) * 1000)
