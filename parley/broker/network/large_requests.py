"""Places for large requests: those with so many elements that a thread decodes them.

Rules:

1. ``PLACES`` large requests are in progress at the same time, ``PLACES_OF_A_CLIENT`` of them by the same client. A
   client is a user, or a host if the user is unknown.
2. A request without a place waits as bytes. Decoded, it would take up to forty times the memory.
3. Clients take turns (``parley.broker.runtime.places``).
4. The waiting requests of a client take at most ``WAITING_BYTES_MAX``. Further ones are refused.
5. A request that only waits for an event gives its place back.
6. ``Load`` does not count large requests, because those of one client could keep all other requests from beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Final

from parley.broker.network.request_context import Disconnect
from parley.broker.runtime.places import Place, Places
from parley.broker.security.session import ClientSession

PLACES: Final = 8
PLACES_OF_A_CLIENT: Final = 2
"""The second request is decoded while the parts of the first take their turns on the event loop."""
WAITING_BYTES_MAX: Final = 64 << 20


class LargeRequests:
    """The large requests of all connections of a broker."""

    def __init__(self) -> None:
        self._places = Places(PLACES, PLACES_OF_A_CLIENT)
        self._waiting_bytes: Counter[Hashable] = Counter()

    async def begin(self, session: ClientSession, size_bytes: int) -> Place:
        """Wait for a place for a request of ``size_bytes`` bytes, and return the place. The caller must end it.

        Raises Disconnect if the waiting requests of the client already take too much memory.
        """
        client = session.user_or_host
        place = self._places.take_at_once(client)
        return place if place is not None else await self._wait(client, size_bytes)

    async def _wait(self, client: Hashable, size_bytes: int) -> Place:
        held = self._waiting_bytes[client]
        if held and held + size_bytes > WAITING_BYTES_MAX:
            raise Disconnect("too many large requests of this client wait already")
        self._waiting_bytes[client] += size_bytes
        try:
            return await self._places.take(client)
        finally:
            self._waiting_bytes[client] -= size_bytes
            if not self._waiting_bytes[client]:
                del self._waiting_bytes[client]
