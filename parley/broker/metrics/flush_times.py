"""Measures the flushes of a broker's logs, which run in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parley.broker.metrics.catalogue.logs import FlushMetrics


class FlushTimes:
    """The durations of the flushes of all logs. ``metrics`` may be read at any time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.metrics = FlushMetrics()
        self._monotonic = monotonic
        self._lock = threading.Lock()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the body of the ``with`` block as one flush, and measure its duration. A body that raises does not
        count. May be called from any thread."""
        began = self._monotonic()
        yield
        with self._lock:
            self.metrics.flushes.observe(int(1e6 * (self._monotonic() - began)))
