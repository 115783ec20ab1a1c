"""Latencies and rates in the units of Kafka's tools: ms, records/sec, MB of 1024 x 1024 bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MIB = 1024 * 1024
_SAMPLES_MAX = 500_000


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the percentile ``share`` (0 to 1) of sorted values, or 0 if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


@dataclass(slots=True)
class Window:
    """The acknowledgements of a period: count, bytes and latencies in ms."""

    started: float
    count: int = 0
    size_bytes: int = 0
    total_ms: int = 0
    max_ms: int = 0

    def add(self, latency_ms: int, size_bytes: int) -> None:
        self.count += 1
        self.size_bytes += size_bytes
        self.total_ms += latency_ms
        if latency_ms > self.max_ms:
            self.max_ms = latency_ms

    def rates(self, now: float) -> tuple[float, float]:
        """Return the records and the MB per second from the start of the window to ``now``, a time in seconds."""
        elapsed = max(now - self.started, 1e-9)
        return self.count / elapsed, self.size_bytes / elapsed / MIB

    @property
    def average_ms(self) -> float:
        return self.total_ms / self.count if self.count else float("nan")

    def rates_text(self, now: float) -> str:
        """Format rates and latencies as kafka-producer-perf-test does."""
        records, mib = self.rates(now)
        return (
            f"{records:.1f} records/sec ({mib:.2f} MB/sec), "
            f"{self.average_ms:.1f} ms avg latency, {float(self.max_ms):.1f} ms max latency."
        )

    def line(self, now: float) -> str:
        """Format the line of kafka-producer-perf-test for a reporting interval."""
        return f"{self.count} records sent, {self.rates_text(now)}"


@dataclass(slots=True)
class Totals:
    """The totals of a run or of its steady state: a window, and latencies for percentiles.

    If more than 500,000 records are expected, only the latency of every n-th is kept, to limit memory.
    """

    window: Window
    expected: int
    words: str = "records sent"
    _latencies: list[int] = field(default_factory=list)
    _every: int = 0

    def add(self, latency_ms: int, size_bytes: int) -> None:
        if self._every == 0:
            self._every = -(-self.expected // _SAMPLES_MAX) or 1
        if self.window.count % self._every == 0:
            self._latencies.append(latency_ms)
        self.window.add(latency_ms, size_bytes)

    def percentiles(self) -> tuple[int, int, int, int]:
        """Return the 50th, 95th, 99th and 99.9th percentiles, in ms."""
        ordered = sorted(self._latencies)
        return (
            percentile(ordered, 0.5),
            percentile(ordered, 0.95),
            percentile(ordered, 0.99),
            percentile(ordered, 0.999),
        )

    def line(self, now: float) -> str:
        """Format the last line of kafka-producer-perf-test."""
        records, mib = self.window.rates(now)
        half, p95, p99, p999 = self.percentiles()
        return (
            f"{self.window.count} {self.words}, {records:.6f} records/sec ({mib:.2f} MB/sec), "
            f"{self.window.average_ms:.2f} ms avg latency, {float(self.window.max_ms):.2f} ms max latency, "
            f"{half} ms 50th, {p95} ms 95th, {p99} ms 99th, {p999} ms 99.9th."
        )

    def as_data(self, now: float) -> dict[str, float]:
        """Return the numbers of the last line as JSON data."""
        records, mib = self.window.rates(now)
        half, p95, p99, p999 = self.percentiles()
        return {
            "records": self.window.count,
            "recordsPerSec": records,
            "mbPerSec": mib,
            "avgLatencyMs": self.window.average_ms if self.window.count else 0.0,
            "maxLatencyMs": self.window.max_ms,
            "p50Ms": half,
            "p95Ms": p95,
            "p99Ms": p99,
            "p999Ms": p999,
        }
