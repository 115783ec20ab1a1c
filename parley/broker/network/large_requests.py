"""Places for large requests: those with so many elements that a thread decodes them.

Rules:

1. ``PLACES`` large requests are in progress at the same time, ``PLACES_OF_A_CLIENT`` of them by the same client. A
   client is a user, or a host if the user is unknown.
2. A request without a place waits as bytes. Decoded, it would take up to forty times the memory.
3. The next place goes to the client that has waited longest since it got a place, and to the oldest request of this
   client. So a client with many large requests delays its own requests, and hardly any others.
4. The waiting requests of a client take at most ``WAITING_BYTES_MAX``. Further ones are refused.
5. A request that only waits for an event gives its place back.
6. ``Load`` does not count large requests, because those of one client could keep all other requests from beginning.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable
from typing import Final

from parley.broker.network.request_context import Disconnect
from parley.broker.runtime.round_robin import RoundRobin
from parley.broker.security.session import ClientSession

PLACES: Final = 8
PLACES_OF_A_CLIENT: Final = 2
"""The second request is decoded while the parts of the first take their turns on the event loop."""
WAITING_BYTES_MAX: Final = 64 << 20


class Place:
    """The right to be in progress. Call ``end`` when the request has been handled, or only waits for an event."""

    def __init__(self, requests: LargeRequests, client: Hashable) -> None:
        self._requests = requests
        self._client = client
        self._has_ended = False

    def end(self) -> None:
        """Give the place to another request. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._requests.ended(self._client)


class LargeRequests:
    """The large requests of all connections of a broker."""

    def __init__(self) -> None:
        self._in_progress: Counter[Hashable] = Counter()
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()
        self._waiting_bytes: Counter[Hashable] = Counter()

    async def begin(self, session: ClientSession, size_bytes: int) -> Place:
        """Wait for a place. Raises Disconnect if the waiting requests of the client already take too much memory."""
        client = session.user_or_host
        if self._has_place(client):
            self._in_progress[client] += 1
        else:
            await self._wait(client, size_bytes)
        return Place(self, client)

    def ended(self, client: Hashable) -> None:
        """Give the place of a client's request to the next request."""
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]
        self._admit()

    def _has_place(self, client: Hashable) -> bool:
        return self._in_progress.total() < PLACES and self._in_progress[client] < PLACES_OF_A_CLIENT

    async def _wait(self, client: Hashable, size_bytes: int) -> None:
        held = self._waiting_bytes[client]
        if held and held + size_bytes > WAITING_BYTES_MAX:
            raise Disconnect("too many large requests of this client wait already")
        self._waiting_bytes[client] += size_bytes
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.ended(client)
            raise
        finally:
            self._waiting_bytes[client] -= size_bytes
            if not self._waiting_bytes[client]:
                del self._waiting_bytes[client]

    def _admit(self) -> None:
        while (found := self._waiting.pop_allowed(self._has_place)) is not None:
            client, admitted = found
            if not admitted.done():  # otherwise it was cancelled
                self._in_progress[client] += 1
                admitted.set_result(None)
