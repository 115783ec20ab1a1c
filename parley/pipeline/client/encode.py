"""Encodes Arrow columns as record batches of magic 2, ready to be produced.

The columns are those of Spark's Kafka sink, and more: ``value`` and, if they exist, ``key``, ``headers`` (a list of
structs of key and value) and ``timestamp``. Binary and string columns may have any of Arrow's layouts. A timestamp of
any unit is truncated to milliseconds. A column of another type raises ValueError, which names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from parley.pipeline.client._build import Bytes, Columns, build_records
from parley.protocol.records.batch import assemble
from parley.protocol.records.batch_header import HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader
from parley.protocol.records.compression import Compression, compress
from parley.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE

BATCH_BYTES: Final = 512 * 1024
"""The default size of a batch before compression: half of the default of ``max.message.bytes``."""

_TIMES: Final = pa.timestamp("ms")
_TIME_MAX: Final = 1 << 60
_NO_BYTES: Final = Bytes(b"", b"", b"")

Order = npt.NDArray[np.int64]


def columns_of(rows: pa.RecordBatch, now_ms: int) -> Columns:
    """Return the rows as columns of records. ``now_ms`` is the timestamp of rows without one.

    Raises ValueError if the column ``value`` is missing, or if a column has a wrong type or an invalid value.
    """
    names = rows.schema.names
    if "value" not in names:
        raise ValueError(f"column 'value' is missing. Columns: {', '.join(names)}")
    if rows.num_rows == 0:
        return Columns(_NO_BYTES, _NO_BYTES, b"", b"", _NO_BYTES, _NO_BYTES)
    lists, header_keys, header_values = b"", _NO_BYTES, _NO_BYTES
    if "headers" in names:
        lists, header_keys, header_values = _headers(rows.column("headers"))
    return Columns(
        bytes_of(rows.column("key"), "key") if "key" in names else _all_null(rows.num_rows),
        bytes_of(rows.column("value"), "value"),
        _timestamps(rows.column("timestamp") if "timestamp" in names else None, rows.num_rows, now_ms),
        lists,
        header_keys,
        header_values,
    )


def encode(
    columns: Columns,
    order: Order,
    *,
    batch_bytes: int = BATCH_BYTES,
    compression: Compression = Compression.NONE,
    level: int | None = None,
) -> Iterator[bytearray]:
    """Encode the rows with the indexes in ``order``, in that order. Offsets start at 0, and the batches have no
    producer.

    A batch contains at most ``batch_bytes`` of records, or a single larger record. ``level`` is the codec's compression
    level; None means its default.
    """
    named = np.ascontiguousarray(order, np.int64)
    wire = named.tobytes()
    timestamps = np.frombuffer(columns.timestamps, np.int64)
    pos = 0
    while pos < len(named):
        body, end = build_records(columns, wire, pos, batch_bytes)
        times = timestamps[named[pos:end]]
        if compression is not Compression.NONE:
            body = compress(compression, body, level)
        yield assemble(_header(len(body), int(compression), end - pos, int(times[0]), int(times.max())), body)
        pos = end


def _header(body_bytes: int, attributes: int, count: int, base_timestamp: int, max_timestamp: int) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=HEADER_SIZE - LOG_OVERHEAD + body_bytes,
        partition_leader_epoch=NO_EPOCH,
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=count,
    )


# Arrow's columns as bytes.


def bytes_of(column: pa.Array, name: str) -> Bytes:
    """Return the bytes of a column of binaries or strings. Raises ValueError for a column of another type."""
    kind = column.type
    if pa.types.is_null(kind):
        return _all_null(len(column))
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if not (pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)):
        if not any(test(kind) for test in _BINARIES):
            raise ValueError(f"column {name!r} must be binary or string, not {kind}")
        column = column.cast(pa.large_binary())
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    content = b"" if data is None or last == first else data.slice(first, last - first).to_pybytes()
    return Bytes(content, (offsets - first).tobytes(), _nulls(column))


_BINARIES: Final = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
)


def _nulls(column: pa.Array) -> bytes:
    if column.null_count == 0:
        return b""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.uint8).tobytes()


def _all_null(count: int) -> Bytes:
    return Bytes(b"", bytes(8 * (count + 1)), b"\x01" * count)


def _timestamps(column: pa.Array | None, count: int, now_ms: int) -> bytes:
    if column is None or pa.types.is_null(column.type):
        return np.full(count, now_ms, np.int64).tobytes()
    if pa.types.is_timestamp(column.type):
        # Drop the time zone, which does not change the instant: the cast between units then needs no time zone rules.
        column = column.cast(pa.timestamp(column.type.unit))
        column = pc.floor_temporal(column, unit="millisecond").cast(_TIMES, safe=False).cast(pa.int64())
    elif not pa.types.is_int64(column.type):
        raise ValueError(f"column 'timestamp' must be a timestamp, or a long of milliseconds, not {column.type}")
    times = column.fill_null(now_ms).to_numpy()
    if len(times) and (int(times.min()) < -1 or int(times.max()) >= _TIME_MAX):
        raise ValueError("column 'timestamp' contains a time before 1970 or too far in the future")
    return np.ascontiguousarray(times, np.int64).tobytes()


def _headers(column: pa.Array) -> tuple[bytes, Bytes, Bytes]:
    """Return the offsets of the header lists, and the keys and the values of all headers. All three are empty if no row
    has a list of headers. Raises ValueError if the column has a wrong type, or contains a null header or key.
    """
    kind = column.type
    if pa.types.is_null(kind) or column.null_count == len(column):
        return b"", _NO_BYTES, _NO_BYTES
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not _is_header(kind.value_type):
        raise ValueError(f"column 'headers' must be a list of structs of key and value, not {kind}")
    offsets = _list_offsets(column)
    items = column.flatten()  # leaves out the items of null lists, as the offsets do
    if items.null_count:
        raise ValueError("column 'headers' contains a null header")
    keys, values = (items.field(at) for at in range(2))
    if keys.null_count:
        raise ValueError("column 'headers' contains a header without a key")
    return offsets.tobytes(), bytes_of(keys, "headers.key"), bytes_of(values, "headers.value")


def _is_header(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and [kind.field(at).name for at in range(kind.num_fields)] == ["key", "value"]


def _list_offsets(column: pa.Array) -> Order:
    lengths = column.value_lengths().fill_null(0).to_numpy()
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
