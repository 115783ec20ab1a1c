"""Tracks and logs outages of the coordination store, as this broker sees them.

An outage is logged when it starts, then at growing intervals, and once more when the store responds again. A session
that is lost during an outage is the concern of ``lifecycle``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from parley.broker.logging.growing_interval import GrowingInterval

_log = logging.getLogger(__name__)


class StoreOutage:
    """The current outage of the store, if any, as this broker sees it."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._interval = GrowingInterval(monotonic)
        self._since_s: float | None = None
        self._began = asyncio.Event()
        self.count = 0
        """The number of outages so far, including the current one."""

    @property
    def duration_s(self) -> float | None:
        """How long the store has not responded, in seconds; None if it responds."""
        since_s = self._since_s  # read once: another thread may change it
        return None if since_s is None else self._monotonic() - since_s

    @property
    def description(self) -> str:
        """A short description of the outage for messages; empty if there is none."""
        duration_s = self.duration_s
        return "" if duration_s is None else f"the coordination store has not responded for {duration_s:.0f} s"

    async def wait_until_longer_than(self, seconds: float) -> None:
        """Wait until the store has not responded for ``seconds``, counted from now, or from the start of a later
        outage."""
        left_s = seconds
        while True:
            await self._began.wait()
            outage = self.count
            await asyncio.sleep(left_s)
            if self._began.is_set() and self.count == outage:
                return
            left_s = seconds - (self.duration_s or 0)

    def record_failure(self, reason: str) -> None:
        """Record that the store has just failed to respond. This starts an outage unless one is in progress. ``reason``
        appears in the log."""
        if self._since_s is None:
            self._since_s = self._monotonic()
            self.count += 1
            self._began.set()
            self._interval.restart()
        if self._interval.claim_line():
            facts = {"reason": reason, "for_s": round(self._monotonic() - self._since_s, 1)}
            _log.warning("the coordination store does not respond", extra=facts)

    def record_response(self) -> None:
        """Record that the store has just responded. This ends the outage, if there is one."""
        if self._since_s is not None:
            after_s = round(self._monotonic() - self._since_s, 1)
            self._since_s = None
            self._began.clear()
            _log.info("the coordination store responds again", extra={"after_s": after_s})
