"""The load that all listeners of a broker share: requests in progress, memory for large requests and for responses that
clients do not read, and time on the event loop (``request_turns``)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Protocol

from parley.broker.network.request_turns import RequestTurns
from parley.broker.network.unread_responses import UnreadResponses

CHECK_S = 1.0
"""The interval, in seconds, at which the time of large requests is counted, and slow connections are closed if other
requests wait for their memory."""


class Receiver(Protocol):
    """A connection that holds memory for a large request that is not being handled yet."""

    def count_receiving(self, seconds: float) -> None:
        """Count the time since the last call if the broker is reading the request or the client holds it up.

        ``seconds`` is the interval of these calls: time during which the event loop was blocked does not count.
        """

    def close_if_slow(self) -> None:
        """Close the connection if its request arrives too slowly or its client holds it up too long."""


class Load:
    """The broker's current load, compared with its limits.

    ``queued.max.requests`` limits the requests in progress, not counting requests that only wait for an event. At the
    limit, no connection begins a request. One client may have half of them in progress, so that it cannot keep all
    others from beginning. ``queued.max.request.bytes`` limits the bytes of large requests that are
    being received or are in progress. (Small requests are limited by their number.) If a large request would exceed
    this limit, its connection stops reading, unless no other request holds memory. Waiting connections resume when a
    request ends. While a connection waits, slow connections that hold memory are closed: a client cannot occupy memory
    by sending half a request. While ``lacks_memory`` is set, large requests are received one at a time.
    """

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._of_a_client_max = (requests_max + 1) // 2
        self._bytes_max = bytes_max
        self._waiting: list[Callable[[], None]] = []
        self._receivers: set[Receiver] = set()
        self._is_short = False  # a request waits for memory
        self._watch: asyncio.TimerHandle | None = None
        self.turns = RequestTurns()
        self.unread_responses = UnreadResponses()
        self.lacks_memory = False
        self._of_clients: Counter[Hashable] = Counter()
        self.requests_in_progress = 0
        self.request_bytes_held = 0

    @property
    def is_crowded(self) -> bool:
        """True if ``has_room`` may return False. Check this first, because it is cheaper than ``has_room``."""
        return self.requests_in_progress >= self._of_a_client_max

    def has_room(self, client: Hashable) -> bool:
        """Return True if a further request of the client may begin."""
        return self.requests_in_progress < self._requests_max and self._of_clients[client] < self._of_a_client_max

    def begin(self, client: Hashable) -> None:
        """Count the start of a request. The caller must call ``end`` when the request has ended."""
        self.requests_in_progress += 1
        self._of_clients[client] += 1

    def end(self, client: Hashable) -> None:
        """Count the end of a request, and call back the connections that wait for room."""
        self.requests_in_progress -= 1
        self._of_clients[client] -= 1
        if not self._of_clients[client]:
            del self._of_clients[client]
        self._ease()

    def reserve(self, size: int, receiver: Receiver) -> bool:
        """Reserve ``size`` bytes of memory for a large request. Returns False if the request must wait.

        The caller must call ``received`` and ``release`` for memory that it has reserved. Until ``received`` is called,
        the receiver may be closed to free the memory.
        """
        held = self.request_bytes_held
        if held and (self.lacks_memory or 0 <= self._bytes_max < held + size):
            self._is_short = True
            self._watch_receivers()
            return False
        self.request_bytes_held = held + size
        self._receivers.add(receiver)
        self._watch_receivers()
        return True

    def received(self, receiver: Receiver) -> None:
        """Record that the handling of a large request starts, or that the request was abandoned. ``release`` frees its
        memory later."""
        self._receivers.discard(receiver)

    def _watch_receivers(self) -> None:
        if self._watch is None:
            self._watch = asyncio.get_running_loop().call_later(CHECK_S, self._check_receivers)

    def _check_receivers(self) -> None:
        self._watch = None
        for receiver in tuple(self._receivers):
            receiver.count_receiving(CHECK_S)
            if self._is_short:
                receiver.close_if_slow()
        if self._is_short:
            self._ease()  # the waiting connection may be closed: connections that still lack memory set the flag again
        if self._is_short or self._receivers:
            self._watch_receivers()

    def release(self, size: int) -> None:
        """Free ``size`` bytes of reserved memory."""
        self.request_bytes_held -= size
        self._ease()

    def call_when_eased(self, eased: Callable[[], None]) -> None:
        """Call ``eased`` once, when a request ends or memory is released. ``eased`` must check whether there is
        room."""
        self._waiting.append(eased)

    def _ease(self) -> None:
        self._is_short = False  # connections that still lack memory set it again
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for eased in waiting:
                eased()
