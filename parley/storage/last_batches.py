"""The last batches of a producer, which count as retries if the producer sends them again.

A producer snapshot contains only the last batch, as in Kafka. The earlier ones are read from the end of the log when a
batch arrives that may be one of them, and before a compaction, which keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from parley.light_dataclasses import dataclass
from parley.protocol.records.batch_header import BatchHeader

BATCHES_KEPT: Final = 5
"""The number of batches that count. An idempotent client has at most five requests in flight, so no older batch can be
sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastBatches:
    """The last batches of a producer in its latest epoch. Each batch is identified by its last offset."""

    epoch: int
    last_offset: int
    """The last offset of the last batch; -1 if the producer has written only markers in ``epoch``."""
    first_offset: int
    """The last offset of the first batch; -1 if ``last_offset`` is -1."""
    is_complete: bool
    """False if earlier batches, which only the log contains, may also count as retries."""


def completed(known: Mapping[int, LastBatches], end_of_log: Iterable[BatchHeader]) -> dict[int, LastBatches]:
    """Return the last batches of all producers, completed with the batches in ``end_of_log``, which are in log
    order."""
    found: dict[int, deque[int]] = {}
    for header in end_of_log:
        last = known.get(header.producer_id)
        if last is not None and not last.is_complete and header.producer_epoch == last.epoch and not header.is_control:
            found.setdefault(header.producer_id, deque(maxlen=BATCHES_KEPT)).append(header.last_offset)
    first_offsets = {producer_id: offsets[0] for producer_id, offsets in found.items()}
    return {
        producer_id: replace(
            last, first_offset=min(last.first_offset, first_offsets.get(producer_id, last.first_offset))
        )
        for producer_id, last in known.items()
    }
