"""How clients' use is measured, and how long a client that has used too much must wait. No clock: times are arguments.

Kafka has two measures, and these are the same to the letter:

* ``SampledRate``: bytes, and the time of requests. The rate over the last windows; a burst counts until it leaves them.
* ``TokenBucket``: changes of topics. Tokens come at the allowed rate, and a burst may spend what has been saved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

THROTTLE_MAX_S = (2**31 - 1) / 1000
"""The longest throttle that a response can express."""
_MIN_ELAPSED_S = 0.001


@dataclass(frozen=True, slots=True)
class Windows:
    """``count`` windows of ``seconds`` each (``quota.window.num``, ``quota.window.size.seconds``)."""

    count: int = 11
    seconds: float = 1.0

    @property
    def total_s(self) -> float:
        """The length of all windows together."""
        return self.count * self.seconds


class _Sample:
    """What was recorded in one window."""

    __slots__ = ("began_s", "last_s", "total")

    def __init__(self, now_s: float) -> None:
        self.began_s = self.last_s = now_s
        self.total = 0.0


class SampledRate:
    """The rate over the last windows, as Kafka's ``Rate`` computes it.

    A window begins with the first amount after the end of the previous one, so windows need not follow each other at
    once. Until all windows have been used, the rate counts the missing ones as empty: a new client may use at once what
    it may use in ``count - 1`` windows.
    """

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()
        self._total = 0.0

    def record(self, amount: float, now_s: float) -> None:
        """Count an amount. A negative one takes back what was counted at the same time."""
        samples, windows = self._samples, self._windows
        if not samples or now_s - samples[-1].began_s >= windows.seconds:
            if len(samples) > windows.count:  # one more overlaps the beginning of the windows
                self._total -= samples.popleft().total
            samples.append(_Sample(now_s))
        sample = samples[-1]
        sample.total += amount
        sample.last_s = now_s
        self._total += amount

    def per_second(self, now_s: float) -> float:
        """Return the rate."""
        elapsed_s = self._elapsed_s(now_s)
        return self._total / elapsed_s

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return after how many seconds without use the rate falls to ``limit``; 0 if it is not above it."""
        elapsed_s = self._elapsed_s(now_s)
        if self._total <= limit * elapsed_s:
            return 0.0
        if limit <= 0:
            return THROTTLE_MAX_S
        return min(THROTTLE_MAX_S, self._total / limit - elapsed_s)

    def left(self, limit: float, now_s: float) -> float:
        """Return what may be recorded now without a wait; negative if there is one already."""
        elapsed_s = self._elapsed_s(now_s)
        return limit * elapsed_s - self._total

    def is_unused(self, now_s: float) -> bool:
        """Return True if nothing is counted any more."""
        self._elapsed_s(now_s)
        return self._total <= 0

    def _elapsed_s(self, now_s: float) -> float:
        """Return the time over which the rate is taken: since the oldest window, but at least ``count - 1`` windows."""
        samples, windows = self._samples, self._windows
        while samples and now_s - samples[0].last_s >= windows.total_s:
            self._total -= samples.popleft().total
        if not samples:
            self._total = 0.0  # without the errors of rounding
        elapsed_s = now_s - samples[0].began_s if samples else 0.0
        missing = windows.count - 1 - int(elapsed_s / windows.seconds)
        if missing > 0:
            elapsed_s += missing * windows.seconds
        return max(elapsed_s, _MIN_ELAPSED_S)


class TokenBucket:
    """Tokens that come at the allowed rate, up to what comes in all windows. It is full at first.

    An amount may take more tokens than there are; nothing more is allowed until the missing ones have come.
    """

    __slots__ = ("_at_s", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = float("inf")
        self._at_s = 0.0

    def record(self, amount: float, limit: float, now_s: float) -> None:
        """Take tokens."""
        self._tokens = self.tokens(limit, now_s) - amount

    def tokens(self, limit: float, now_s: float) -> float:
        """Return the number of tokens, which is negative if too many have been taken."""
        came = max(0.0, now_s - self._at_s) * limit
        self._tokens = min(limit * self._windows.total_s, self._tokens + came)
        self._at_s = now_s
        return self._tokens

    def wait_s(self, limit: float, now_s: float) -> float:
        """Return after how long no token is missing any more; 0 if none is missing now."""
        missing = -self.tokens(limit, now_s)
        if missing <= 0:
            return 0.0
        return min(THROTTLE_MAX_S, missing / limit) if limit > 0 else THROTTLE_MAX_S


def milliseconds(seconds: float) -> int:
    """Return a throttle time as responses have it."""
    return round(min(seconds, THROTTLE_MAX_S) * 1000)
