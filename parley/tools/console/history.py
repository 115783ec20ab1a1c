"""The history of a cluster: a sample every few seconds. The samples of the last hour are in a bounded ring."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

PERIOD_S: Final = 3.0
SAMPLES_MAX: Final = 1200
"""The maximum number of samples in memory: an hour, at one sample every ``PERIOD_S``."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The state of a cluster at a moment. Rates are per second since the previous sample, or None without one."""

    at_ms: int
    records_per_s: float | None
    request_ms: float
    """The response time of a broker to this console, in milliseconds."""
    partitions: int
    under_replicated: int
    offline: int
    isr_changes: int
    """The number of partitions whose ISR differs from that in the previous sample."""
    brokers: int


class OlderSamples(Protocol):
    """The storage of samples (``parley.tools.console.sample_file``). Every method blocks."""

    def last_hour(self, now_ms: int) -> list[Sample]:
        """Return the samples of the last hour, oldest first."""

    def minutes(self, since_ms: int) -> list[Sample]:
        """Return the averages of each minute since this time, oldest first."""

    def add(self, sample: Sample) -> None:
        """Add a sample."""


class History:
    """The samples of a cluster. Callers can wait for the next one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._changed = asyncio.Condition()
        self._kept: OlderSamples | None = None
        self.count = 0
        """The number of samples added so far."""
        self.begun = asyncio.Event()
        """Set when the stored samples, from before this console's start, are loaded or could not be read."""

    async def begin(self, kept: OlderSamples | None, now_ms: int) -> None:
        """Load the stored samples of the last hour, and store all later samples as well. If ``kept`` is None, samples
        are kept in memory only."""
        self._kept = kept
        if kept is not None:
            self._samples.extend(await asyncio.to_thread(kept.last_hour, now_ms))
        self.begun.set()

    async def minutes(self, since_ms: int) -> list[dict[str, Any]]:
        """Return the averages of each minute since this time, oldest first. Returns an empty list if samples are kept
        in memory only."""
        found = [] if self._kept is None else await asyncio.to_thread(self._kept.minutes, since_ms)
        return [asdict(one) for one in found]

    async def add(self, sample: Sample) -> None:
        """Add a sample, and wake the callers of ``after``."""
        if self._kept is not None:
            await asyncio.to_thread(self._kept.add, sample)
        async with self._changed:
            self._samples.append(sample)
            self.count += 1
            self._changed.notify_all()

    async def after(self, count: int) -> Sample:
        """Wait until more than ``count`` samples have been added in total, and return the latest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count > count)
            return self._samples[-1]

    def as_data(self) -> list[dict[str, Any]]:
        """Return all samples, oldest first."""
        return [asdict(one) for one in self._samples]
