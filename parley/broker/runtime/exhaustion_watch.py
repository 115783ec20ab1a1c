"""A broker's reaction when its process runs out of file descriptors or memory: it makes room, or it shuts down.

The states, one per resource::

    ENOUGH -> SHORT     the reserve has been released and cannot be refilled
    SHORT  -> ENOUGH    the reserve is full again
    any    -> ENDING    the resource has been short for the length of the broker's session timeout, or memory ran out
                        in the middle of some work: the broker hands over its leaderships and shuts down

``parley.storage.resource_exhaustion`` defines the reserves. ``Allowance`` divides the limit of open files between the
reserves, the logs and the connections. Operators: docs/operations.md, "When file descriptors or memory run out".
"""

from __future__ import annotations

import asyncio
import logging
import resource
import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, Protocol

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metrics.catalogue.process import ShortageMetrics
from parley.broker.metrics.health import Health
from parley.broker.runtime.states import step
from parley.light_dataclasses import dataclass
from parley.storage.resource_exhaustion import DESCRIPTORS, MEMORY, RESERVES, DescriptorReserve, Reserve

_log = logging.getLogger(__name__)

CHECK_S: Final = 0.5
"""The interval, in seconds, at which the reserves are checked and refilled."""
FILES_PER_PARTITION: Final = 3
"""The descriptors of a partition that accepts appends: its active segment, and the memory maps of two indexes."""
MEMORY_RESERVED_BYTES: Final = 32 << 20
"""The memory held in reserve: enough to hand over the leaderships and to close the logs."""
UNLIMITED: Final = 1 << 30
ADVICE: Final = {
    DESCRIPTORS.name: "Raise the limit of open files (ulimit -n, LimitNOFILE), or host fewer partitions.",
    MEMORY.name: "Give the process more memory (ulimit -v, MemoryMax), or lower queued.max.request.bytes.",
}


# --- The limit of open files ---


@dataclass(frozen=True, slots=True)
class Allowance:
    """How a process may use the file descriptors that its limit allows."""

    limit: int

    @classmethod
    def of_process(cls) -> Allowance:
        """Return the allowance under the current limit of this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(UNLIMITED if soft == resource.RLIM_INFINITY else soft)

    @property
    def reserved(self) -> int:
        """The number of descriptors held in reserve."""
        return min(max(self.limit // 16, 8), 64)

    @property
    def own(self) -> int:
        """The number of descriptors for the broker itself: the reserve, the store, other brokers, and briefly opened
        files."""
        return min(max(self.limit // 4, 32), 512)

    def connections_max(self, partitions: int) -> int:
        """Return how many connections a broker with this many partitions may have: the remaining descriptors, but at
        least a quarter of all.

        The files of logs can be closed and opened again, so the logs give up the last quarter if necessary.
        """
        return max(self.limit // 4, self._left_by(partitions))

    def is_enough_for(self, partitions: int) -> bool:
        """Return True if a broker with this many partitions can keep their active segments open and still accept
        connections."""
        return self._left_by(partitions) >= self.limit // 4

    def _left_by(self, partitions: int) -> int:
        return self.limit - self.own - FILES_PER_PARTITION * partitions


def limit_advised(partitions: int) -> int:
    """Return a limit of open files that is enough for this many partitions."""
    return max(1024, 4 * FILES_PER_PARTITION * partitions)


# --- The supply of one resource ---


class Supply(Enum):
    """The states of the supply of a resource; the module docstring explains each one."""

    ENOUGH = auto()
    SHORT = auto()
    ENDING = auto()


class SupplyEvent(Enum):
    """An event that changes the ``Supply``."""

    LACKING = auto()
    REFILLED = auto()
    PATIENCE_OVER = auto()
    WORK_LOST = auto()


_STEPS: dict[tuple[Supply, SupplyEvent], Supply] = {
    (Supply.ENOUGH, SupplyEvent.REFILLED): Supply.ENOUGH,
    (Supply.ENOUGH, SupplyEvent.LACKING): Supply.SHORT,
    (Supply.SHORT, SupplyEvent.LACKING): Supply.SHORT,
    (Supply.SHORT, SupplyEvent.REFILLED): Supply.ENOUGH,
    (Supply.SHORT, SupplyEvent.PATIENCE_OVER): Supply.ENDING,
    (Supply.ENOUGH, SupplyEvent.WORK_LOST): Supply.ENDING,
    (Supply.SHORT, SupplyEvent.WORK_LOST): Supply.ENDING,
    **{(Supply.ENDING, event): Supply.ENDING for event in SupplyEvent},
}


class Judgment:
    """Tracks the supply of one resource, and decides when the broker must end."""

    def __init__(self, patience_s: float) -> None:
        self.state = Supply.ENOUGH
        self._patience_s = patience_s
        self._short_since = 0.0

    def judge(self, now_s: float, *, is_whole: bool, has_lost_work: bool) -> Supply:
        """Return the state that follows from a check at ``now_s`` (monotonic seconds). ``is_whole`` is True if the
        reserve is full, ``has_lost_work`` if the resource ran out in the middle of some work."""
        before = self.state
        if has_lost_work:
            self._on(SupplyEvent.WORK_LOST)
            return self.state
        self._on(SupplyEvent.REFILLED if is_whole else SupplyEvent.LACKING)
        if before is Supply.ENOUGH:
            self._short_since = now_s
        elif self.state is Supply.SHORT and self.short_s(now_s) >= self._patience_s:
            self._on(SupplyEvent.PATIENCE_OVER)
        return self.state

    def _on(self, event: SupplyEvent) -> None:
        self.state = step("supply of the process", _STEPS, self.state, event)

    def short_s(self, now_s: float) -> float:
        """Return how long the resource has been short, in seconds; 0 if it is not."""
        return 0.0 if self.state is Supply.ENOUGH else now_s - self._short_since


# --- The watch ---


class Connections(Protocol):
    """The broker's connections, and how many of them the file descriptors allow."""

    descriptors_max: int

    def keep_to_descriptors(self) -> None:
        """Close connections if there are more than ``descriptors_max``."""

    def close_least_active(self, count: int = 1) -> None:
        """Close enough connections to free ``count`` file descriptors, those of the least active clients first."""


