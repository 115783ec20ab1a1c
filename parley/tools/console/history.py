"""The history of the last hour: a sample of the cluster every few seconds, in a bounded ring."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final

SAMPLES_MAX: Final = 1200
"""An hour, at one sample every three seconds."""


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


class History:
    """The samples, and a way to wait for the next one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._changed = asyncio.Condition()
        self.count = 0
        """The number of samples added so far."""

    async def add(self, sample: Sample) -> None:
        """Add a sample, and wake all waiters."""
        async with self._changed:
            self._samples.append(sample)
            self.count += 1
            self._changed.notify_all()

    async def after(self, count: int) -> Sample:
        """Wait until more than ``count`` samples have been added, and return the latest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count > count)
            return self._samples[-1]

    def as_data(self) -> list[dict[str, Any]]:
        """Return all samples, oldest first."""
        return [asdict(one) for one in self._samples]
