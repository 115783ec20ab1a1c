"""The delete horizon of a batch (KIP-534): the time from which compaction may remove its tombstones or its marker.

Rules:

1. The first compaction that keeps a tombstone and removes all earlier records of its key sets the horizon:
   ``delete.retention.ms`` after the start of that compaction. A marker gets its horizon from the first compaction after
   which no batch needs the marker.
2. The horizon replaces the base timestamp. The timestamps of the records are then relative to the horizon.
3. An expired tombstone stays until the replicas that are catching up have fetched it.
"""

from __future__ import annotations

from parley.protocol.records.batch_header import DELETE_HORIZON_BIT, HEADER_SIZE, BatchHeader, Buffer, TimestampType
from parley.storage.compaction._offset_map import shift_timestamps
from parley.storage.compaction.compacted_batches import Batch, assembled, compressed


def is_expired(header: BatchHeader, now_ms: int, kept_from: int) -> bool:
    """Return True if the tombstones or the marker of a batch may be removed: their delete horizon has passed, and all
    their offsets are below ``kept_from``, the first offset that a replica still has to fetch."""
    horizon_ms = header.delete_horizon_ms
    return horizon_ms is not None and horizon_ms <= now_ms and header.last_offset < kept_from


def with_delete_horizon(batch: Batch, horizon_ms: int, payload: bytes) -> Batch:
    """Return the batch with a delete horizon, or unchanged if it already has one. ``payload`` is its decompressed
    records.

    Also returns the batch unchanged, so that its tombstones stay, if the format cannot store the distance between its
    timestamps and the horizon.
    """
    header = batch.header
    if header.delete_horizon_ms is not None:
        return batch
    body: Buffer = memoryview(batch.data)[HEADER_SIZE:]
    if header.timestamp_type is TimestampType.CREATE:
        try:
            shifted = shift_timestamps(payload, header.record_count, header.base_timestamp - horizon_ms)
        except ValueError:
            return batch
        body = compressed(header, shifted)
    header = header._replace(attributes=header.attributes | DELETE_HORIZON_BIT, base_timestamp=horizon_ms)
    return assembled(header, body, batch.end)
