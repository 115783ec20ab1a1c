"""Decodes record batches to Arrow, in the schema of Spark's Kafka source.

``decode`` takes the batches of a fetch, of any magic and codec, and returns the rows that a consumer would see. It
leaves out control batches and, with READ_COMMITTED, the batches of aborted transactions. Arrow copies keys and values
out of the batches' bytes. Only records of the old formats become Python objects.

Rules:

* Every batch's checksum is verified. A batch that cannot be read raises ``BadBatch``, which names partition and offset.
* The size of an Arrow batch is limited: about ``ROWS_BYTES`` of records, or one record batch if that is larger.
* ``timestampType`` is 0 for CreateTime, 1 for LogAppendTime, and -1 for messages of magic 0, whose timestamp is -1 ms
  as in consumers. ``headers`` is null for a record without headers, as in Spark's source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from parley.pipeline.client._rows import HAS_HEADERS, NULL_KEY, NULL_VALUE, TIMESTAMP_MAX, Rows, find_headers
from parley.pipeline.client.fetching import Fetched, TopicPartition
from parley.protocol.errors import KafkaError
from parley.protocol.records._walk import encode_records
from parley.protocol.records.batch import DECOMPRESSED_BYTES_MAX, payload, records
from parley.protocol.records.batch_header import MAGIC_V2, BatchHeader, TimestampType, headers
from parley.protocol.records.control_batch import ControlType, read_marker
from parley.protocol.records.crc import verify_crc
from parley.protocol.records.errors import InvalidRecord

ROWS_BYTES: Final = 32 * 1024 * 1024
"""The approximate size of the decompressed records in one Arrow batch."""

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_NO_TIMESTAMP_TYPE: Final = -1
_MICROS_PER_MS: Final = 1000
_HALF_PAIR: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_OFFSET_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


class BadBatch(KafkaError):
    """Raised if a batch in the log cannot be read.

    ``partition``, ``offset`` (of its first record) and ``next_offset`` identify the batch. Reading can continue at
    ``next_offset``, without the batch's records.
    """

    def __init__(self, partition: TopicPartition, header: BatchHeader, error: KafkaError) -> None:
        super().__init__(
            error.code,
            f"the batch of {partition} at offset {header.base_offset} cannot be read: {error.message};"
            f" to skip its records, continue from offset {header.next_offset}",
        )
        self.partition = partition
        self.offset = header.base_offset
        self.next_offset = header.next_offset


def kafka_schema(*, include_headers: bool = False) -> pa.Schema:
    """Return the schema of the rows: the columns of Spark's Kafka source, with ``headers`` only if it is requested."""
    fields = [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, ("headers", _HEADERS)] if include_headers else fields)


