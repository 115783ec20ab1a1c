"""A session: the time during which the store certainly considers a client alive.

The states, the events that change them and the legal steps are ``SessionState``, ``SessionEvent`` and ``STEPS``. LOST
is final. Any other step raises ``IllegalStep``.

Deadlines count from the moment a renewal was *sent*, so the client always gives up before the store does: the store
cannot expire a session earlier than one TTL after that moment. ``state`` compares the clock with the deadlines itself,
because timers may be late: a process that was stopped for longer than its TTL sees LOST first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum

from parley.consensus.errors import IllegalStep, SessionLost

SAFE_FRACTION = 2 / 3


class SessionState(Enum):
    """The state of a session."""

    CONNECTED = "connected"
    """Renewed less than two thirds of the TTL ago."""
    SUSPENDED = "suspended"
    """Not renewed in time, or disconnected. May become CONNECTED again. Start nothing that relies on the session."""
    LOST = "lost"
    """Over for good. The store deletes its keys, if it has not yet, and refuses writes bound to it."""


class SessionEvent(Enum):
    """What changes the state of a session."""

    RENEWED = "renewed"
    """The store confirmed a renewal that was sent less than two thirds of the TTL ago."""
    DISCONNECTED = "disconnected"
    """The connection to the store broke."""
    OVERDUE = "overdue"
    """Two thirds of the TTL have passed since the latest confirmed renewal was sent."""
    EXPIRED = "expired"
    """The TTL has passed since the latest confirmed renewal was sent."""
    ENDED = "ended"
    """The client closed the session, or the store said that it is over."""


STEPS: Mapping[SessionState, Mapping[SessionEvent, SessionState]] = {
    SessionState.CONNECTED: {
        SessionEvent.RENEWED: SessionState.CONNECTED,
        SessionEvent.DISCONNECTED: SessionState.SUSPENDED,
        SessionEvent.OVERDUE: SessionState.SUSPENDED,
        SessionEvent.EXPIRED: SessionState.LOST,
        SessionEvent.ENDED: SessionState.LOST,
    },
    SessionState.SUSPENDED: {
        SessionEvent.RENEWED: SessionState.CONNECTED,
        SessionEvent.DISCONNECTED: SessionState.SUSPENDED,
        SessionEvent.OVERDUE: SessionState.SUSPENDED,
        SessionEvent.EXPIRED: SessionState.LOST,
        SessionEvent.ENDED: SessionState.LOST,
    },
    SessionState.LOST: {
        SessionEvent.ENDED: SessionState.LOST,  # closed by the client, and then reported by the store
    },
}


class Session(ABC):
    """The result of a backend's ``open_session``. The backend renews it until ``close`` or LOST."""

    def __init__(self, session_id: str, ttl_ms: int, sent_at: float) -> None:
        """For backends: a session that the store confirmed, whose request was sent at the loop time ``sent_at``."""
        self.id = session_id
        """The store's name for the session, as in ``Entry.session``; for people and comparisons only."""
        self.ttl_ms = ttl_ms
        """Time to live in milliseconds."""
        self.lost = asyncio.Event()
        """Set once the session is LOST, also by ``close``."""
        self._loop = asyncio.get_running_loop()
        self._sent_at = sent_at
        self._state = SessionState.CONNECTED
        self._callbacks: list[Callable[[SessionState], None]] = []
        self._deadline_timer = self._loop.call_at(self.safe_until, self._on_deadline)

    @property
    def safe_until(self) -> float:
        """The loop time until which no store can have ended this session: last renewal sent + 2/3 TTL."""
        return self._sent_at + SAFE_FRACTION * self.ttl_ms / 1000

    @property
    def unrenewed_s(self) -> float:
        """Seconds since the last confirmed renewal was sent."""
        return self._loop.time() - self._sent_at

    @property
    def state(self) -> SessionState:
        """The current state by the clock. Reading it can itself be the moment at which the loss is noticed."""
        self._check_deadlines()
        return self._state

    def require(self) -> None:
        """Raise SessionLost if the session is LOST."""
        if self.state is SessionState.LOST:
            raise SessionLost(f"session {self.id} is lost")

    def add_callback(self, callback: Callable[[SessionState], None]) -> None:
        """Call ``callback(state)`` at each change of state; on LOST after ``lost`` is set. It must not raise."""
        self._callbacks.append(callback)

    def remove_callback(self, callback: Callable[[SessionState], None]) -> None:
        """Undo ``add_callback``. Does nothing if the callback was not added."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    async def wait_for(self, *states: SessionState) -> SessionState:
        """Wait until the session is in one of these states, and return that state.

        Raises SessionLost if the session becomes LOST and LOST is not one of these states.
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
        """End the session: it is LOST from now on, and the store deletes its keys at once. Idempotent.

        Raises Unavailable if the store cannot be reached. The session is LOST here all the same, and the store deletes
        its keys when the session expires there.
        """

    # --- For backends ---

    def renewed(self, sent_at: float) -> bool:
        """The store confirmed a renewal sent at this loop time. Returns False if the session was already LOST here."""
        self._check_deadlines()
        if self._state is SessionState.LOST:
            return False
        self._sent_at = max(self._sent_at, sent_at)
        if self._loop.time() < self.safe_until:
            self._on_event(SessionEvent.RENEWED)
        return True

    def suspend(self) -> None:
        """The connection to the store broke. Raises IllegalStep if the session is LOST."""
        self._on_event(SessionEvent.DISCONNECTED)

    def lose(self) -> None:
        """The store said that the session is over, or the client closed it. Idempotent."""
        self._on_event(SessionEvent.ENDED)

    def _check_deadlines(self) -> None:
        if self._state is SessionState.LOST:
            return
        now = self._loop.time()
        if now >= self._sent_at + self.ttl_ms / 1000:
            self._on_event(SessionEvent.EXPIRED)
        elif now >= self.safe_until:
            self._on_event(SessionEvent.OVERDUE)

    def _on_deadline(self) -> None:
        self._check_deadlines()
        if self._state is SessionState.LOST:
            return
        now = self._loop.time()
        deadline = self.safe_until if now < self.safe_until else self._sent_at + self.ttl_ms / 1000
        self._deadline_timer = self._loop.call_at(deadline, self._on_deadline)

    def _on_event(self, event: SessionEvent) -> None:
        state = STEPS[self._state].get(event)
        if state is None:
            raise IllegalStep(f"session {self.id}", event.name, self._state.name)
        if state is self._state:
            return
        self._state = state
        if state is SessionState.LOST:
            self._deadline_timer.cancel()
            self.lost.set()
        for callback in tuple(self._callbacks):
            callback(state)
