"""Loops that check, read and write the bytes of v2 records. Compiled by mypyc if a C compiler is present.

A record is a length and that many bytes; every number in it is a zigzag varint (protocol guide, "Record Format")::

    length  attributes(1 byte)  timestamp delta  offset delta  key length, key  value length, value
    header count, then for each header: key length, key, value length, value

Rules:

* The input is always ``bytes``, which mypyc indexes with a single load. Callers copy one piece at a time.
* Invalid bytes raise ValueError with the reason, and no other error; the caller turns it into a protocol error.
* Compiled and interpreted code behave alike for every input. Numbers of more than 64 bits are therefore rejected before
  they are computed. No constant in a loop exceeds 61 bits, because mypyc would create an object for it each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mypy_extensions import i64

Fields = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
"""The offset, timestamp, key, value and headers of a record."""

_EVERYDAY: Final = 1 << 60
"""Timestamps between this and its negative can be added without an overflow check."""
_OVERFLOW: Final = "a timestamp is longer than 64 bits"
_VARINT_BYTES_MAX: Final = 5
_START_BYTES_MAX: Final = 3 * _VARINT_BYTES_MAX + 11
"""The maximum size of a record's length, attributes, timestamp delta (10 bytes), offset delta and length of the key."""
_VALUE: Final = 0
_HEADER_COUNT: Final = 1
_HEADER_KEY: Final = 2
_HEADER_VALUE: Final = 3
_END: Final = 4


