"""Producer ids (KIP-98): each is allocated only once in the lifetime of a cluster.

A broker takes a block of ids from the coordination store and allocates them one by one. It takes the first block when
it joins the cluster, so that it can serve new producers even if the store does not respond later. When the broker
stops, the rest of the block is lost, but there are 2^62 ids. Before the broker allocates the first id of a block, it
writes the end of the block to its own disk. Otherwise, a store that was rolled back would hand out the block a second
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from parley.broker.membership.remembered_epochs import ID_MAX, EpochFile, RememberedEpochs
from parley.consensus.errors import CoordinationError
from parley.consensus.recipes.keyvalue import KeyValue
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.sentinels import NO_PRODUCER_ID
from parley.storage.log import Log

BLOCK = 1000
"""The number of ids in a block, as in Kafka."""
PRODUCER_IDS = "producer-ids"
"""The key of the counter in the store."""


LOGGED_IDS_END = 1 << 53
"""The limit below which ids in a log count as allocated by the cluster. A client may put any id into its batches: if
higher ids counted as in use, a single batch could use up all ids."""


def highest_producer_id(logs: Iterable[Log]) -> int:
    """Return the highest producer id below ``LOGGED_IDS_END`` in the logs, or NO_PRODUCER_ID if they contain none."""
    written = [log for log in logs if log.is_written]
    return max((log.producers.highest_id(below=LOGGED_IDS_END) for log in written), default=NO_PRODUCER_ID)


class ProducerIds:
    """The source of this broker's new producer ids, which no other broker allocates."""

    def __init__(self, store: Callable[[], KeyValue], epochs: EpochFile) -> None:
        """``store()`` returns the store that the cluster currently uses."""
        self._store = store
        self._epochs = epochs
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def take(self) -> int:
        """Allocate a new producer id, and return it. Raises the errors of ``reserve``."""
        await self.reserve()
        self._next += 1
        return self._next - 1

    async def reserve(self) -> None:
        """Make sure that ``take`` can allocate an id: take a block from the store, unless ids of the last block are
        left.

        Raises COORDINATOR_LOAD_IN_PROGRESS, which clients retry, if the store does not respond, or if the end of the
        block cannot be written to any data directory. Raises UNKNOWN_SERVER_ERROR if the store's counter is too high.
        """
        if self._next < self._end:
            return
        async with self._lock:
            if self._next < self._end:
                return
            try:
                first = await self._store().next_id(PRODUCER_IDS, block=BLOCK)
                if first + BLOCK > ID_MAX:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"The counter of producer ids in the coordination store is {first}, which is not a "
                        "valid id. Set it to one more than the highest id in use.",
                    )
                self._epochs.note(RememberedEpochs(producer_ids_end=first + BLOCK))
                await self._epochs.save()
            except (CoordinationError, OSError) as error:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
            self._next, self._end = first, first + BLOCK
