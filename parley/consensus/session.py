"""A session: the span in which a client is certainly alive in the eyes of the store.

::

    CONNECTED --no renewal until safe_until, or the connection broke--> SUSPENDED
    SUSPENDED --renewed--> CONNECTED
    CONNECTED, SUSPENDED --the store says so, TTL since the last renewal, or closed--> LOST        (final)

Deadlines count from the moment a renewal was *sent*, so a client always gives up before the store does: the store
cannot expire a session earlier than one TTL after that moment. What ``state`` answers is judged by the clock at the
moment of asking, not by timers that may be late: a process stopped for longer than its TTL sees LOST first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum

from parley.consensus.errors import SessionLost

SAFE_FRACTION = 2 / 3


class SessionState(Enum):
    """Where a session stands."""

    CONNECTED = "connected"
    """Renewed less than two thirds of the TTL ago."""
    SUSPENDED = "suspended"
    """Not renewed in time, or out of touch. May come back. Start nothing that relies on the session."""
    LOST = "lost"
    """Over for good. Its keys are gone or going; writes bound to it are refused by the store."""


_NEXT: dict[SessionState, frozenset[SessionState]] = {
    SessionState.CONNECTED: frozenset({SessionState.SUSPENDED, SessionState.LOST}),
    SessionState.SUSPENDED: frozenset({SessionState.CONNECTED, SessionState.LOST}),
    SessionState.LOST: frozenset(),
}


class Session(ABC):
    """What a backend's ``open_session`` gives; the backend renews it by itself until ``close`` or LOST.

    :ivar id: the store's name for it, as in ``Entry.session``; for people and comparisons only.
    :ivar ttl_ms: time to live in milliseconds.
    :ivar lost: set once the session is LOST, ``close`` included.
    """

    def __init__(self, session_id: str, ttl_ms: int, sent_at: float) -> None:
        """For backends: a session confirmed by the store, whose opening was sent at the loop time ``sent_at``."""
        self.id = session_id
        self.ttl_ms = ttl_ms
        self.lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._sent_at = sent_at
        self._state = SessionState.CONNECTED
        self._callbacks: list[Callable[[SessionState], None]] = []
        self._timer = self._loop.call_at(self.safe_until, self._on_timer)

    @property
    def safe_until(self) -> float:
        """The loop time until which no store can have given this session up: last renewal sent + 2/3 TTL."""
        return self._sent_at + SAFE_FRACTION * self.ttl_ms / 1000

    @property
    def state(self) -> SessionState:
        """The state now; going by the clock, so asking can itself be what notices the loss."""
        self._observe()
        return self._state

    def require(self) -> None:
        """Do nothing unless the session is LOST.

        :raises SessionLost: it is.
        """
        if self.state is SessionState.LOST:
            raise SessionLost(f"session {self.id} is lost")

    def add_callback(self, callback: Callable[[SessionState], None]) -> None:
        """Call ``callback(state)`` at each change of state, on LOST after ``lost`` is set. It must not raise."""
        self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[SessionState], None]) -> None:
        """Undo ``add_callback``; nothing happens if it was not added."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def wait_for(self, *states: SessionState) -> SessionState:
        """Wait until the session is in one of these states, and return it.

        :raises SessionLost: it is LOST, and none of these states can come any more.
        """
        while True:
            if (state := self.state) in states:
                return state
            self.require()
            change: asyncio.Future[SessionState] = self._loop.create_future()

            def on_change(
                to: SessionState, change: asyncio.Future[SessionState] = change
            ) -> None:  # bound now: one future per round
                if not change.done():
                    change.set_result(to)

            self.add_callback(on_change)
            try:
                if await change in states:
                    return change.result()
            finally:
                self.remove_callback(on_change)

    @abstractmethod
    async def close(self) -> None:
        """End the session: LOST from now on, its keys deleted at once. Idempotent.

        :raises Unavailable: the store cannot be reached; the session is LOST here all the same and its keys go
            when the store expires it.
        """

    # For backends.

    def renewed(self, sent_at: float) -> bool:
        """The store confirmed a renewal sent at this loop time. False: too late, the session had been given up."""
        self._observe()
        if self._state is SessionState.LOST:
            return False
        self._sent_at = max(self._sent_at, sent_at)
        if self._loop.time() < self.safe_until:
            self._enter(SessionState.CONNECTED)
        return True

    def suspend(self) -> None:
        """The connection to the store broke."""
        self._enter(SessionState.SUSPENDED)

    def lose(self) -> None:
        """The store said that the session is over, or it was closed."""
        self._enter(SessionState.LOST)

    def _observe(self) -> None:
        now = self._loop.time()
        if now >= self._sent_at + self.ttl_ms / 1000:
            self._enter(SessionState.LOST)
        elif now >= self.safe_until:
            self._enter(SessionState.SUSPENDED)

    def _on_timer(self) -> None:
        self._observe()
        if self._state is SessionState.LOST:
            return
        now = self._loop.time()
        deadline = self.safe_until if now < self.safe_until else self._sent_at + self.ttl_ms / 1000
        self._timer = self._loop.call_at(deadline, self._on_timer)

    def _enter(self, state: SessionState) -> None:
        if state not in _NEXT[self._state]:
            return
        self._state = state
        if state is SessionState.LOST:
            self._timer.cancel()
            self.lost.set()
        for callback in tuple(self._callbacks):
            callback(state)
