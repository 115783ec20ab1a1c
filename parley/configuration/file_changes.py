"""Detects changes to files without reading them."""

from __future__ import annotations

import os
from collections.abc import Iterable

__all__ = ["fingerprint_of"]


def fingerprint_of(paths: Iterable[str]) -> tuple[object, ...]:
    """Return a value that changes when one of the files is written, replaced or removed. A file that cannot be examined
    counts as removed. Blocks on the disk."""
    return tuple(_fingerprint(path) for path in paths)


def _fingerprint(path: str) -> tuple[object, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return (path,)
    return (path, found.st_mtime_ns, found.st_size, found.st_ino)