def read_varint(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Return the zigzag varint of up to 32 bits at ``pos``, and the position after it. Raises ValueError if the varint
    is longer, or does not end before ``end``."""
    value: i64 = 0
    shift: i64 = 0
    while pos < end:
        byte: i64 = data[pos]
        pos += 1
        if shift == 28 and byte > 15:
            raise ValueError("varint is longer than 32 bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise ValueError("truncated varint")


def read_varlong(data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
    """Return the zigzag varint of up to 64 bits at ``pos``, and the position after it. Raises ValueError if the varint
    is longer, or does not end before ``end``."""
    value: i64 = 0
    shift: i64 = 0
    while pos < end:
        byte: i64 = data[pos]
        pos += 1
        if shift == 63:
            if byte > 1:
                raise ValueError("varint is longer than 64 bits")
            # Assembled without the 64th bit, which is the sign of a C integer.
            return ((value >> 1) | (byte << 62)) ^ -(value & 1), pos
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise ValueError("truncated varint")


def _rest(data: bytes, pos: i64, value: i64) -> tuple[i64, i64]:
    """Finish ``read_varint`` when two bytes have been read and the rest of the varint is at ``pos``.

    ``value`` is the value of these two bytes, including the continuation bit of the second. Returns the number before
    zigzag decoding, and the position after it.
    """
    value -= 0x4000
    shift: i64 = 14
    while True:
        byte: i64 = data[pos]
        pos += 1
        if shift == 28 and byte > 15:
            raise ValueError("varint is longer than 32 bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def _plus(base: i64, delta: i64) -> i64:
    """Return ``base + delta``. Raises ValueError if the sum exceeds 64 bits."""
    if -_EVERYDAY < base < _EVERYDAY and -_EVERYDAY < delta < _EVERYDAY:
        return base + delta
    if delta > 0:
        if base > 0x7FFF_FFFF_FFFF_FFFF - delta:
            raise ValueError(_OVERFLOW)
    elif base < -0x7FFF_FFFF_FFFF_FFFF - 1 - delta:
        raise ValueError(_OVERFLOW)
    return base + delta


class Walk:
    """The state of the check of one batch's records, which are passed piece by piece to ``feed``."""

    def __init__(self, base_timestamp: i64, consecutive: bool) -> None:
        self.base_timestamp: i64 = base_timestamp
        self.consecutive = consecutive
        """If True, offset deltas must be 0, 1, 2, ...; otherwise they must only increase (compaction leaves gaps)."""
        self.count: i64 = 0
        self.last_delta: i64 = -1
        self.max_timestamp: i64 = -1
        self.min_timestamp: i64 = 0x7FFF_FFFF_FFFF_FFFF
        """The smallest timestamp of the records with a timestamp; records with timestamp -1 have none."""
        self.first_null_key: i64 = -1
        """The index of the first record without a key; -1 if all records have keys."""
        self.missing: i64 = 0
        """After ``feed_piece``: the number of bytes that the record at the end lacks; 0 if it is complete or its start
        is among the unused bytes."""
        self._skipped: i64 = 0  # how many bytes of the current field are still to come
        self._next: i64 = _END  # the field after it
        self._headers: i64 = 0  # how many headers have not begun

    def feed_piece(self, data: bytes, pos: i64, end: i64, count_max: i64) -> i64:
        """Check ``data[pos:end]``, which may begin and end inside a record: a record of any size is checked while its
        bytes pass. Returns the position of the first unused byte. Fewer than ``_START_BYTES_MAX`` bytes are unused.

        The next piece must start with the unused bytes. Otherwise like ``feed``.
        """
        if end > len(data) or pos < 0:
            raise ValueError("the piece lies outside the bytes")
        if self.missing:
            pos = self._continue(data, pos, end)
            if self.missing:
                return pos
        pos = self.feed(data, pos, end, count_max)
        if end - pos < _START_BYTES_MAX:
            return pos
        if self.count >= count_max:
            raise ValueError("more records than the batch claims")
        return self._continue(data, self._start(data, pos, end), end)

    def _start(self, data: bytes, pos: i64, end: i64) -> i64:
        """Check the start of a record that does not end before ``end``. Returns the position after the length of its
        key."""
        number: i64 = 0
        size, pos = read_varint(data, pos, end)
        stop: i64 = pos + size
        number, pos = read_varlong(data, pos + 1, end)
        timestamp: i64 = _plus(self.base_timestamp, number)
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if timestamp < self.min_timestamp and timestamp != -1:
            self.min_timestamp = timestamp
        number, pos = read_varint(data, pos, end)
        if number <= self.last_delta or (self.consecutive and number != self.last_delta + 1):
            raise ValueError("record offsets are not consecutive, or do not increase")
        self.last_delta = number
        number, pos = read_varint(data, pos, end)
        if number > stop - pos:
            raise ValueError("key exceeds its record")
        if number < -1:
            raise ValueError("negative key length")
        if number < 0 and self.first_null_key < 0:
            self.first_null_key = self.count
        self._skipped = number if number > 0 else 0
        self._next = _VALUE
        self.missing = stop - pos
        return pos

    def _continue(self, data: bytes, pos: i64, end: i64) -> i64:
        """Check the next fields of the record whose start is known. Returns the position of the first unused byte."""
        stop: i64 = pos + self.missing
        end = min(end, stop)
        skipped: i64 = self._skipped
        field: i64 = self._next
        headers: i64 = self._headers
        number: i64 = 0
        while True:
            if skipped >= end - pos and end < stop:
                skipped -= end - pos
                pos = end
                break
            pos += skipped
            skipped = 0
            if field == _END:
                break
            if end - pos < _VARINT_BYTES_MAX and end < stop and not _ends(data, pos, end):
                break
            number, pos = read_varint(data, pos, end)
            if field == _HEADER_COUNT:
                if number < 0:
                    raise ValueError("negative number of headers")
                if number > (stop - pos) // 2:
                    raise ValueError("more headers than the remaining bytes can contain")
                headers = number
                field = _HEADER_KEY if headers else _END
                continue
            if number > stop - pos:
                raise ValueError("a field exceeds its record")
            if number < 0 and (number < -1 or field == _HEADER_KEY):
                raise ValueError("negative length of a field")
            skipped = number if number > 0 else 0
            if field == _HEADER_KEY:
                field = _HEADER_VALUE
                headers -= 1
            elif field == _HEADER_VALUE:
                field = _HEADER_KEY if headers else _END
            else:
                field = _HEADER_COUNT
        self._skipped = skipped
        self._next = field
        self._headers = headers
        self.missing = stop - pos
        if field == _END and skipped == 0:
            if pos != stop:
                raise ValueError("record length does not match its fields")
            self.count += 1
        return pos

    def feed(self, data: bytes, pos: i64, end: i64, count_max: i64) -> i64:
        """Check the complete records in ``data[pos:end]``. Returns the position of the first unused byte.

        The next piece must start with the unused bytes. ``count_max`` is the number of records in the whole batch: one
        more raises ValueError. After a ValueError, ``count`` is the index of the invalid record.
        """
        if end > len(data) or pos < 0:
            raise ValueError("the piece lies outside the bytes")
        try:
            return self._feed(data, pos, end, count_max)
        except IndexError:
            raise ValueError("truncated record") from None

    def _feed(self, data: bytes, pos: i64, end: i64, count_max: i64) -> i64:
        # Two bytes of each number are read inline, because calls would cost twice as much as all other work. A read
        # past the end of a record is detected after its last field; a read past the end of the data raises IndexError.
        byte: i64 = 0
        number: i64 = 0
        delta: i64 = self.last_delta
        max_timestamp: i64 = self.max_timestamp
        min_timestamp: i64 = self.min_timestamp
        base: i64 = self.base_timestamp
        everyday: bool = -_EVERYDAY < base < _EVERYDAY
        while pos < end:
            start: i64 = pos
            if end - pos < 5 and not _ends(data, pos, end):
                break
            number = data[pos]
            pos += 1
            if number >= 0x80:
                byte = data[pos]
                pos += 1
                number += (byte << 7) - 0x80
                if byte >= 0x80:
                    number, pos = _rest(data, pos, number)
            number = (number >> 1) ^ -(number & 1)
            if number < 0:
                raise ValueError("negative record length")
            if number > end - pos:
                pos = start
                break
            stop: i64 = pos + number
            if self.count >= count_max:
                raise ValueError("more records than the batch claims")

            pos += 1  # the attributes, which are unused
            number = data[pos]
            pos += 1
            if number >= 0x80:
                byte = data[pos]
                pos += 1
                if byte >= 0x80:
                    number, pos = read_varlong(data, pos - 2, stop)
                else:
                    number += (byte << 7) - 0x80
                    number = (number >> 1) ^ -(number & 1)
            else:
                number = (number >> 1) ^ -(number & 1)
            if everyday and -_EVERYDAY < number < _EVERYDAY:
                number += base
            else:
                number = _plus(base, number)
            if number > max_timestamp:
                max_timestamp = number
            if number < min_timestamp and number != -1:
                min_timestamp = number

            number = data[pos]
            pos += 1
            if number >= 0x80:
                byte = data[pos]
                pos += 1
                number += (byte << 7) - 0x80
                if byte >= 0x80:
                    number, pos = _rest(data, pos, number)
            number = (number >> 1) ^ -(number & 1)
            if number != delta + 1:
                if self.consecutive:
                    raise ValueError("record offsets are not consecutive")
                if number <= delta:
                    raise ValueError("record offsets do not increase")
            delta = number

            number = data[pos]
            pos += 1
            if number >= 0x80:
                byte = data[pos]
                pos += 1
                number += (byte << 7) - 0x80
                if byte >= 0x80:
                    number, pos = _rest(data, pos, number)
            number = (number >> 1) ^ -(number & 1)
            if number >= 0:
                if number > stop - pos:
                    raise ValueError("key exceeds its record")
                pos += number
            elif number != -1:
                raise ValueError("negative key length")
            elif self.first_null_key < 0:
                self.first_null_key = self.count

            number = data[pos]
            pos += 1
            if number >= 0x80:
                byte = data[pos]
                pos += 1
                number += (byte << 7) - 0x80
                if byte >= 0x80:
                    number, pos = _rest(data, pos, number)
            number = (number >> 1) ^ -(number & 1)
            if number > 0:
                if number > stop - pos:
                    raise ValueError("value exceeds its record")
                pos += number
            elif number < -1:
                raise ValueError("negative value length")

            if data[pos] == 0:
                pos += 1
            else:
                pos = _skip_headers(data, pos, stop)
            if pos != stop:
                raise ValueError("record length does not match its fields")
            self.count += 1
        self.last_delta = delta
        self.max_timestamp = max_timestamp
        self.min_timestamp = min_timestamp
        return pos


def _ends(data: bytes, pos: i64, end: i64) -> bool:
    """Return True if a varint that starts at ``pos`` ends before ``end``."""
    while pos < end:
        byte: i64 = data[pos]
        if byte < 0x80:
            return True
        pos += 1
    return False


def _skip_headers(data: bytes, pos: i64, end: i64) -> i64:
    """Check the headers at ``pos``, and return the position after them."""
    size: i64 = 0
    count, pos = read_varint(data, pos, end)
    if count < 0:
        raise ValueError("negative number of headers")
    if count > (end - pos) // 2:
        raise ValueError("more headers than the remaining bytes can contain")
    while count > 0:
        size, pos = read_varint(data, pos, end)
        if size < 0:
            raise ValueError("null header key")
        if size > end - pos:
            raise ValueError("header key exceeds its record")
        pos += size
        size, pos = read_varint(data, pos, end)
        if size < -1:
            raise ValueError("negative header value length")
        if size > 0:
            if size > end - pos:
                raise ValueError("header value exceeds its record")
            pos += size
        count -= 1
    return pos


def read_records(
    data: bytes,
    pos: i64,
    count_max: i64,
    base_offset: i64,
    base_timestamp: i64,
    fixed_timestamp: int | None,
    make: Callable[[Any, Fields], Any],
    record: Any,
) -> tuple[list[Any], i64]:
    """Return at most ``count_max`` records, each as ``make(record, fields)``, and the position after them.

    ``fixed_timestamp`` is the timestamp of all records, or None if they have separate timestamps (CreateTime). Raises
    ValueError if a record is invalid.
    """
    end: i64 = len(data)
    size: i64 = 0
    number: i64 = 0
    records: list[Any] = []
    while count_max > 0:
        count_max -= 1
        size, pos = read_varint(data, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("record exceeds its batch")
        stop: i64 = pos + size
        number, pos = read_varlong(data, pos + 1, stop)
        timestamp: i64 = _plus(base_timestamp, number)
        number, pos = read_varint(data, pos, stop)
        offset: i64 = _plus(base_offset, number)
        key: bytes | None = None
        value: bytes | None = None
        number, pos = read_varint(data, pos, stop)
        if number >= 0:
            if number > stop - pos:
                raise ValueError("key exceeds its record")
            key = data[pos : pos + number]
            pos += number
        number, pos = read_varint(data, pos, stop)
        if number >= 0:
            if number > stop - pos:
                raise ValueError("value exceeds its record")
            value = data[pos : pos + number]
            pos += number
        headers: tuple[tuple[str, bytes | None], ...] = ()
        if pos < stop and data[pos] == 0:
            pos += 1
        else:
            headers, pos = _read_headers(data, pos, stop)
        if pos != stop:
            raise ValueError("record length does not match its fields")
        when: int = timestamp if fixed_timestamp is None else fixed_timestamp
        records.append(make(record, (offset, when, key, value, headers)))
    return records, pos


def _read_headers(data: bytes, pos: i64, end: i64) -> tuple[tuple[tuple[str, bytes | None], ...], i64]:
    size: i64 = 0
    count, pos = read_varint(data, pos, end)
    if count < 0 or count > (end - pos) // 2:
        raise ValueError("more headers than the remaining bytes can contain")
    headers: list[tuple[str, bytes | None]] = []
    while count > 0:
        count -= 1
        size, pos = read_varint(data, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("header key exceeds its record")
        # Bytes that are not UTF-8 survive a round trip (``encode_records`` does the same).
        name = data[pos : pos + size].decode("utf-8", "surrogateescape")
        pos += size
        size, pos = read_varint(data, pos, end)
        value: bytes | None = None
        if size >= 0:
            if size > end - pos:
                raise ValueError("header value exceeds its record")
            value = data[pos : pos + size]
            pos += size
        headers.append((name, value))
    return tuple(headers), pos


def _varint_bytes(value: int) -> bytes:
    zigzag = 2 * value if value >= 0 else -2 * value - 1
    if zigzag >> 64:
        raise ValueError("varint is longer than 64 bits")
    out = bytearray()
    while zigzag > 0x7F:
        out.append(0x80 | (zigzag & 0x7F))
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


_VARINTS: Final[list[bytes]] = [_varint_bytes(value) for value in range(2048)]
_NULL: Final = _varint_bytes(-1)


def varint(value: int) -> bytes:
    """Encode a signed number of up to 64 bits as a zigzag varint. Raises ValueError if it is longer."""
    if 0 <= value < 2048:
        return _VARINTS[value]
    return _varint_bytes(value)


def encode_records(records: list[Any], base_offset: int | None, base_timestamp: int) -> bytes:
    """Encode records of (offset, timestamp, key, value, headers); key and value are buffers or None.

    Offset deltas are relative to ``base_offset``. If it is None, they are 0, 1, 2, ..., and the offsets are ignored.
    Raises ValueError if a timestamp differs from ``base_timestamp`` by more than 64 bits can express.
    """
    out: list[Any] = []
    index: int = 0
    for offset, timestamp, key, value, headers in records:
        time = varint(timestamp - base_timestamp)
        delta = varint(index if base_offset is None else offset - base_offset)
        index += 1  # noqa: SIM113 (enumerate makes a tuple where this is compiled)
        key_size = _NULL if key is None else varint(len(key))
        value_size = _NULL if value is None else varint(len(value))
        size: int = 2 + len(time) + len(delta) + len(key_size) + len(value_size)
        if key is not None:
            size += len(key)
        if value is not None:
            size += len(value)
        tail: bytes = b"\x00"
        if headers:
            tail = _encode_headers(headers)
            size += len(tail) - 1
        out.append(varint(size))
        out.append(b"\x00")
        out.append(time)
        out.append(delta)
        out.append(key_size)
        if key is not None:
            out.append(key)
        out.append(value_size)
        if value is not None:
            out.append(value)
        out.append(tail)
    return b"".join(out)


def _encode_headers(headers: Any) -> bytes:
    out: list[Any] = [varint(len(headers))]
    for name, value in headers:
        encoded: bytes = name.encode("utf-8", "surrogateescape")
        out.append(varint(len(encoded)))
        out.append(encoded)
        if value is None:
            out.append(_NULL)
        else:
            out.append(varint(len(value)))
            out.append(value)
    return b"".join(out)
