"""Finds the fields of v2 records in one pass over their bytes. Compiled by mypyc if there is a C compiler.

The rules of ``parley.protocol.records._walk`` hold here too: ``bytes`` are only read by index, invalid records raise
ValueError, and the compiled module gives the same results as the interpreted one. Positions are written as
little-endian numbers, which numpy and Arrow use without a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le

from parley.protocol.records._walk import read_varint, read_varlong

if TYPE_CHECKING:
    from mypy_extensions import i64

NULL_KEY: Final = 1
NULL_VALUE: Final = 2
HAS_HEADERS: Final = 4

TIMESTAMP_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF // 1000
"""The latest time in ms whose microseconds are a 64-bit number; the earliest is its negative."""
_EVERYDAY: Final = 1 << 60
_TOO_FAR: Final = "a timestamp or an offset is out of range"


class Rows:
    """The records found so far, in columns.

    * ``bounds``: int64, four per record: start and end of the key, start and end of the value. They never decrease,
    so with one more number they are the offsets of an Arrow array.
    * ``offsets``, ``timestamps``: int64, one per record.
    * ``flags``: one byte per record: NULL_KEY, NULL_VALUE, HAS_HEADERS.
    * ``headers``: int64, two per record with headers: where they start (at their count) and where they end.
    """

    def __init__(self) -> None:
        self.bounds = BytesWriter()
        self.offsets = BytesWriter()
        self.timestamps = BytesWriter()
        self.flags = BytesWriter()
        self.headers = BytesWriter()

    def locate(
        self, data: bytes, pos: i64, end: i64, shift: i64, count: i64, base_offset: i64, base_timestamp: i64
    ) -> None:
        """Add the ``count`` records that fill ``data[pos:end]``; ``shift`` is added to all positions written.

        ``base_offset`` and ``base_timestamp`` are those of the records' batch. Raises ValueError, and adds nothing, if
        the bytes are not ``count`` valid records.
        """
        if end > len(data) or pos < 0 or pos > end or end + shift > 0x7FFF_FFFF:
            raise ValueError("the records lie outside the bytes")
        before: i64 = len(self.flags)
        headers_before: i64 = len(self.headers)
        try:
            self._locate(data, pos, end, shift, count, base_offset, base_timestamp)
        except IndexError:
            self._truncate(before, headers_before)
            raise ValueError("truncated record") from None
        except ValueError:
            self._truncate(before, headers_before)
            raise

    def _truncate(self, count: i64, headers_bytes: i64) -> None:
        self.bounds.truncate(32 * count)
        self.offsets.truncate(8 * count)
        self.timestamps.truncate(8 * count)
        self.flags.truncate(count)
        self.headers.truncate(headers_bytes)

    def _locate(
        self, data: bytes, pos: i64, end: i64, shift: i64, count: i64, base_offset: i64, base_timestamp: i64
    ) -> None:
        bounds = self.bounds
        offsets = self.offsets
        timestamps = self.timestamps
        flags = self.flags
        size: i64 = 0
        number: i64 = 0
        if not (-_EVERYDAY < base_timestamp < _EVERYDAY and -_EVERYDAY < base_offset < _EVERYDAY):
            raise ValueError(_TOO_FAR)
        while count > 0:
            count -= 1
            size, pos = read_varint(data, pos, end)
            if size < 0 or size > end - pos:
                raise ValueError("record exceeds its batch")
            stop: i64 = pos + size
            number, pos = read_varlong(data, pos + 1, stop)
            if not -_EVERYDAY < number < _EVERYDAY:
                raise ValueError(_TOO_FAR)
            number += base_timestamp
            if not -TIMESTAMP_MAX <= number <= TIMESTAMP_MAX:
                raise ValueError(_TOO_FAR)
            write_i64_le(timestamps, number)
            number, pos = read_varint(data, pos, stop)
            write_i64_le(offsets, base_offset + number)
            seen: i64 = 0
            size, pos = read_varint(data, pos, stop)
            write_i64_le(bounds, pos + shift)
            if size >= 0:
                if size > stop - pos:
                    raise ValueError("key exceeds its record")
                pos += size
            else:
                seen = NULL_KEY
            write_i64_le(bounds, pos + shift)
            size, pos = read_varint(data, pos, stop)
            write_i64_le(bounds, pos + shift)
            if size >= 0:
                if size > stop - pos:
                    raise ValueError("value exceeds its record")
                pos += size
            else:
                seen |= NULL_VALUE
            write_i64_le(bounds, pos + shift)
            if pos < stop and data[pos] == 0:
                pos += 1
            else:
                seen |= HAS_HEADERS
                write_i64_le(self.headers, pos + shift)
                write_i64_le(self.headers, stop + shift)
                pos = _skip_headers(data, pos, stop)
            flags.append(seen)
            if pos != stop:
                raise ValueError("record length does not match its fields")
        if pos != end:
            raise ValueError("the number of records differs from the batch header")


def _skip_headers(data: bytes, pos: i64, end: i64) -> i64:
    """Return the position after the headers that start at ``pos``."""
    size: i64 = 0
    count, pos = read_varint(data, pos, end)
    if count < 0 or count > (end - pos) // 2:
        raise ValueError("more headers than the remaining bytes can contain")
    while count > 0:
        count -= 1
        size, pos = read_varint(data, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("header key exceeds its record")
        pos += size
        size, pos = read_varint(data, pos, end)
        if size >= 0:
            if size > end - pos:
                raise ValueError("header value exceeds its record")
            pos += size
    return pos


def find_headers(data: bytes, spans: bytes) -> tuple[bytes, bytes, bytes]:
    """Find the headers of records. ``spans`` are positions in ``data``, as in ``Rows.headers``.

    Returns the number of headers in each span (int64), the bounds of each header's key and value (like
    ``Rows.bounds``), and a byte for each header, which is nonzero if its value is null. Raises ValueError if a header
    exceeds its span.
    """
    counts = BytesWriter()
    bounds = BytesWriter()
    nulls = BytesWriter()
    at: i64 = 0
    count: i64 = 0
    size: i64 = 0
    while at < len(spans):
        pos: i64 = read_i64_le(spans, at)
        end: i64 = read_i64_le(spans, at + 8)
        at += 16
        count, pos = read_varint(data, pos, end)
        write_i64_le(counts, count)
        while count > 0:
            count -= 1
            size, pos = read_varint(data, pos, end)
            if size < 0 or size > end - pos:
                raise ValueError("header key exceeds its record")
            write_i64_le(bounds, pos)
            pos += size
            write_i64_le(bounds, pos)
            size, pos = read_varint(data, pos, end)
            write_i64_le(bounds, pos)
            if size >= 0:
                if size > end - pos:
                    raise ValueError("header value exceeds its record")
                pos += size
                nulls.append(0)
            else:
                nulls.append(1)
            write_i64_le(bounds, pos)
    return counts.getvalue(), bounds.getvalue(), nulls.getvalue()
