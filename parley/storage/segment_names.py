"""The names of a segment's files: the base offset in twenty digits, and a suffix for the kind of file.

A second suffix marks files that are being added (``.cleaned``, ``.swap``) or removed (``.deleted``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
DIGEST_SUFFIX: Final = ".digest"
INDEX_SUFFIXES: Final = (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, DIGEST_SUFFIX)
SUFFIXES: Final = (LOG_SUFFIX, *INDEX_SUFFIXES)
CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a file of the segment that starts at ``base_offset``."""
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """Return the base offset in a segment file's name, or None for any other name."""
    digits = name.split(".", 1)[0]
    return int(digits) if len(digits) == 20 and digits.isdecimal() and digits.isascii() else None


def path_in(directory: Path, base_offset: int, suffix: str) -> Path:
    """Return the path of a file of the segment in ``directory`` that starts at ``base_offset``."""
    return directory / file_name(base_offset, suffix)


def paths_in(directory: Path, base_offset: int, suffix: str) -> list[Path]:
    """Return the paths of all files that a segment can have, existing or not, with ``suffix`` as the second suffix."""
    return [directory / file_name(base_offset, kind + suffix) for kind in SUFFIXES]
