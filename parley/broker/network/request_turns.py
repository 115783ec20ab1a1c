"""The order in which the next requests of connections begin, and how long they occupy the event loop before other work.

``parley.broker.runtime.turns`` divides long work, such as one large request, into turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Final

from parley.broker.runtime.round_robin import RoundRobin

SHARE_S: Final = 0.05
"""How long, in seconds, the requests of all connections may take before the event loop does other work. A broker must
renew its session and fetch from leaders, however many clients flood it with requests."""
ONLY_URGENT_S: Final = 0.001
"""How long, in seconds, requests may take before all requests that are not urgent wait until the event loop has read
from the sockets again: an urgent request may have arrived. Reading takes about 10 microseconds."""


class RequestTurns:
    """The connections whose next request waits for its turn. Clients take turns, regardless of how many connections
    each of them has."""

    def __init__(self) -> None:
        self._used_s = 0.0
        self._waiting: RoundRobin[Callable[[], None]] = RoundRobin()
        self._is_scheduled = False
        self.are_over = False
        """True if no request may begin before the event loop has done other work."""
        self.only_urgent = False
        """True if only an urgent request may begin before the event loop has read from the sockets."""

    def used(self, seconds: float) -> None:
        """Count ``seconds`` that requests have occupied the event loop."""
        self._used_s += seconds
        if self._used_s >= ONLY_URGENT_S:
            self.only_urgent = True
            self.are_over = self._used_s >= SHARE_S
            self._schedule()

    def wait(self, client: Hashable, proceed: Callable[[], None]) -> None:
        """Call ``proceed`` when the event loop has done other work, after the connections of ``client`` that are
        already waiting."""
        self._waiting.add(client, proceed)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._used_s, self.are_over, self.only_urgent, self._is_scheduled = 0.0, False, False, False
        try:
            for _ in range(len(self._waiting)):
                if self.only_urgent:
                    break
                self._waiting.pop()()
        finally:  # an error in one connection must not make other connections wait forever
            if self._waiting:
                self._schedule()
