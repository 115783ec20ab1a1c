"""Updates the producer state and the transaction index for each batch.

The same code is used for batches that are appended, fetched from the leader, or read again by recovery.
"""

from __future__ import annotations

import logging

from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import BatchHeader, Buffer
from parley.protocol.records.control_batch import ControlMarker, read_marker
from parley.storage.producer_state import ProducerState
from parley.storage.segment import Segment
from parley.storage.transaction_index import AbortedTransaction

_log = logging.getLogger(__name__)


def marker_of(header: BatchHeader, buffer: Buffer, position: int) -> ControlMarker | None:
    """Return the marker that ends a transaction in the batch at ``position``; None for any other batch.

    An unreadable control batch is logged and ignored: rejecting it here would not remove it from the leader's log.
    """
    if not header.is_control or header.producer_id < 0:
        return None
    try:
        return read_marker(buffer, position)
    except KafkaError as error:
        _log.error("ignoring a control batch of producer %d at offset %d: %s", header.producer_id, header[0], error)
        return None


def note(
    header: BatchHeader, marker: ControlMarker | None, producers: ProducerState, segment: Segment, now_ms: int
) -> None:
    """Update the producer state and, if the batch aborts a transaction, the transaction index of ``segment``.

    Raises ``OSError`` if the index cannot be written.
    """
    aborted = apply(header, marker, producers, now_ms)
    if aborted is not None:
        segment.transactions.append(aborted)


def apply(
    header: BatchHeader, marker: ControlMarker | None, producers: ProducerState, now_ms: int
) -> AbortedTransaction | None:
    """Update the producer state. Return the transaction that the batch aborts, or None."""
    completed = producers.apply(header, now_ms=now_ms, control=marker)
    if completed is None or not completed.aborted:
        return None
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )
