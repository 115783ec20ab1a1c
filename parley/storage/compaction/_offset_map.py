"""The offset map of a compaction, and the loops that read the records of a batch. Compiled by mypyc, like ``_walk``.

The offset map holds the last offset of each key. Each slot takes 24 bytes and stores a 124-bit hash instead of the key.
If two keys had the same hash, a record would be lost, but a hardware fault is more likely. Half of the hash is Python's
own hash of ``bytes``, which is keyed with a secret of the process, so no client can choose keys that collide. The other
half is FNV-1a, which takes a tenth of the compaction's time.

The loops read records as ``parley.protocol.records._walk`` describes them. Kept records are copied unchanged: the base
offset and the base timestamp of their batch stay. Invalid bytes raise ValueError, and nothing else.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from parley.protocol.records._walk import read_varint, read_varlong, varint

SLOT_BYTES: Final = 24
"""The size of a slot: the two halves of a hash, and an offset."""
NO_OFFSET: Final = -1
_FNV_BASIS: Final = 0x0BF29CE484222325
_FNV_PRIME: Final = 0x100000001B3
_MASK: Final = 0x0FFF_FFFF_FFFF_FFFF


class OffsetMap:
    """Maps each key to its last offset. It accepts new keys until ``count`` reaches ``limit``.
    Raises ValueError unless ``limit`` is above 0 and below ``slots``.
    """

    def __init__(self, slots: i64, limit: i64) -> None:
        if not 0 < limit < slots:
            raise ValueError("the offset map needs a free slot")
        self.slots: i64 = slots
        self.limit: i64 = limit
        self.count: i64 = 0
        table = vec[i64](capacity=3 * slots)
        left: i64 = 3 * slots
        while left > 0:
            table = append(table, -1)
            left -= 1
        self._table = table
        """Three numbers for each slot: two hashes, and the offset, which is negative in a free slot."""
        self._first: i64 = 0
        self._second: i64 = 0

    def get(self, key: bytes) -> i64:
        """Return the offset of a key, or NO_OFFSET if the map does not contain the key."""
        return self._table[self._slot(key) + 2]

    def put(self, key: bytes, offset: i64) -> bool:
        """Record the offset of a key, which must exceed its previous offset. Returns False, and records nothing, if the
        key is new and the map is full."""
        table = self._table
        at: i64 = self._slot(key)
        if table[at + 2] < 0:
            if self.count >= self.limit:
                return False
            self.count += 1
            table[at] = self._first
            table[at + 1] = self._second
        table[at + 2] = offset
        return True

    def _slot(self, key: bytes) -> i64:
        """Return the index of the slot that contains the key, or of the free slot for it.

        Leaves the two halves of the key's hash in ``_first`` and ``_second``.
        """
        first: i64 = hash(key)
        second: i64 = _fnv(key)
        self._first = first
        self._second = second
        table = self._table
        end: i64 = 3 * self.slots
        at: i64 = 3 * ((first & _MASK) % self.slots)
        while table[at + 2] >= 0 and (table[at] != first or table[at + 1] != second):
            at += 3
            if at == end:
                at = 0
        return at


def _fnv(key: bytes) -> i64:
    """Return the FNV-1a hash of a key. It is masked to 60 bits so that compiled code returns the same hash as
    interpreted code, whose integers do not overflow."""
    value: i64 = _FNV_BASIS
    pos: i64 = 0
    end: i64 = len(key)
    while pos < end:
        value = ((value ^ key[pos]) * _FNV_PRIME) & _MASK
        pos += 1
    return value


def note_keys(records: bytes, count: i64, base_offset: i64, start: i64, keys: OffsetMap) -> bool:
    """Record in ``keys`` the keys of a batch's ``count`` records, from offset ``start`` on.

    Returns False if the map became full: then only some of the keys have been recorded. Raises ValueError if the
    records are malformed.
    """
    end: i64 = len(records)
    pos: i64 = 0
    size: i64 = 0
    number: i64 = 0
    while count > 0:
        count -= 1
        size, pos = read_varint(records, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("record exceeds its batch")
        stop: i64 = pos + size
        number, pos = read_varlong(records, pos + 1, stop)
        number, pos = read_varint(records, pos, stop)
        offset: i64 = base_offset + number
        number, pos = read_varint(records, pos, stop)
        if number > stop - pos:
            raise ValueError("key exceeds its record")
        if number >= 0 and offset >= start and not keys.put(records[pos : pos + number], offset):
            return False
        pos = stop
    if pos != end:
        raise ValueError("more records than the batch header claims")
    return True


class Selection:
    """The records of a batch that a compaction keeps."""

    def __init__(self) -> None:
        self.records: bytes | None = None
        """The bytes of the kept records; None if all records are kept."""
        self.count: i64 = 0
        self.max_delta: i64 = -0x7FFF_FFFF_FFFF_FFFF
        """The largest timestamp of the kept records, relative to the base timestamp."""
        self.tombstones: i64 = 0
        """The number of kept tombstones."""
        self.without_key: i64 = 0
        """The number of records removed because they have no key."""


def select(
    records: bytes, count: i64, base_offset: i64, end_offset: i64, drops_tombstones: bool, keys: OffsetMap
) -> Selection:
    """Select the records of a batch that the compaction keeps. ``records`` are its ``count`` records, decompressed.

    It removes records without a key, records that a later record supersedes, and, with ``drops_tombstones``,
    tombstones. It keeps all records from ``end_offset`` on. Raises ValueError if the records are malformed.
    """
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
            raise ValueError("record exceeds its batch")
        stop: i64 = pos + size
        delta, pos = read_varlong(records, pos + 1, stop)
        number, pos = read_varint(records, pos, stop)
        offset: i64 = base_offset + number
        number, pos = read_varint(records, pos, stop)
        if number > stop - pos:
            raise ValueError("key exceeds its record")
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
        raise ValueError("more records than the batch header claims")
    if kept_from > 0:
        if end > kept_from:
            kept.append(records[kept_from:end])
        found.records = b"".join(kept)
    return found


def shift_timestamps(records: bytes, count: i64, by: i64) -> bytes:
    """Return the records with ``by`` added to their timestamp deltas, because the new base timestamp is lower by
    ``by``. Raises ``ValueError`` if the records are invalid, or a delta becomes too large for the format."""
    end: i64 = len(records)
    pos: i64 = 0
    size: i64 = 0
    delta: i64 = 0
    out: list[bytes] = []
    while count > 0:
        count -= 1
        size, pos = read_varint(records, pos, end)
        if size < 0 or size > end - pos:
            raise ValueError("record exceeds its batch")
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
