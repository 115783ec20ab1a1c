"""Builds v2 records from columns, and hashes keys as Kafka does. Compiled by mypyc if there is a C compiler.

Rules: ``bytes`` are only read by index, and the compiled module gives the same results as the interpreted one. Arrays
of numbers are ``bytes``, too: little-endian int64, numpy's format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le

if TYPE_CHECKING:
    from mypy_extensions import i64

_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SEED: Final = 0x9747B28C


class Bytes:
    """A column of binaries: value i is ``data[offsets[i] : offsets[i + 1]]``, or null if ``nulls[i]`` is not 0.

    ``nulls`` is empty if no value is null.
    """

    def __init__(self, data: bytes, offsets: bytes, nulls: bytes) -> None:
        self.data = data
        self.offsets = offsets
        self.nulls = nulls


class Columns:
    """The columns of records. Timestamps are in ms.

    ``header_lists`` are offsets into ``header_keys`` and ``header_values``, as in Arrow's lists. They are empty if no
    record has a header.
    """

    def __init__(
        self,
        keys: Bytes,
        values: Bytes,
        timestamps: bytes,
        header_lists: bytes,
        header_keys: Bytes,
        header_values: Bytes,
    ) -> None:
        self.keys = keys
        self.values = values
        self.timestamps = timestamps
        self.header_lists = header_lists
        self.header_keys = header_keys
        self.header_values = header_values


def build_records(columns: Columns, order: bytes, pos: i64, limit: i64) -> tuple[bytes, i64]:
    """Build v2 records from the rows ``order[pos:]``, up to ``limit`` bytes. Returns them and the next ``pos``.

    Builds at least one record, however large. Offset deltas are 0, 1, 2, ...; timestamps are relative to the first.
    Raises ValueError if no row is left, or if a header has no key.
    """
    out = BytesWriter()
    end: i64 = len(order) // 8
    delta: i64 = 0
    if pos >= end:
        raise ValueError("no row is left")
    base: i64 = read_i64_le(columns.timestamps, 8 * read_i64_le(order, 8 * pos))
    with_headers: bool = len(columns.header_lists) > 0
    while pos < end:
        row: i64 = read_i64_le(order, 8 * pos)
        key_size: i64 = _length(columns.keys, row)
        value_size: i64 = _length(columns.values, row)
        time: i64 = read_i64_le(columns.timestamps, 8 * row) - base
        headers_size: i64 = _headers_size(columns, row) if with_headers else 1
        size: i64 = 1 + _varint_size(time) + _varint_size(delta) + headers_size
        size += _varint_size(key_size) + (key_size if key_size > 0 else 0)
        size += _varint_size(value_size) + (value_size if value_size > 0 else 0)
        whole: i64 = size + _varint_size(size)
        if delta > 0 and len(out) + whole > limit:
            break
        _write_varint(out, size)
        out.append(0)
        _write_varint(out, time)
        _write_varint(out, delta)
        _write_bytes(out, columns.keys, row, key_size)
        _write_bytes(out, columns.values, row, value_size)
        if with_headers:
            _write_headers(out, columns, row)
        else:
            out.append(0)
        delta += 1
        pos += 1
    return out.getvalue(), pos


def _length(column: Bytes, row: i64) -> i64:
    """Return the length of a value, -1 for null."""
    if len(column.nulls) > 0 and column.nulls[row] != 0:
        return -1
    return read_i64_le(column.offsets, 8 * row + 8) - read_i64_le(column.offsets, 8 * row)


def _varint_size(value: i64) -> i64:
    size: i64 = 1
    if value < 0:
        value = -value - 1
    value >>= 6
    while value > 0:
        value >>= 7
        size += 1
    return size


def _write_varint(out: BytesWriter, value: i64) -> None:
    low: i64 = 0
    if value < 0:
        value = -value - 1
        low = 1
    low |= (value & 0x3F) << 1
    value >>= 6
    while value > 0:
        out.append(low | 0x80)
        low = value & 0x7F
        value >>= 7
    out.append(low)


def _write_bytes(out: BytesWriter, column: Bytes, row: i64, size: i64) -> None:
    _write_varint(out, size)
    if size > 0:
        start: i64 = read_i64_le(column.offsets, 8 * row)
        out.write(column.data[start : start + size])


def _headers_size(columns: Columns, row: i64) -> i64:
    at: i64 = read_i64_le(columns.header_lists, 8 * row)
    end: i64 = read_i64_le(columns.header_lists, 8 * row + 8)
    total: i64 = _varint_size(end - at)
    while at < end:
        size: i64 = _length(columns.header_keys, at)
        if size < 0:
            raise ValueError("null header key")
        total += _varint_size(size) + size
        size = _length(columns.header_values, at)
        total += _varint_size(size) + (size if size > 0 else 0)
        at += 1
    return total


def _write_headers(out: BytesWriter, columns: Columns, row: i64) -> None:
    at: i64 = read_i64_le(columns.header_lists, 8 * row)
    end: i64 = read_i64_le(columns.header_lists, 8 * row + 8)
    _write_varint(out, end - at)
    while at < end:
        _write_bytes(out, columns.header_keys, at, _length(columns.header_keys, at))
        _write_bytes(out, columns.header_values, at, _length(columns.header_values, at))
        at += 1


def murmur2(data: bytes, pos: i64, end: i64) -> i64:
    """Return the MurmurHash2 of ``data[pos:end]`` with the seed of Kafka's partitioner, as an unsigned number."""
    left: i64 = end - pos
    hashed: i64 = _SEED ^ left
    word: i64 = 0
    while left >= 4:
        word = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16 | data[pos + 3] << 24
        word = _times(word)
        word ^= word >> 24
        hashed = _times(hashed) ^ _times(word)
        pos += 4
        left -= 4
    if left == 3:
        hashed ^= data[pos + 2] << 16
    if left >= 2:
        hashed ^= data[pos + 1] << 8
    if left >= 1:
        hashed = _times(hashed ^ data[pos])
    hashed ^= hashed >> 13
    hashed = _times(hashed)
    return hashed ^ hashed >> 15


def _times(value: i64) -> i64:
    """Multiply by the hash's constant, modulo 2^32. Multiplies the two halves, so that no product exceeds an int64."""
    return ((value & 0xFFFF) * _M + (((value >> 16) * _M & 0xFFFF) << 16)) & _MASK


def hash_keys(keys: Bytes) -> bytes:
    """Return each key's ``murmur2`` without the highest bit, as in Kafka's partitioner: an int64, 0 for a null key."""
    out = BytesWriter()
    count: i64 = len(keys.offsets) // 8 - 1
    row: i64 = 0
    while row < count:
        if len(keys.nulls) > 0 and keys.nulls[row] != 0:
            write_i64_le(out, 0)
        else:
            begin: i64 = read_i64_le(keys.offsets, 8 * row)
            write_i64_le(out, murmur2(keys.data, begin, read_i64_le(keys.offsets, 8 * row + 8)) & 0x7FFF_FFFF)
        row += 1
    return out.getvalue()
