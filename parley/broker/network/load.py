"""The load that all listeners of a broker share: requests in progress, and memory for large requests."""

from __future__ import annotations

from collections.abc import Callable


class Load:
    """The broker's current load, compared with its limits.

    ``queued.max.requests`` bounds the requests being worked on, without those that only wait for an event. At the limit
    no connection begins a request. ``queued.max.request.bytes`` bounds the bytes of large requests that are received or
    worked on; the number of requests bounds the small ones. A connection whose large request would exceed it stops
    reading, unless no other request holds memory. Waiting connections resume when a request ends. While
    ``lacks_memory`` is set, large requests come one at a time.
    """

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self.lacks_memory = False
        self.requests_in_progress = 0
        self.request_bytes_held = 0

    @property
    def is_full(self) -> bool:
        """True if no further request may begin."""
        return self.requests_in_progress >= self._requests_max

    def begin(self) -> None:
        """Count a request in."""
        self.requests_in_progress += 1

    def end(self) -> None:
        """Count a request out."""
        self.requests_in_progress -= 1
        self._ease()

    def reserve(self, size: int) -> bool:
        """Reserve memory for a large request. Returns False if it must wait."""
        held = self.request_bytes_held
        if held and (self.lacks_memory or 0 <= self._bytes_max < held + size):
            return False
        self.request_bytes_held = held + size
        return True

    def release(self, size: int) -> None:
        """Give back reserved memory."""
        self.request_bytes_held -= size
        self._ease()

    def call_when_eased(self, eased: Callable[[], None]) -> None:
        """Call ``eased`` once, when a request ends or memory is released. It must check for itself whether there is
        room."""
        self._waiting.append(eased)

    def _ease(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for eased in waiting:
                eased()
