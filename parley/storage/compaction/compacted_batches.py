"""The batches that a compaction reads and writes: verified, converted to v2, and with fewer records.

Rules:

1. Every batch that is read is verified, and every segment is compared with its digest. Damage ends the compaction.
2. Offsets, sequence numbers, producer, leader epoch and compression stay. Messages of magic 0 and 1 become v2 batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from parley.protocol.records.batch import assemble, build, records
from parley.protocol.records.batch_header import (
    CONTROL_BIT,
    HEADER_SIZE,
    INT32_MAX,
    LOG_OVERHEAD,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    read_header,
)
from parley.protocol.records.compression import Compression, compress
from parley.protocol.records.errors import CorruptRecord
from parley.protocol.records.record import Record
from parley.protocol.sentinels import NO_TIMESTAMP
from parley.storage.damage.checked_batches import CheckedBatch, CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.damage.segment_digest import DigestBuilder, read_digest
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import DIGEST_SUFFIX, LOG_SUFFIX, path_in

LEGACY_RECORDS_MAX: Final = 1000
LEGACY_BYTES_MAX: Final = 64 << 10
"""Messages of magic 0 and 1 are joined into v2 batches of at most this many records, and about this many bytes."""

_KEPT_WHEN_EMPTY: Final = TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT


class Batch(NamedTuple):
    """A v2 batch. ``end`` is the position in its segment after the batch, or after the messages from which it was
    converted."""

    header: BatchHeader
    data: Buffer
    end: int


def verified_batches(
    directory: Path, base_offset: int, end_offset: int, size: int, max_bytes: int, throttle: Callable[[int], None]
) -> Iterator[Batch]:
    """Yield the batches of a sealed segment of ``size`` bytes, as v2. Calls ``throttle`` with the size in bytes of each
    batch that it reads.

    ``max_bytes`` limits the decompressed size of one batch's records. The digest is compared after the last batch.
    Raises ``CorruptRecord`` for damage, ``KafkaError`` for other malformed batches, and ``OSError``.
    """
    file = SegmentFile(path_in(directory, base_offset, LOG_SUFFIX))
    if os.fstat(file.fd).st_size < size:
        raise CorruptRecord(f"{file.path} has become shorter than {size} bytes")
    legacy = _LegacyMessages(max_bytes)
    read = DigestBuilder()
    for found in CheckedBatches(file, size, base_offset, end_offset).walk(0, size, base_offset):
        if isinstance(found, DamagedBytes) or found.data is None:
            problem = found.reason if isinstance(found, DamagedBytes) else "the batch is too large"
            raise CorruptRecord(f"{file.path} is damaged at byte {found.position}: {problem}")
        read.add(found.data, (found.header,))
        throttle(found.header.size_bytes)
        if found.header.magic < MAGIC_V2:
            yield from legacy.add(found)
            continue
        yield from legacy.taken()
        yield Batch(found.header, found.data, found.position + found.header.size_bytes)
    yield from legacy.taken()
    known = read_digest(path_in(directory, base_offset, DIGEST_SUFFIX))
    if known is None or known.size != size or not known.covers_headers:
        return
    if read.digest(end_offset).checksums != known.checksums:
        raise CorruptRecord(f"{file.path} differs from its digest")


class _LegacyMessages:
    """Joins messages of magic 0 and 1 into v2 batches."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: list[Record] = []
        self._bytes = 0
        self._end = 0

    def add(self, found: CheckedBatch) -> Iterator[Batch]:
        """Add a message, which may contain compressed messages. Yields the v2 batches that are now complete."""
        header, data, end = found.header, found.data, found.position + found.header.size_bytes
        assert data is not None
        own = list(records(data, max_bytes=self._max_bytes))
        fixed = header.timestamp_type is TimestampType.APPEND
        if fixed or header.compression is not Compression.NONE:
            yield from self.taken()
            yield _converted(own, header.compression, header.max_timestamp if fixed else None, end)
            return
        full = len(self._held) >= LEGACY_RECORDS_MAX or self._bytes >= LEGACY_BYTES_MAX
        if full or (self._held and own[-1].offset - self._held[0].offset > INT32_MAX):
            yield from self.taken()
        self._held += own
        self._bytes += header.size_bytes
        self._end = end

    def taken(self) -> Iterator[Batch]:
        """Yield the pending messages, if there are any, as one batch."""
        if self._held:
            held, self._held, self._bytes = self._held, [], 0
            yield _converted(held, Compression.NONE, None, self._end)


def _converted(found: list[Record], compression: Compression, append_time: int | None, end: int) -> Batch:
    batch = build(
        found, base_offset=found[0].offset, keep_offsets=True, compression=compression, append_time=append_time
    )
    return Batch(read_header(batch), batch, end)


def with_records(batch: Batch, payload: bytes, count: int, max_timestamp: int) -> Batch:
    """Return the batch with only the records in ``payload``. ``max_timestamp`` is the largest of their timestamps; it
    is not used if the batch has a log append time."""
    header = batch.header
    if header.timestamp_type is TimestampType.APPEND:
        max_timestamp = header.max_timestamp
    header = header._replace(max_timestamp=max(max_timestamp, NO_TIMESTAMP), record_count=count)
    return assembled(header, compressed(header, payload), batch.end)


def emptied(batch: Batch) -> Batch:
    """Return the batch without its records. Its offsets, producer and sequence numbers stay."""
    header = batch.header
    if not header.record_count:
        return batch
    attributes = header.attributes & _KEPT_WHEN_EMPTY
    header = header._replace(attributes=attributes, base_timestamp=NO_TIMESTAMP, record_count=0)
    return assembled(header, b"", batch.end)


def compressed(header: BatchHeader, payload: bytes) -> bytes:
    """Return the records, compressed with the header's codec."""
    codec = header.compression
    return payload if codec is Compression.NONE else compress(codec, payload)


def assembled(header: BatchHeader, body: Buffer, end: int) -> Batch:
    """Return a batch with this body, and with the header's fields except length and checksum, which are computed."""
    batch = assemble(header._replace(length=HEADER_SIZE - LOG_OVERHEAD + len(body)), body)
    return Batch(read_header(batch), batch, end)
