"""The console's memory of the last hour: one sample of the cluster every few seconds, in a bounded ring."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any, Final

SAMPLES_MAX: Final = 1200
"""An hour, at one sample every three seconds."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cluster at a moment. Rates are per second since the sample before; None if there is none."""

    at_ms: int
    records_per_s: float | None
    request_ms: float
    """How long a broker took to answer this console, in milliseconds."""
    partitions: int
    under_replicated: int
    offline: int
    isr_changes: int
    """Partitions whose ISR differs from that of the sample before."""
    brokers: int


class History:
    """The samples, and a way to wait for the next one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._changed = asyncio.Condition()
        self.count = 0
        """How many samples there have been."""

    async def add(self, sample: Sample) -> None:
        """Add a sample and wake those who wait for it."""
        async with self._changed:
            self._samples.append(sample)
            self.count += 1
            self._changed.notify_all()

    async def after(self, count: int) -> Sample:
        """Wait until there have been more than ``count`` samples, and return the latest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.count > count)
            return self._samples[-1]

    def as_data(self) -> list[dict[str, Any]]:
        """All samples, oldest first."""
        return [asdict(one) for one in self._samples]
