"""When to log an event that repeats: immediately, and then after growing pauses."""

from __future__ import annotations

from collections.abc import Callable

FIRST_PAUSE_S = 5.0
PAUSE_MAX_S = 300.0


class GrowingInterval:
    """Times the log lines of one kind of event. The pause doubles after each line, up to ``PAUSE_MAX_S``."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._due_s: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def claim_line(self) -> bool:
        """Return True if the caller must log the event now. This starts the next pause, so call it once per event."""
        now = self._monotonic()
        if self._due_s is None:
            self._pause_s = FIRST_PAUSE_S
        elif now < self._due_s:
            return False
        self._due_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return True

    def restart(self) -> None:
        """Start over: the next event is logged immediately."""
        self._due_s = None
