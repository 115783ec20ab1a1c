"""One record, whatever the format it was read from or will be written in."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """One record: its offset in the partition, its timestamp in ms (-1: none), and what it carries.

    A header is a name and a value. Bytes of a name that are no UTF-8 come as surrogate escapes and go back the same.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
