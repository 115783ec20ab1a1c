"""Durable files: a file's content is on the disk before the file gets its final name."""

from __future__ import annotations

import os


def to_disk(path: str) -> None:
    """Sync a local file's content to the disk. Call this before the file gets its final name. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