class Memory(Protocol):
    """The limits on memory for requests (``Load``). If ``lacks_memory`` is True, large requests are received one at a
    time."""

    lacks_memory: bool


class ExhaustionWatch:
    """Keeps the reserves of the process full, and ends the broker if they have been short for too long."""

    def __init__(
        self,
        health: Health,
        connections: Connections,
        load: Memory,
        *,
        partitions: Callable[[], int],
        end: Callable[[], None],
        patience_s: float,
        monotonic: Callable[[], float],
        allowance: Callable[[], Allowance] = Allowance.of_process,
        reserves: Sequence[Reserve] = RESERVES,
    ) -> None:
        """``partitions`` returns how many partitions this broker hosts. ``end`` is called once, and must stop the
        broker. ``patience_s`` is how long, in seconds, a resource may be short before that."""
        self._health = health
        self._connections = connections
        self._load = load
        self._partitions = partitions
        self._end = end
        self._monotonic = monotonic
        self._allowance = allowance
        self._judged = {reserve: Judgment(patience_s) for reserve in reserves}
        self._known = {reserve: reserve.shortages for reserve in reserves}
        self._log_shortage = {reserve: GrowingInterval(monotonic) for reserve in reserves}
        self._is_limit_low = False
        self.beats = 0
        """The number of checks, for ``LastResort``."""
        self.is_ending = False

    async def run(self) -> None:
        """Check until the broker must end, or until cancelled."""
        while not self.is_ending:
            self.check()
            await asyncio.sleep(CHECK_S)

    def check(self) -> None:
        """Adapt to the limits, and refill the reserves. If a reserve cannot be refilled, report the problem and make
        room; if it has been short for too long, end the broker."""
        self.beats += 1
        self._adapt()
        for reserve, judged in self._judged.items():
            before, now_s = judged.state, self._monotonic()
            state = judged.judge(now_s, is_whole=self._refill(reserve), has_lost_work=reserve.lost_work is not None)
            if reserve is MEMORY:
                self._load.lacks_memory = state is not Supply.ENOUGH
            elif state is Supply.SHORT:
                self._connections.close_least_active(self._allowance().reserved)
            self._report(reserve, before, state, judged.short_s(now_s))

    def _adapt(self) -> None:
        """Adapt to the limit of open files, which may change at run time, and to the number of partitions."""
        allowance, partitions = self._allowance(), self._partitions()
        self._connections.descriptors_max = allowance.connections_max(partitions)
        self._connections.keep_to_descriptors()
        for reserve in self._judged:
            if isinstance(reserve, DescriptorReserve):
                reserve.hold(allowance.reserved)
        is_low = not allowance.is_enough_for(partitions)
        if is_low and not self._is_limit_low:
            _log.warning(
                "the limit of open files is too low for the partitions of this broker: raise it (ulimit -n, "
                "LimitNOFILE); until then their files are constantly closed and reopened",
                extra={"limit": allowance.limit, "partitions": partitions, "advised": limit_advised(partitions)},
            )
        self._is_limit_low = is_low

    def _refill(self, reserve: Reserve) -> bool:
        """Refill a reserve. If it fails, have the logs close their files, and try again."""
        if reserve.refill():
            return True
        reserve.relieve()
        return reserve.refill()

    def _report(self, reserve: Reserve, before: Supply, state: Supply, short_s: float) -> None:
        name = reserve.name
        if reserve.shortages > self._known[reserve] and self._log_shortage[reserve].claim_line():
            facts = {"resource": name, "shortages": reserve.shortages - self._known[reserve]}
            _log.error("the process has run out of a resource and is using its reserve", extra=facts)
            self._known[reserve] = reserve.shortages
        if state is Supply.SHORT:
            self._health.trouble(name, f"short for {short_s:.1f} s. {ADVICE[name]}")
        elif state is Supply.ENOUGH:
            self._health.solved(name)
        elif before is not Supply.ENDING:
            self._give_up(reserve, short_s)

    def _give_up(self, reserve: Reserve, short_s: float) -> None:
        why = _why(reserve, short_s)
        _log.error("the broker is handing over its leaderships and shutting down", extra={"reason": why})
        self._health.trouble(reserve.name, why, fatal=True)
        self.is_ending = True
        self._end()

    @property
    def reason(self) -> str:
        """The reason why the broker ends; empty unless it ends because of a shortage."""
        for reserve, judged in self._judged.items():
            if judged.state is Supply.ENDING:
                return self._health.problem(reserve.name)
            if reserve.lost_work is not None:  # the broker may end before the next check
                return _why(reserve, 0.0)
        return ""

    def metrics(self) -> list[tuple[tuple[str, ...], ShortageMetrics]]:
        """Return the metrics of each resource, for the exporter."""
        return [
            ((reserve.name,), ShortageMetrics(shortages=reserve.shortages, is_short=judged.state is not Supply.ENOUGH))
            for reserve, judged in self._judged.items()
        ]


