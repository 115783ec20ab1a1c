"""A hosted partition with a damaged log, and the state of its healing.

The states::

    FOUND          the damage is known, and nothing has been tried yet
    HANDING_OVER   this broker asks the controller to elect another leader
    FETCHING       this broker fetches the damaged ranges from other replicas and puts them in place
    WAITING        some ranges are still damaged: this broker asks the other replicas again later
    HEALED         the log is undamaged again (final)
    LEFT           this broker no longer hosts the partition, or has lost its log (final)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from contextlib import suppress
from enum import IntEnum

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.types import PartitionState
from parley.broker.replication.partition import Partition
from parley.broker.runtime.states import step

RETRY_FIRST_S, RETRY_MAX_S = 0.5, 60.0
HAND_OVER_PAUSE_S = 60.0
"""How long a leader waits before it hands over the same partition again. The other replicas may be damaged, too."""


class HealState(IntEnum):
    """The state of a partition's healing. The module docstring explains each one."""

    FOUND = 0
    HANDING_OVER = 1
    FETCHING = 2
    WAITING = 3
    HEALED = 4
    LEFT = 5


class HealEvent(IntEnum):
    """An event in the life of a damaged partition."""

    HAND_OVER = 0
    FETCH = 1
    FAIL = 2
    HEAL = 3
    LEAVE = 4


_S, _E = HealState, HealEvent
_STEPS: dict[tuple[HealState, HealEvent], HealState] = {
    (_S.FOUND, _E.HAND_OVER): _S.HANDING_OVER,
    (_S.FOUND, _E.FETCH): _S.FETCHING,
    (_S.HANDING_OVER, _E.FETCH): _S.FETCHING,
    (_S.FETCHING, _E.HEAL): _S.HEALED,
    **{(state, _E.FAIL): _S.WAITING for state in (_S.FOUND, _S.HANDING_OVER, _S.FETCHING, _S.WAITING)},
    (_S.WAITING, _E.HAND_OVER): _S.HANDING_OVER,
    (_S.WAITING, _E.FETCH): _S.FETCHING,
    **{(state, _E.LEAVE): _S.LEFT for state in (_S.FOUND, _S.HANDING_OVER, _S.FETCHING, _S.WAITING)},
}


class DamagedPartition:
    """One partition, from the discovery of damage in its log until the log is undamaged."""

    def __init__(self, partition: Partition, monotonic: Callable[[], float]) -> None:
        self.partition = partition
        self.state = HealState.FOUND
        self.found_s = monotonic()
        """When the damage was found, in monotonic seconds."""
        self.healed_ranges = 0
        """The number of damaged ranges that have been replaced since ``found_s``."""
        self.failures = 0
        """The number of consecutive failed attempts to heal the log."""
        self.reports = GrowingInterval(monotonic)
        """Times the log lines about damage that no other replica can heal."""
        self.interruptions = GrowingInterval(monotonic)
        """Times the log lines about damage that this broker cannot replace now."""
        self.handed_over_s = float("-inf")
        """When this broker last asked the controller to elect another leader, in monotonic seconds."""
        self.wakeup = asyncio.Event()
        """Set when the other replicas should be asked again immediately."""

    def step(self, event: HealEvent) -> None:
        """Move to the state that follows ``event``. Raises IllegalStep if the table does not contain the transition."""
        self.state = step(f"healing {self.partition!r}", _STEPS, self.state, event)

    def must_hand_over(self, live: Set[int], now_s: float) -> bool:
        """Return True if this broker leads, another live member of the ISR can lead while this broker heals the log,
        and the last attempt to hand over is at least ``HAND_OVER_PAUSE_S`` ago."""
        partition = self.partition
        others = live & set(partition.state.isr) - {partition.broker_id}
        return partition.is_leader and bool(others) and now_s - self.handed_over_s >= HAND_OVER_PAUSE_S

    @property
    def retry_s(self) -> float:
        """The time to wait before asking the other replicas again, in seconds."""
        return min(RETRY_MAX_S, RETRY_FIRST_S * (1 << min(self.failures, 16)))

    async def until_retry(self) -> None:
        """Wait for ``retry_s``, or until ``wakeup`` is set."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.retry_s):
                await self.wakeup.wait()

    @property
    def facts(self) -> dict[str, object]:
        """The fields that name the partition in a log line."""
        return {"topic": self.partition.topic, "partition": self.partition.index}


def sources(state: PartitionState, broker_id: int, live: Set[int]) -> list[int]:
    """Return the live replicas that may contain the records that are damaged on ``broker_id``, the best source first.

    The leader defines the log. The other members of the ISR contain the whole log. A replica outside the ISR may
    contain the damaged range, although its log ends earlier than the leader's.
    """
    others = [replica for replica in state.replicas if replica != broker_id and replica in live]
    return sorted(others, key=lambda replica: (replica != state.leader, replica not in state.isr))
