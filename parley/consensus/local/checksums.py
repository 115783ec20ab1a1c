"""The checksums of the embedded store's rows, because SQLite keeps none of its pages.

A row's checksum is a CRC of its other columns plus the one number that SQL statements compute: the revision of an entry
or a deletion, or the time at which a session was renewed. So a statement can add this number to the CRC itself, without
calling Python code.

``state.total`` is the sum of all rows' checksums, and reveals rows that are missing or outdated. ``state.checksum`` is
the CRC of the identity, plus the numbers of ``state``. Statements add differences to both and never recompute them, so
damage remains visible after a damaged row is written. The boot id is not covered: if it is damaged, all sessions end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

TOTAL_MASK = (1 << 40) - 1
"""The mask of the total, and of each row's contribution to it: 40 bits, so that SQLite's integers do not overflow."""
_SESSION_FOLLOWS = 0x50524C59


def text_checksum(text: str) -> int:
    """Return the checksum of a key or of an identity."""
    return crc32(text.encode())


def entry_checksum(key_checksum: int, value: bytes, session: str | None) -> int:
    """Return the checksum of an entry without its revision."""
    checksum = crc32(value, key_checksum)
    return checksum if session is None else crc32(session.encode(), checksum ^ _SESSION_FOLLOWS)


def session_checksum(session: str, process: str, ttl_ms: int) -> int:
    """Return the checksum of a session without the time of its renewal."""
    return crc32(f"{session} {process} {ttl_ms}".encode())


def is_intact_entry(row: Sequence[Any]) -> bool:
    """Return True if a row (key, value, revision, session, key_checksum, checksum) is as it was written."""
    key, value, revision, session, key_checksum, checksum = row
    return (
        type(key) is str
        and type(value) is bytes
        and type(revision) is int
        and (session is None or type(session) is str)
        and text_checksum(key) == key_checksum
        and entry_checksum(key_checksum, value, session) + revision == checksum
    )


def is_intact_removal(row: Sequence[Any]) -> bool:
    """Return True if a row (key, revision, checksum) is as it was written."""
    key, revision, checksum = row
    return type(key) is str and type(revision) is int and text_checksum(key) + revision == checksum


def is_intact_session(row: Sequence[Any]) -> bool:
    """Return True if a row (id, process, ttl_ms, renewed_ms, checksum) is as it was written."""
    session, process, ttl_ms, renewed_ms, checksum = row
    return type(renewed_ms) is int and session_checksum(session, process, ttl_ms) + renewed_ms == checksum