def _why(reserve: Reserve, short_s: float) -> str:
    """Return why the broker ends, and what the operator can do about it."""
    if reserve.lost_work is not None:
        return f"the broker ran out of {reserve.name} in the middle of its work. {ADVICE[reserve.name]}"
    return f"the broker has been short of {reserve.name} for {short_s:.1f} s. {ADVICE[reserve.name]}"


class LastResort:
    """A thread that ends the process if a shortage stops the watch, or prevents an orderly shutdown.

    It counts its own ticks instead of comparing times, so that a process that was stalled gets as many ticks as any
    other process.
    """

    def __init__(
        self,
        beats: Callable[[], int | None],
        end: Callable[[], object],
        *,
        patience_s: float,
        reserves: Sequence[Reserve] = RESERVES,
        tick_s: float = 1.0,
    ) -> None:
        """``beats`` returns a number that grows while the broker watches its reserves, and None before the watch
        begins. ``end`` is called in the thread, at most once, if the number has not grown for ``patience_s`` seconds
        although a reserve has been released."""
        self._beats = beats
        self._end = end
        self._ticks_max = max(1, round(patience_s / tick_s))
        self._reserves = reserves
        self._tick_s = tick_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="last resort", daemon=True)
        self._thread.start()  # now, because a thread cannot be started when memory has run out

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        seen, silent = None, 0
        while not self._closed.wait(self._tick_s):
            beats = self._beats()
            is_silent = beats is not None and beats == seen and any(each.is_released for each in self._reserves)
            seen, silent = beats, silent + 1 if is_silent else 0
            if silent >= self._ticks_max:
                self._end()
                return
