"""Writes log lines about partitions without a leader: what they wait for, and what the operator can do.

* A partition that waits for reports of replicas that may have lost records is logged immediately, but not in the first
  ``RESTART_S`` of the controller's term: if the store was restored, for example, all brokers are still starting.
* A partition that waits for an eligible replica is logged only after it has waited for ``RESTART_S``: the broker may be
  restarting, or the cluster may be starting.
* A line is repeated at growing intervals while any partition waits, and immediately if the awaited brokers change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER
from parley.light_dataclasses import dataclass

_log = logging.getLogger(__name__)

CHECK_S = 5.0
"""The interval at which the controller checks whether a log line is due."""
RESTART_S = 15.0
"""How long a broker may take to restart before a partition that waits for it is logged."""
TOPICS_MAX = 5
"""The maximum number of topics that one line names."""

_AWAITS_BROKERS = (
    "partitions without a leader wait for brokers that may have their last records: start these brokers with their "
    "disks, or accept the loss with `parley elect-leaders --election-type unclean --topic TOPIC --partition N`"
)
_AWAITS_OPERATOR = (
    "partitions have no leader, and unclean.recovery.strategy=None forbids the controller to elect one: run "
    "`parley elect-leaders --election-type unclean --topic TOPIC --partition N`, or set another strategy"
)


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a partition without a leader waits."""

    brokers: tuple[int, ...]
    """The brokers whose return or report is awaited. If empty, only an operator can have a leader elected."""
    is_ordinary: bool = False
    """True if the wait also occurs when brokers restart without trouble. It is logged only if it lasts for
    ``RESTART_S``."""


class LeaderlessLog:
    """Logs what partitions without a leader wait for, during one term of this broker as the controller."""

    def __init__(self, metadata: Metadata, monotonic: Callable[[], float]) -> None:
        self._metadata = metadata
        self._monotonic = monotonic
        self._waits: dict[tuple[str, int], Wait] = {}
        self._since_s: dict[tuple[str, int], float] = {}
        self._first_s: float | None = None  # the time of the first ``note``, at the beginning of the term
        self._lines = {message: _Line(message, monotonic) for message in (_AWAITS_BROKERS, _AWAITS_OPERATOR)}

    async def run(self) -> None:
        """Write the log lines that become due while partitions wait, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.note(self._waits)

    def note(self, waits: Mapping[tuple[str, int], Wait]) -> None:
        """Record what each partition without a leader now waits for, and write the log lines that are due."""
        image, now = self._metadata.image, self._monotonic()
        states = ((key, image.partition(*key)) for key in waits)
        self._waits = {key: waits[key] for key, state in states if state is not None and state.leader == NO_LEADER}
        self._since_s = {key: self._since_s.get(key, now) for key in self._waits}
        first_s = self._first_s = now if self._first_s is None else self._first_s
        lasting = {
            key: wait
            for key, wait in self._waits.items()
            if now - (self._since_s[key] if wait.is_ordinary else first_s) >= RESTART_S
        }
        self._lines[_AWAITS_BROKERS].note({key: wait for key, wait in lasting.items() if wait.brokers})
        self._lines[_AWAITS_OPERATOR].note({key: wait for key, wait in lasting.items() if not wait.brokers})


class _Line:
    """One kind of log line, repeated at growing intervals while partitions wait. A change in the awaited brokers
    restarts the intervals."""

    def __init__(self, message: str, monotonic: Callable[[], float]) -> None:
        self._message = message
        self._interval = GrowingInterval(monotonic)
        self._named: frozenset[int] = frozenset()  # the brokers in the last log line

    def note(self, waits: Mapping[tuple[str, int], Wait]) -> None:
        brokers = frozenset(broker for wait in waits.values() for broker in wait.brokers)
        if not waits or brokers != self._named:
            self._interval.restart()
        self._named = brokers
        if waits and self._interval.claim_line():
            topics = sorted({topic for topic, _ in waits})
            facts = {
                "partitions": len(waits),
                "topics": ", ".join(topics[:TOPICS_MAX]) + (", ..." if len(topics) > TOPICS_MAX else ""),
            }
            _log.warning(self._message, extra={**facts, "brokers": sorted(brokers)} if brokers else facts)
