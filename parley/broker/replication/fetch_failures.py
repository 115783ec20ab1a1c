"""Logs why partitions cannot be fetched from a leader: one line per reason, repeated at growing intervals.

When a leader's disk is full, all its partitions fail together, and fail again at each attempt.
"""

from __future__ import annotations

import asyncio
import logging

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.replication.partition import Partition

_log = logging.getLogger(__name__)

GATHERED_S = 1.0
"""Failures for the same reason within this many seconds are logged in one line."""
NAMED_MAX = 10
"""The maximum number of partitions named in one line."""

_Kind = tuple[str, int]
"""Reason and log level."""


class FetchFailures:
    """The failures of one fetcher's partitions."""

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._gathered: dict[_Kind, dict[Partition, None]] = {}
        self._intervals: dict[_Kind, GrowingInterval] = {}
        self._scheduled: set[_Kind] = set()

    def note(self, partition: Partition, reason: str, *, is_expected: bool) -> None:
        """Record a failed fetch, and its reason for the log. An expected failure is logged at debug level, any other at
        warning level."""
        loop = asyncio.get_running_loop()
        kind = (reason, logging.DEBUG if is_expected else logging.WARNING)
        self._gathered.setdefault(kind, {})[partition] = None
        interval = self._intervals.get(kind)
        if interval is None:
            interval = self._intervals[kind] = GrowingInterval(loop.time)
        if kind not in self._scheduled and interval.claim_line():
            self._scheduled.add(kind)
            loop.call_later(GATHERED_S, self._report, kind)

    def all_recovered(self) -> None:
        """Reset the intervals, because no partition fails now: the next failure is logged without delay."""
        self._intervals.clear()
        self._gathered = {kind: gathered for kind, gathered in self._gathered.items() if kind in self._scheduled}

    def _report(self, kind: _Kind) -> None:
        self._scheduled.discard(kind)
        partitions = list(self._gathered.pop(kind))
        reason, level = kind
        names = " ".join(f"{each.topic}-{each.index}" for each in partitions[:NAMED_MAX])
        facts = {"leader": self._leader, "reason": reason, "partitions": len(partitions), "names": names}
        _log.log(level, "partitions cannot be fetched at the moment; this broker tries again", extra=facts)
