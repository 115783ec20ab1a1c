"""A record, independent of the format from which it was read or in which it will be written."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One record: its offset in the partition, its timestamp in ms (-1: none), key, value and headers.

    A header is a name and a value. Bytes of a name that are not UTF-8 are kept as surrogate escapes.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