def decode(
    fetched: Fetched, start: int = 0, end: int = _OFFSET_MAX, *, include_headers: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``fetched`` with offsets in [``start``, ``end``). No Arrow batch is empty.

    Raises BadBatch after all rows before the bad batch.
    """
    chunk = _Chunk(fetched)
    try:
        for pos, header in visible(fetched, start, end):
            chunk.add(pos, header)
            if chunk.size_bytes >= ROWS_BYTES:
                yield from chunk.rows(start, end, include_headers)
                chunk = _Chunk(fetched)
    except BadBatch:
        yield from chunk.rows(start, end, include_headers)
        raise
    yield from chunk.rows(start, end, include_headers)


def visible(fetched: Fetched, start: int = 0, end: int = _OFFSET_MAX) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch in ``fetched.records`` that a reader of [``start``, ``end``) sees.

    Their checksums have been verified. Leaves out control batches and, with READ_COMMITTED, batches of aborted
    transactions. The first and the last batch may contain other offsets too. Raises BadBatch.
    """
    aborted = _Aborted(fetched.aborted)
    for pos, header in headers(fetched.records):
        if header.base_offset >= end and header.magic >= MAGIC_V2:
            return
        if _is_data(fetched, pos, header, aborted) and header.next_offset > start:
            yield pos, header


def _is_data(fetched: Fetched, pos: int, header: BatchHeader, aborted: _Aborted) -> bool:
    """Return True if readers see the batch. Call this for every batch, in order. Raises BadBatch."""
    try:
        verify_crc(fetched.records, pos, header)
        if header.is_control:
            aborted.end(fetched.records, pos, header)
            return False
        return not aborted.covers(header)
    except KafkaError as error:
        raise BadBatch(fetched.partition, header, error) from None


class _Aborted:
    """Finds the batches of aborted transactions (KIP-98). Call its methods in log order."""

    def __init__(self, aborted: tuple[tuple[int, int], ...]) -> None:
        self._coming = sorted(aborted, key=lambda one: one[1], reverse=True)
        self._producers: set[int] = set()

    def covers(self, header: BatchHeader) -> bool:
        self._begin(header.last_offset)
        return header.is_transactional and header.producer_id in self._producers

    def end(self, buf: bytes, pos: int, header: BatchHeader) -> None:
        """Process a control batch: an abort marker ends its producer's open transaction."""
        if not self._coming and not self._producers:
            return
        self._begin(header.last_offset)
        marker = read_marker(buf, pos)
        if marker is not None and marker.type is ControlType.ABORT:
            self._producers.discard(header.producer_id)

    def _begin(self, last_offset: int) -> None:
        while self._coming and self._coming[-1][1] <= last_offset:
            self._producers.add(self._coming.pop()[0])


class _Chunk:
    """Batches that become one Arrow batch: their concatenated bytes, and the positions of their records."""

    def __init__(self, fetched: Fetched) -> None:
        self._fetched = fetched
        self._pieces: list[bytes] = []
        self._rows = Rows()
        self._counts: list[int] = []
        self._kinds: list[int] = []
        self._append_times: list[tuple[int, int, int]] = []
        self._count = 0
        self.size_bytes = 0

    def add(self, pos: int, header: BatchHeader) -> None:
        """Add the batch at position ``pos`` of the fetched bytes, and locate its records. Raises BadBatch."""
        try:
            try:
                self._add(pos, header)
            except ValueError as error:
                raise InvalidRecord(str(error)) from None
        except KafkaError as error:
            raise BadBatch(self._fetched.partition, header, error) from None

    def _add(self, pos: int, header: BatchHeader) -> None:
        base_offset, base_timestamp, count = header.base_offset, header.base_timestamp, header.record_count
        kind = int(header.timestamp_type)
        if header.magic < MAGIC_V2:
            found = list(records(self._fetched.records, pos))
            if not found:
                return
            base_offset, base_timestamp, count = found[0].offset, found[0].timestamp, len(found)
            piece = encode_records(found, base_offset, base_timestamp)
            kind = kind if header.magic else _NO_TIMESTAMP_TYPE
        else:
            piece = payload(self._fetched.records, pos, header, DECOMPRESSED_BYTES_MAX)
        if count < 0:
            raise InvalidRecord(f"negative record count {count}")
        if not -TIMESTAMP_MAX <= header.max_timestamp <= TIMESTAMP_MAX:
            raise InvalidRecord(
                f"the timestamp {header.max_timestamp} is out of range: Kafka's timestamps are milliseconds,"
                " but this may be in micro- or nanoseconds"
            )
        self._rows.locate(piece, 0, len(piece), self.size_bytes, count, base_offset, base_timestamp)
        self._pieces.append(piece)
        self.size_bytes += len(piece)
        if header.timestamp_type is TimestampType.APPEND and header.magic >= MAGIC_V2:
            self._append_times.append((self._count, self._count + count, header.max_timestamp))
        self._counts.append(count)
        self._kinds.append(kind)
        self._count += count

    def rows(self, start: int, end: int, include_headers: bool) -> Iterator[pa.RecordBatch]:
        """Yield the added records in [``start``, ``end``) as one Arrow batch, or nothing if there are none."""
        offsets = np.frombuffer(self._rows.offsets.getvalue(), np.int64)
        low, high = (int(at) for at in np.searchsorted(offsets, (start, end)))
        if low >= high:
            return
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        flags = np.frombuffer(self._rows.flags.getvalue(), np.uint8)[low:high]
        fields = _fields(data, self._rows.bounds.getvalue())
        count = high - low
        topic, partition = self._fetched.partition
        columns = [
            _taken(fields, 4 * low, (flags & NULL_KEY) != 0),
            _taken(fields, 4 * low + 2, (flags & NULL_VALUE) != 0),
            pa.repeat(pa.scalar(topic, pa.string()), count),
            _numbers(np.full(count, partition, np.int32), pa.int32()),
            _numbers(offsets[low:high], pa.int64()),
            _numbers(self._timestamps()[low:high] * _MICROS_PER_MS, _TIMESTAMP),
            _numbers(np.repeat(np.array(self._kinds, np.int32), self._counts)[low:high], pa.int32()),
        ]
        if include_headers:
            columns.append(self._headers(data, low, high))
        yield pa.RecordBatch.from_arrays(columns, schema=kafka_schema(include_headers=include_headers))

    def _timestamps(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        timestamps = np.frombuffer(self._rows.timestamps.getvalue(), np.int64)
        if self._append_times:
            timestamps = timestamps.copy()
            for begin, end, time in self._append_times:
                timestamps[begin:end] = time
        return timestamps

    def _headers(self, data: bytes, low: int, high: int) -> pa.Array:
        flags = np.frombuffer(self._rows.flags.getvalue(), np.uint8)
        having = np.flatnonzero(flags & HAS_HEADERS)
        first, end = (int(at) for at in np.searchsorted(having, (low, high)))
        spans = self._rows.headers.getvalue()[16 * first : 16 * end]
        counts, bounds, nulls = find_headers(data, spans)
        offsets = np.zeros(high - low + 1, np.int32)
        offsets[having[first:end] - low + 1] = np.frombuffer(counts, np.int64)
        missing = offsets[1:] == 0
        np.cumsum(offsets, out=offsets)
        fields = _fields(data, bounds)
        keys = _taken(fields, 0, np.zeros(len(nulls), np.bool_))
        values = _taken(fields, 2, np.frombuffer(nulls, np.bool_))
        pairs = pa.StructArray.from_arrays([_texts(keys), values], fields=list(_HEADERS.value_type))
        return pa.ListArray.from_arrays(_numbers(offsets, pa.int32()), pairs, type=_HEADERS, mask=pa.array(missing))


def _fields(data: bytes, bounds: bytes) -> pa.BinaryArray:
    """Return all bytes as one array: a key, the bytes before the value, the value, the bytes before the next key, and
    so on."""
    numbers = np.frombuffer(bounds, np.int64)
    offsets = np.zeros(len(numbers) + 1, np.int32)
    offsets[:-1] = numbers
    if len(numbers):
        offsets[-1] = numbers[-1]
    return pa.BinaryArray.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _texts(values: pa.BinaryArray) -> pa.StringArray:
    """Decode UTF-8 to strings. Errors are replaced as in Java: half a surrogate pair becomes a single replacement
    character.
    """
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [_HALF_PAIR.sub(b"\xff", value).decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def _taken(fields: pa.BinaryArray, first: int, nulls: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Return every fourth field, from number ``first`` on: all keys, or all values. The fields marked in ``nulls`` are
    null.
    """
    chosen = np.arange(first, first + 4 * len(nulls), 4, dtype=np.int64)
    return fields.take(pa.array(chosen, mask=nulls if nulls.any() else None))


def _numbers(values: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
