"""Batches that were fetched, made ready to be produced elsewhere without looking at their records.

A batch is copied as it is where a broker will take it: magic 2, every offset from its first to its last there, and the
producers' own timestamps. What compaction has thinned out, what a broker stamped with its own time, batches of the old
formats, and the first and last where they reach beyond the range are built anew from their records, which then have
the same key, value, headers and timestamp, and the codec of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.decode import BadBatch, visible
from pipeline.fetching import Fetched
from protocol.errors import KafkaError
from protocol.records.batch import build, records
from protocol.records.header import (
    COMPRESSION_MASK,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    TimestampType,
    seal,
    write_header,
)


def producible(fetched: Fetched, start: int, end: int) -> Iterator[tuple[int, bytearray]]:
    """Batches that hold the records from ``start`` up to, not with, ``end``, each with its first record's offset.

    They begin at offset 0 and have no producer, as `pipeline.writing.Producer.send_batches` wants them. Control batches
    and batches of aborted transactions are left out. Raises `pipeline.decode.BadBatch`.
    """
    for pos, header in visible(fetched, start, end):
        if _can_be_copied(header) and header.base_offset >= start and header.next_offset <= end:
            yield header.base_offset, _copied(fetched.records, pos, header)
        else:
            try:
                rebuilt = _rebuilt(fetched.records, pos, header, start, end)
            except KafkaError as error:
                raise BadBatch(fetched.partition, header, error) from None
            if rebuilt is not None:
                yield rebuilt


def _can_be_copied(header: BatchHeader) -> bool:
    return (
        header.magic == MAGIC_V2
        and header.timestamp_type is TimestampType.CREATE
        and header.record_count == header.last_offset_delta + 1
    )


def _copied(buf: bytes, pos: int, header: BatchHeader) -> bytearray:
    batch = bytearray(memoryview(buf)[pos : pos + header.size_bytes])
    write_header(
        batch,
        0,
        header._replace(
            base_offset=0,
            partition_leader_epoch=NO_LEADER_EPOCH,
            attributes=header.attributes & COMPRESSION_MASK,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=NO_PRODUCER_EPOCH,
            base_sequence=NO_SEQUENCE,
        ),
    )
    seal(batch, 0, len(batch))
    return batch


def _rebuilt(buf: bytes, pos: int, header: BatchHeader, start: int, end: int) -> tuple[int, bytearray] | None:
    found = [record for record in records(buf, pos) if start <= record.offset < end]
    if not found:
        return None
    return found[0].offset, build(found, compression=header.compression)
