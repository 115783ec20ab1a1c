"""The table of keys of a compaction, and its loops over the records of a batch. Compiled by mypyc, as ``_walk`` is.

The table has the last offset of each key. It keeps 128 bits of hash instead of a key, in 24 bytes a slot: two keys with
the same 128 bits would cost a record, which is less likely than any fault of the machine. The hash is Python's own for
``bytes``, which has a secret key for each process, so no client can choose keys that collide.

The loops read records as ``parley.protocol.records._walk`` describes them. Records that are kept are copied as they
are: the base offset and the base timestamp of their batch stay. Invalid bytes raise ValueError, and nothing else.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from parley.protocol.records._walk import read_varint, read_varlong, varint

if TYPE_CHECKING:
    from mypy_extensions import i64

SLOT_BYTES: Final = 24
"""The memory of a slot: two halves of a hash, and an offset."""
NO_OFFSET: Final = -1
_SALT: Final = b"parley"


class OffsetMap:
    """The last offset of each key; takes keys until ``count`` is ``limit``. ``limit`` is below ``slots``."""

    def __init__(self, slots: i64, limit: i64) -> None:
        if not 0 < limit < slots:
            raise ValueError("a table of keys needs a free slot")
        self.slots: i64 = slots
        self.limit: i64 = limit
        self.count: i64 = 0
        self._hashes: array[int] = array("q", bytes(16 * slots))
        self._offsets: array[int] = array("q", b"\xff" * (8 * slots))

    def get(self, key: bytes) -> i64:
        """The offset of a key; NO_OFFSET if it is not in the table."""
        first: i64 = hash(key)
        second: i64 = hash(_SALT + key)
        hashes, offsets = self._hashes, self._offsets
        slots: i64 = self.slots
        slot: i64 = (first & 0x0FFF_FFFF_FFFF_FFFF) % slots
        while True:
            offset: i64 = offsets[slot]
            if offset < 0:
                return -1
            known: i64 = hashes[2 * slot]
            if known == first:
                known = hashes[2 * slot + 1]
                if known == second:
                    return offset
            slot += 1
            if slot == slots:
                slot = 0

    def put(self, key: bytes, offset: i64) -> bool:
        """Note the offset of a key, which is higher than that noted before. Returns False if the table is full."""
        first: i64 = hash(key)
        second: i64 = hash(_SALT + key)
        hashes, offsets = self._hashes, self._offsets
        slots: i64 = self.slots
        slot: i64 = (first & 0x0FFF_FFFF_FFFF_FFFF) % slots
        while True:
            taken: i64 = offsets[slot]
            if taken < 0:
                break
            known: i64 = hashes[2 * slot]
            if known == first:
                known = hashes[2 * slot + 1]
                if known == second:
                    offsets[slot] = offset
                    return True
            slot += 1
            if slot == slots:
                slot = 0
        if self.count >= self.limit:
            return False
        self.count += 1
        hashes[2 * slot] = first
        hashes[2 * slot + 1] = second
        offsets[slot] = offset
        return True


def note_keys(records: bytes, count: i64, base_offset: i64, start: i64, keys: OffsetMap) -> bool:
    """Note the keys of a batch's records from offset ``start`` on. Returns False if the table became full.

    Then some records of the batch are noted and others are not.
    """
    end: i64 = len(records)
    pos: i64 = 0
    size: i64 = 0
    number: i64 = 0
    while count > 0:
        count -= 1
        size, pos = read_varint(records, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("a record is longer than its batch")
        stop: i64 = pos + size
        number, pos = read_varlong(records, pos + 1, stop)
        number, pos = read_varint(records, pos, stop)
        offset: i64 = base_offset + number
        number, pos = read_varint(records, pos, stop)
        if number > stop - pos:
            raise ValueError("a key is longer than its record")
        if number >= 0 and offset >= start and not keys.put(records[pos : pos + number], offset):
            return False
        pos = stop
    if pos != end:
        raise ValueError("a batch holds more than the records that its header claims")
    return True


class Selection:
    """The records of a batch that a compaction keeps."""

    def __init__(self) -> None:
        self.records: bytes | None = None
        """Their bytes; None if all records are kept."""
        self.count: i64 = 0
        self.max_delta: i64 = -0x7FFF_FFFF_FFFF_FFFF
        """The largest timestamp of those that are kept, counted from the base timestamp."""
        self.tombstones: i64 = 0
        """How many of those that are kept are tombstones."""
        self.without_key: i64 = 0
        """How many were removed because they have no key."""


def select(
    records: bytes, count: i64, base_offset: i64, end_offset: i64, drops_tombstones: bool, keys: OffsetMap
) -> Selection:
    """Select the records of a batch that no later one supersedes. Those from ``end_offset`` on are all kept."""
    found = Selection()
    end: i64 = len(records)
    pos: i64 = 0
    size: i64 = 0
    number: i64 = 0
    delta: i64 = 0
    kept_from: i64 = 0
    kept: list[bytes] = []
    while count > 0:
        count -= 1
        begin: i64 = pos
        size, pos = read_varint(records, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("a record is longer than its batch")
        stop: i64 = pos + size
        delta, pos = read_varlong(records, pos + 1, stop)
        number, pos = read_varint(records, pos, stop)
        offset: i64 = base_offset + number
        number, pos = read_varint(records, pos, stop)
        if number > stop - pos:
            raise ValueError("a key is longer than its record")
        keeps = True
        if number < 0:
            if offset < end_offset:
                keeps = False
                found.without_key += 1
        else:
            key = records[pos : pos + number]
            pos += number
            if offset < end_offset and offset < keys.get(key):
                keeps = False
        if keeps:
            number, pos = read_varint(records, pos, stop)
            if number < 0:
                if drops_tombstones and offset < end_offset:
                    keeps = False
                else:
                    found.tombstones += 1
        if keeps:
            found.count += 1
            if delta > found.max_delta:
                found.max_delta = delta
        else:
            if begin > kept_from:
                kept.append(records[kept_from:begin])
            kept_from = stop
        pos = stop
    if pos != end:
        raise ValueError("a batch holds more than the records that its header claims")
    if kept_from > 0:
        if end > kept_from:
            kept.append(records[kept_from:end])
        found.records = b"".join(kept)
    return found


def shift_timestamps(records: bytes, count: i64, by: i64) -> bytes:
    """The records with ``by`` added to their timestamp deltas, for a base timestamp that is lower by as much."""
    end: i64 = len(records)
    pos: i64 = 0
    size: i64 = 0
    delta: i64 = 0
    out: list[bytes] = []
    while count > 0:
        count -= 1
        size, pos = read_varint(records, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("a record is longer than its batch")
        stop: i64 = pos + size
        attributes = records[pos : pos + 1]
        delta, pos = read_varlong(records, pos + 1, stop)
        changed: int = delta
        changed += by
        time = varint(changed)
        out.append(varint(1 + len(time) + stop - pos))
        out.append(attributes)
        out.append(time)
        out.append(records[pos:stop])
        pos = stop
    return b"".join(out)
