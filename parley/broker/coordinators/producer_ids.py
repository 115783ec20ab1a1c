"""Producer ids (KIP-98): each is allocated once in the life of a cluster.

A broker takes a block of ids from the coordination store and allocates them one by one. When it stops, the rest of its
block is lost; there are 2^63 ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.consensus.errors import CoordinationError
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode, KafkaError

BLOCK = 1000
"""Ids taken at a time, as in Kafka."""
KEY = "producer-ids"


class ProducerIds:
    """Allocates producer ids that no other broker allocates."""

    def __init__(self, store: Callable[[], KeyValue]) -> None:
        """``store()`` returns the store that is in charge now."""
        self._store = store
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Allocate an id. Raises COORDINATOR_LOAD_IN_PROGRESS, which clients retry, if the store does not respond."""
        if self._next == self._end:
            async with self._lock:
                if self._next == self._end:
                    try:
                        first = await self._store().next_id(KEY, block=BLOCK)
                    except CoordinationError as error:
                        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
                    self._next, self._end = first, first + BLOCK
        self._next += 1
        return self._next - 1
