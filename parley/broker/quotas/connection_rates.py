"""The rate at which each address may open connections (``connection_creation_rate``, KIP-612).

A connection beyond the rate is accepted but not served. As in Kafka, it is closed when the rate allows another one, but
after one window at the latest. If it were closed immediately, its client would reconnect in a loop. Such a connection
does not count toward any rate.
"""

from __future__ import annotations

from collections.abc import Callable

from parley.broker.quotas.precedence import Limit
from parley.broker.quotas.rates import SampledRate, Windows
from parley.broker.quotas.usage import UsageTable


class ConnectionRates:
    """The connections that each address has opened. Only addresses with a quota are tracked."""

    def __init__(self, windows: Windows, rate_of: Callable[[str], float | None]) -> None:
        """``rate_of(host)`` returns how many connections per second an address may open; None means any number."""
        self._windows = windows
        self._rate_of = rate_of
        self._opened = UsageTable(lambda: SampledRate(windows))

    def open(self, host: str, now_s: float) -> float:
        """Count a new connection. Returns 0 if it may be served.

        Otherwise it is not counted, and must be closed after the returned number of seconds.
        """
        rate = self._rate_of(host)
        if rate is None:
            return 0.0
        opened = self._opened.of(Limit(rate, (host, "")), now_s).measure
        opened.record(1, now_s)
        wait_s = min(opened.wait_s(rate, now_s), self._windows.seconds)
        if wait_s > 0:
            opened.record(-1, now_s)
        return wait_s
