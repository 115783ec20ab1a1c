"""The timers of one shard: each submits its event when it is due.

Setting a timer replaces the timer with the same key. If the replaced timer was already due but its event has not had
its turn, the event does nothing, so a heartbeat that arrives just in time counts. An event that fails is submitted
again after a pause, unless its key was set or cancelled in the meantime. The event's own decision may have done that:
a decision is applied even if its reply fails because the replicas are slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final

from parley.broker.coordinators.decision import Decision, Timer
from parley.broker.coordinators.patient_timer import PatientTimer
from parley.protocol.errors import KafkaError

RETRY_MS: Final = 500
"""The pause before a timer's failed event is submitted again, as in Kafka."""


class _Running:
    """A timer that is set, and whose event has not been decided yet."""

    __slots__ = ("alarm", "timer")

    def __init__(self, timer: Timer, due: Callable[[_Running], None]) -> None:
        self.timer = timer
        self.alarm = PatientTimer(timer.delay_ms / 1000, lambda: due(self), once=not timer.is_patient)

    def prolong(self, timer: Timer) -> bool:
        """Use ``timer`` from now on, but keep the alarm, which is cheaper than a new one. Returns False, and changes
        nothing, if ``timer`` needs a new alarm."""
        if timer.is_patient is self.timer.is_patient and self.alarm.prolong(timer.delay_ms / 1000):
            self.timer = timer
            return True
        return False


class ShardTimers:
    """The timers of one shard, by key."""

    def __init__(self, submit: Callable[[Callable[[Any, int], Decision[Any]]], asyncio.Future[Any]]) -> None:
        """``submit`` is the ``submit`` method of the shard."""
        self._submit = submit
        self._running: dict[Hashable, _Running] = {}
        self._decided: dict[Hashable, _Running] = {}
        """The timers whose events have been decided and wait for the replicas. Setting or cancelling a key removes its
        entry."""
        self._is_closed = False

    def set(self, timers: Mapping[Hashable, Timer | None]) -> None:
        """Set timers by key, each in place of the timer with the same key. None only cancels that timer."""
        for key, timer in timers.items():
            if self._decided:
                self._decided.pop(key, None)
            running = self._running.get(key)
            if running is not None:
                if timer is not None and running.prolong(timer):
                    continue
                running.alarm.cancel()
                del self._running[key]
            if timer is not None:
                self._running[key] = _Running(timer, partial(self._due, key))

    def close(self) -> None:
        """Cancel all timers, and stop submitting failed events again."""
        self._is_closed = True
        for running in self._running.values():
            running.alarm.cancel()
        self._running.clear()
        self._decided.clear()

    def _due(self, key: Hashable, running: _Running) -> None:
        timer = running.timer
        try:
            deciding = self._submit(partial(self._decide, key, running))
        except KafkaError:
            del self._running[key]
            self._retry(key, timer)
        else:
            deciding.add_done_callback(partial(self._ended, key, running))

    def _decide(self, key: Hashable, running: _Running, state: Any, now_ms: int) -> Decision[Any]:
        if self._running.get(key) is not running:
            return Decision(None)
        del self._running[key]
        self._decided[key] = running
        return running.timer.event(state, now_ms)

    def _ended(self, key: Hashable, running: _Running, done: asyncio.Future[Any]) -> None:
        has_failed = done.cancelled() or done.exception() is not None
        if self._decided.get(key) is running:
            del self._decided[key]
            if has_failed:
                self._retry(key, running.timer)

    def _retry(self, key: Hashable, timer: Timer) -> None:
        if not self._is_closed and key not in self._running:
            self.set({key: Timer(RETRY_MS, timer.event, timer.is_patient)})
