"""Builds v2 record batches (magic 2), and checks and reads the records in them.

``parley.protocol.records.batch_header`` contains the header, ``parley.protocol.records.crc`` the checksum. ``records``
also reads messages of magic 0 and 1 (``parley.protocol.records.legacy``), which a log may contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from parley.named_tuples import new_tuple
from parley.protocol.records import legacy
from parley.protocol.records._walk import Walk, encode_records, read_records
from parley.protocol.records.batch_header import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    TimestampType,
    read_header,
    write_header,
)
from parley.protocol.records.compression import PIECE_BYTES, Compression, compress, decompress, pieces
from parley.protocol.records.crc import seal, verify_crc
from parley.protocol.records.errors import CorruptRecord, InvalidRecord
from parley.protocol.records.record import Record
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

DECOMPRESSED_BYTES_MAX: Final = 1 << 30
"""The default limit on the decompressed size of one batch's records. ``validate`` holds only a piece of them in
memory."""
_RECORDS_AT_ONCE: Final = 512
_RECORD_BYTES_MIN: Final = 7
_SEARCHED_AT_ONCE: Final = 2 << 10
"""The number of bytes that ``suspects`` checks before it creates objects for the records: a few hundred small
records."""


def records(buf: Buffer, pos: int = 0, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of the batch at ``pos``, of any magic, decompressed.

    Does not verify the checksum (``crc.verify_crc``). Raises CorruptRecord, InvalidRecord and, if the decompressed
    records exceed ``max_bytes``, DecompressedTooLarge. Errors may occur in the call or during the iteration.
    """
    header = read_header(buf, pos)
    if pos + header.size_bytes > len(buf):
        raise CorruptRecord("the data ends inside a batch")
    if header.magic < MAGIC_V2:
        return legacy.messages(buf, pos, header, max_bytes=max_bytes)
    return _records(header, payload(buf, pos, header, max_bytes))


def payload(buf: Buffer, pos: int, header: BatchHeader, max_bytes: int) -> bytes:
    """Return the decompressed record bytes of the v2 batch at ``pos``. Raises InvalidRecord, DecompressedTooLarge."""
    return decompress(header.compression, memoryview(buf)[pos + HEADER_SIZE : pos + header.size_bytes], max_bytes)


def _records(header: BatchHeader, payload: bytes) -> Iterator[Record]:
    fixed = header.max_timestamp if header.timestamp_type is TimestampType.APPEND else None
    left = header.record_count
    pos = 0
    try:
        while left > 0:
            some, pos = read_records(
                payload,
                pos,
                min(left, _RECORDS_AT_ONCE),
                header.base_offset,
                header.base_timestamp,
                fixed,
                new_tuple,
                Record,
            )
            left -= len(some)
            yield from some
    except ValueError as error:
        raise InvalidRecord(str(error)) from None
    if left < 0 or pos != len(payload):
        raise InvalidRecord("a batch does not contain the number of records that its header claims")


def suspects(
    buf: Buffer, header: BatchHeader, *, is_fine: Callable[[Walk], bool], max_bytes: int
) -> Iterator[tuple[int, Record]]:
    """Yield some records of the v2 batch at position 0, which ``walk`` has accepted, with their indexes in the batch.

    Leaves out runs of records for which ``is_fine`` returns True; its argument is the result of ``walk`` for the run.
    Because no objects are created for these records, finding one record in a million costs little more than ``walk``.
    Raises DecompressedTooLarge if the decompressed records exceed ``max_bytes``.
    """
    body = payload(buf, 0, header, max_bytes)
    index = pos = 0
    size = _SEARCHED_AT_ONCE
    while pos < len(body):
        seen = Walk(header.base_timestamp, False)
        stop = min(pos + size, len(body))
        after = seen.feed(body, pos, stop, header.record_count)
        if after == pos:  # a large record
            if stop == len(body):
                return
            size *= 2
            continue
        if not is_fine(seen):
            run, _ = read_records(
                body, pos, seen.count, header.base_offset, header.base_timestamp, None, new_tuple, Record
            )
            yield from enumerate(run, index)
        index += seen.count
        pos, size = after, _SEARCHED_AT_ONCE


