"""Headers of batches as producers and coordinators send them, without the records."""

from __future__ import annotations

from parley.protocol.records.batch_header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from parley.protocol.records.control_batch import ControlMarker, ControlType

NOW = 1_790_000_000_000


def batch(
    offset: int,
    *,
    producer: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    records: int = 1,
    transactional: bool = False,
    control: bool = False,
    timestamp: int = NOW,
) -> BatchHeader:
    """Return the header of a batch whose first record is at ``offset``."""
    return BatchHeader(
        base_offset=offset,
        length=100,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=(TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0),
        last_offset_delta=records - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )


def commit(offset: int, **fields: int) -> tuple[BatchHeader, ControlMarker]:
    """Return a marker that commits the transaction of ``producer``, as its coordinator writes it."""
    return _marker(offset, ControlType.COMMIT, **fields)


def abort(offset: int, **fields: int) -> tuple[BatchHeader, ControlMarker]:
    """Return a marker that aborts the transaction of ``producer``, as its coordinator writes it."""
    return _marker(offset, ControlType.ABORT, **fields)


def _marker(
    offset: int, kind: ControlType, *, coordinator_epoch: int = 0, **fields: int
) -> tuple[BatchHeader, ControlMarker]:
    header = batch(offset, sequence=-1, transactional=True, control=True, **fields)
    return header, ControlMarker(kind, coordinator_epoch)
