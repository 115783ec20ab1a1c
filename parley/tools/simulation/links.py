"""The links between simulated hosts: which hosts can reach each other, and how long segments take.

Segments to an unreachable host, partitioned or down, wait like TCP's retransmissions: they arrive some time after the
hosts can reach each other again. Neither side is notified, so a partition is silent; connections are never refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Weather:
    """The behavior of the network. Times are in seconds, probabilities are per segment."""

    latency_min: float = 0.0001
    latency_max: float = 0.002
    stall_chance: float = 0.001
    stall_max: float = 0.2
    """The maximum delay of a stalled segment, which simulates retransmissions."""
    cut_chance: float = 0.3
    """The probability that a write is cut into pieces that arrive one by one."""

    @classmethod
    def drawn(cls, rng: Random) -> Weather:
        """Draw a behavior: a fast network more often than a slow one."""
        slowest = rng.choice((0.001, 0.002, 0.005, 0.02))
        return cls(
            slowest / 20, slowest, rng.choice((0.0, 0.001, 0.01)), rng.choice((0.05, 0.3)), rng.choice((0.05, 0.5))
        )


class Links:
    """The links between all hosts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: Random, weather: Weather) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = weather
        self.on_arrival: Callable[[str], None] = lambda line: None
        """Called for each segment that arrives, with a description that is the same in each replay."""
        self._down: dict[str, None] = {}
        self._cut: Counter[tuple[str, str]] = Counter()
        self._retransmit: dict[Callable[[], None], None] = {}
        self._changed = asyncio.Event()

    # --- Faults ---

    def part(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Cut off one set of hosts from the other: in one direction if ``one_way``, otherwise in both. The cut lasts
        until ``join`` is called with the same arguments. Cuts may overlap."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] += 1

    def join(self, one_side: Collection[str], other_side: Collection[str], *, one_way: bool = False) -> None:
        """Undo one call of ``part`` with the same arguments."""
        for pair in _pairs(one_side, other_side, one_way):
            self._cut[pair] = max(0, self._cut[pair] - 1)
        self._improved()

    def heal(self) -> None:
        """End all partitions."""
        self._cut.clear()
        self._improved()

    def host_down(self, host: str) -> None:
        """Take a machine down. It neither sends nor receives."""
        self._down[host] = None

    def host_up(self, host: str) -> None:
        """Bring a machine back up."""
        self._down.pop(host, None)
        self._improved()

    def _improved(self) -> None:
        for retransmit in tuple(self._retransmit):
            retransmit()
        self._changed.set()
        self._changed = asyncio.Event()

    # --- Behavior ---

    def reaches(self, source: str, target: str) -> bool:
        """Return True if segments from one host reach the other."""
        return not self._cut[source, target] and target not in self._down and source not in self._down

    def latency(self) -> float:
        """Choose how many seconds the next segment takes."""
        weather = self.weather
        if self.rng.random() < weather.stall_chance:
            return self.rng.uniform(weather.latency_max, weather.stall_max)
        return self.rng.uniform(weather.latency_min, weather.latency_max)

    def retransmission(self) -> float:
        """Choose after how many seconds a waiting segment is retransmitted, once the hosts can reach each other
        again."""
        return self.rng.uniform(0.01, 1.0)

    def pieces(self, data: bytes) -> list[bytes]:
        """Cut a write at random into the pieces in which it arrives."""
        if len(data) < 2 or self.rng.random() >= self.weather.cut_chance:
            return [data]
        cuts = sorted(self.rng.sample(range(1, len(data)), min(len(data) - 1, self.rng.randint(1, 3))))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    async def travel(self, source: str, target: str) -> None:
        """Wait as long as a segment takes from one host to another, including the time while ``source`` cannot reach
        ``target``."""
        latency = self.latency()
        while not self.reaches(source, target):
            await self._changed.wait()
            latency = self.retransmission()
        await asyncio.sleep(latency)

    # --- Segments that wait ---

    def call_when_improved(self, retransmit: Callable[[], None]) -> None:
        """Call ``retransmit`` whenever hosts may be able to reach each other again."""
        self._retransmit[retransmit] = None

    def stop_calling(self, retransmit: Callable[[], None]) -> None:
        """Undo ``call_when_improved``."""
        self._retransmit.pop(retransmit, None)


def _pairs(one_side: Collection[str], other_side: Collection[str], one_way: bool) -> Iterator[tuple[str, str]]:
    for one in one_side:
        for other in other_side:
            yield one, other
            if not one_way:
                yield other, one
