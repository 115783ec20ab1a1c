"""What a batch changes beside its segment's bytes: the table of producers, and the index of aborted transactions.

The same for a batch being appended, one fetched from the leader and one read again at a start.
"""

from __future__ import annotations

import logging

from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.records.control_batch import ControlMarker, read_marker
from parley.storage.producer_state import ProducerState
from parley.storage.segment import Segment
from parley.storage.transaction_index import AbortedTransaction

_logger = logging.getLogger(__name__)


def marker_of(header: BatchHeader, buffer: Buffer, position: int) -> ControlMarker | None:
    """The marker that ends a transaction in the batch at ``position``; None for any other batch.

    A control batch that cannot be read says nothing: refusing it here would not undo it at the leader.
    """
    if not header.is_control or header.producer_id < 0:
        return None
    try:
        return read_marker(buffer, position)
    except KafkaError as error:
        _logger.error("A control batch of producer %d at %d is passed over: %s", header.producer_id, header[0], error)
        return None


def note(
    header: BatchHeader, marker: ControlMarker | None, producers: ProducerState, segment: Segment, now_ms: int
) -> None:
    """The batch is in ``segment``: its producer is known by it, the transaction it aborts is indexed.

    Raises ``OSError`` when the index cannot be written.
    """
    completed = producers.append(header, now_ms=now_ms, control=marker)
    if completed is not None and completed.aborted:
        segment.transactions.append(
            AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
            )
        )
