"""Places: a limit on the work that is in progress, in total and for each client.

A free place goes to the client that has waited longest since it last got one, for the oldest work of this client. So a
client with much work delays its own work, and hardly that of any other client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable

from parley.broker.runtime.round_robin import RoundRobin


class Place:
    """Permission for one piece of a client's work to be in progress. Call ``end`` when the work is done, or when all
    that remains is to wait for an event."""

    def __init__(self, places: Places, client: Hashable) -> None:
        self._places = places
        self._client = client
        self._has_ended = False

    def end(self) -> None:
        """Give the place to other work. Idempotent."""
        if not self._has_ended:
            self._has_ended = True
            self._places.ended(self._client)


class Places:
    """``number`` places, of which each client has at most ``of_a_client``."""

    def __init__(self, number: int, of_a_client: int) -> None:
        self._number = number
        self._of_a_client = of_a_client
        self._in_progress: Counter[Hashable] = Counter()
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    def take_at_once(self, client: Hashable) -> Place | None:
        """Return a place for a client, or None if the client must wait. The caller must end the place."""
        if not self._is_allowed(client):
            return None
        self._in_progress[client] += 1
        return Place(self, client)

    async def take(self, client: Hashable) -> Place:
        """Wait until the client gets a place, and return the place. The caller must end it."""
        if (place := self.take_at_once(client)) is not None:
            return place
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(client, admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():
                self.ended(client)
            raise
        return Place(self, client)

    def ended(self, client: Hashable) -> None:
        """Free one place of a client, and give it to waiting work. Called by ``Place.end``."""
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]
        while (found := self._waiting.pop_allowed(self._is_allowed)) is not None:
            admitted_client, admitted = found
            if not admitted.done():  # otherwise it was cancelled
                self._in_progress[admitted_client] += 1
                admitted.set_result(None)

    def _is_allowed(self, client: Hashable) -> bool:
        return self._in_progress.total() < self._number and self._in_progress[client] < self._of_a_client