def walk(
    buf: Buffer, pos: int, header: BatchHeader, *, consecutive: bool, max_bytes: int = DECOMPRESSED_BYTES_MAX
) -> Walk:
    """Check that the records of the v2 batch at ``pos`` are well-formed and agree with the record count. Returns the
    counts and extremes that were found.

    Memory use does not grow with the batch or its records. Raises InvalidRecord, DecompressedTooLarge.
    """
    seen = Walk(header.base_timestamp, consecutive)
    count = header.record_count
    begin, end = pos + HEADER_SIZE, pos + LOG_OVERHEAD + header.length
    plain = header.attributes & COMPRESSION_MASK == 0
    if count < 0 or (plain and count > (end - begin) // _RECORD_BYTES_MIN):
        raise InvalidRecord(f"the header of a batch claims an invalid number of records: {count}")
    try:
        if not plain:
            left = _walk_pieces(seen, pieces(header.compression, memoryview(buf)[begin:end], max_bytes), count)
        elif end - begin <= PIECE_BYTES:
            left = end - begin - seen.feed(bytes(buf[begin:end]), 0, end - begin, count)
        else:
            left = _walk_pieces(seen, _slices(memoryview(buf)[begin:end]), count)
    except ValueError as error:
        raise InvalidRecord(f"{error} (record {seen.count})") from None
    if left or seen.count != count:
        raise InvalidRecord(f"the header of a batch claims {count} records, but the batch contains {seen.count}")
    return seen


def _slices(body: memoryview) -> Iterator[bytes]:
    """Yield uncompressed bytes piece by piece. (mypyc makes a list of a generator expression.)"""
    for start in range(0, len(body), PIECE_BYTES):
        yield bytes(body[start : start + PIECE_BYTES])


def _walk_pieces(seen: Walk, some: Iterable[bytes], count: int) -> int:
    """Check records while their bytes pass. Returns the number of bytes at the end that are not a whole record."""
    unused = b""
    for piece in some:
        if unused:
            piece = unused + piece
        unused = piece[seen.feed_piece(piece, 0, len(piece), count) :]
    return seen.missing + len(unused)


def validate(
    buf: Buffer,
    pos: int,
    header: BatchHeader,
    *,
    consecutive: bool = False,
    max_bytes: int = DECOMPRESSED_BYTES_MAX,
) -> None:
    """Check that the whole batch at ``pos`` is consistent: checksum, record count, offsets, timestamps, lengths.

    With ``consecutive``, the offsets must have no gaps, as in batches from producers. Otherwise they must only increase
    and lie in the header's range, as in compacted batches. Raises CorruptRecord, InvalidRecord, DecompressedTooLarge.
    """
    verify_crc(buf, pos, header)
    if header.magic < MAGIC_V2:
        for _ in legacy.messages(buf, pos, header, max_bytes=max_bytes):
            pass
        return
    seen = walk(buf, pos, header, consecutive=consecutive, max_bytes=max_bytes)
    if seen.last_delta > header.last_offset_delta or (consecutive and seen.last_delta != header.last_offset_delta):
        raise InvalidRecord("the offsets of the records are outside the range of their batch")
    if header.timestamp_type is TimestampType.CREATE and seen.max_timestamp > max(header.max_timestamp, NO_TIMESTAMP):
        raise InvalidRecord("a record is later than the maximum timestamp of its batch")


def build(
    records: Iterable[Record | tuple[Any, ...]],
    *,
    base_offset: int = 0,
    keep_offsets: bool = False,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    timestamp_type: TimestampType = TimestampType.CREATE,
    append_time: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    partition_leader_epoch: int = NO_EPOCH,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Build a v2 batch of the records, with its checksum.

    Assigns consecutive offsets from ``base_offset`` on, and ignores the records' offsets. With ``keep_offsets``, keeps
    the records' offsets, which must increase and not be below ``base_offset``. With ``append_time`` (ms), the batch has
    the type LogAppendTime and that timestamp. Raises InvalidRecord if timestamps are too far apart for the format.
    """
    listed: list[Any] = records if isinstance(records, list) else list(records)
    base_timestamp = listed[0][1] if listed else NO_TIMESTAMP
    max_timestamp = max((record[1] for record in listed), default=NO_TIMESTAMP)
    max_timestamp = max(max_timestamp, NO_TIMESTAMP)
    if append_time is not None:
        timestamp_type = TimestampType.APPEND
        max_timestamp = append_time
    try:
        body: Buffer = encode_records(listed, base_offset if keep_offsets else None, base_timestamp)
    except ValueError as error:
        raise InvalidRecord(str(error)) from None
    last_delta = len(listed) - 1
    if keep_offsets and listed:
        last_delta = listed[-1][0] - base_offset
    if compression is not Compression.NONE:
        body = compress(compression, body, level)
    attributes = int(compression)
    attributes |= TIMESTAMP_TYPE_BIT if timestamp_type is TimestampType.APPEND else 0
    attributes |= (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    return assemble(
        BatchHeader(
            base_offset=base_offset,
            length=HEADER_SIZE - LOG_OVERHEAD + len(body),
            partition_leader_epoch=partition_leader_epoch,
            magic=MAGIC_V2,
            crc=0,
            attributes=attributes,
            last_offset_delta=last_delta,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=len(listed),
        ),
        body,
    )


def assemble(header: BatchHeader, body: Buffer) -> bytearray:
    """Return a v2 batch with this header and these record bytes. Computes the checksum.
    ``body`` must have the length and the compression that the header specifies.
    """
    out = bytearray(HEADER_SIZE)
    out += body
    write_header(out, 0, header)
    seal(out, 0, len(out))
    return out
