"""Measures the flushes of a broker's logs, which happen in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from parley.broker.metrics.catalogue.logs import FlushMetrics


class FlushTimes:
    """How long the flushes of all logs took. ``metrics`` may be read at any time."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.metrics = FlushMetrics()
        self._monotonic = monotonic
        self._lock = threading.Lock()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count what happens inside as one flush, unless it fails. Any thread may call this."""
        began = self._monotonic()
        yield
        with self._lock:
            self.metrics.flushes.observe(int(1e6 * (self._monotonic() - began)))
