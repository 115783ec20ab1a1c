"""A session: the time during which the store is certain to consider a client alive.

``SessionState``, ``SessionEvent`` and ``STEPS`` define the states, the events and the legal transitions. LOST is final.
Any other transition raises ``IllegalStep``.

Deadlines count from the moment when a renewal was *sent*, so a session is LOST for the client before it expires in the
store: the store cannot expire a session earlier than one TTL after that moment. Reading ``state`` compares the clock
with the deadlines, because timers may be late: a process that was stopped for longer than its TTL first sees LOST.
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
    """Not renewed in time, or disconnected. May become CONNECTED again. Do not start anything that relies on the
    session."""
    LOST = "lost"
    """Ended permanently. The store deletes its keys, if it has not done so yet, and rejects writes bound to the
    session."""


class SessionEvent(Enum):
    """An event that changes the state of a session."""

    RENEWED = "renewed"
    """The store confirmed a renewal that was sent less than two thirds of the TTL ago."""
    DISCONNECTED = "disconnected"
    """The connection to the store broke."""
    OVERDUE = "overdue"
    """Two thirds of the TTL have passed since the latest confirmed renewal was sent."""
    EXPIRED = "expired"
    """The TTL has passed since the latest confirmed renewal was sent."""
    ENDED = "ended"
    """The client closed the session, or the store reported that it has ended."""


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
    """A session that ``Backend.open_session`` has opened. The backend renews it until it is closed or LOST."""

    def __init__(self, session_id: str, ttl_ms: int, sent_at: float) -> None:
        """For backends: create a session that the store has confirmed. Its request was sent at the loop time
        ``sent_at``."""
        self.id = session_id
        """The store's name for the session, as in ``Entry.session``. Use it only for display and comparisons."""
        self.ttl_ms = ttl_ms
        """The TTL that the store granted, in milliseconds."""
        self.lost = asyncio.Event()
        """Set once the session is LOST, including after ``close``."""
        self._loop = asyncio.get_running_loop()
        self._sent_at = sent_at
        self._state = SessionState.CONNECTED
        self._callbacks: list[Callable[[SessionState], None]] = []
        self._deadline_timer = self._loop.call_at(self.safe_until, self._on_deadline)

    @property
    def safe_until(self) -> float:
        """The loop time until which no store can have ended this session: two thirds of the TTL after the last renewal
        was sent."""
        return self._sent_at + SAFE_FRACTION * self.ttl_ms / 1000

    @property
    def unrenewed_s(self) -> float:
        """Seconds since the last confirmed renewal was sent."""
        return self._loop.time() - self._sent_at

    @property
    def state(self) -> SessionState:
        """The current state according to the clock. Reading it can itself reveal that the session is lost."""
        self._check_deadlines()
        return self._state

    def require(self) -> None:
        """Raise SessionLost if the session is LOST."""
        if self.state is SessionState.LOST:
            raise SessionLost(f"session {self.id} is lost")

    def add_callback(self, callback: Callable[[SessionState], None]) -> None:
        """Call ``callback(state)`` at each change of state; for LOST, after ``lost`` is set. The callback must not
        raise."""
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
        """End the session: it becomes LOST, and the store deletes its keys immediately. Idempotent.

        Raises Unavailable if the store cannot be reached. The session is LOST here nevertheless, and the store deletes
        its keys when the session expires there.
        """

    # --- For backends ---

    def renewed(self, sent_at: float) -> bool:
        """Record that the store confirmed a renewal sent at this loop time. Returns False if the session was already
        LOST here."""
        self._check_deadlines()
        if self._state is SessionState.LOST:
            return False
        self._sent_at = max(self._sent_at, sent_at)
        if self._loop.time() < self.safe_until:
            self._on_event(SessionEvent.RENEWED)
        return True

    def suspend(self) -> None:
        """Record that the connection to the store broke. Raises IllegalStep if the session is LOST."""
        self._on_event(SessionEvent.DISCONNECTED)

    def lose(self) -> None:
        """Record that the store reported the end of the session, or that the client closed it. Idempotent."""
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
