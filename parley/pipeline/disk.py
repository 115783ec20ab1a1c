"""Files that outlive the power: what a name in a folder promises is on the disk before the name is there."""

from __future__ import annotations

import os


def to_disk(path: str) -> None:
    """Write out what the system still holds back of a local file, so that it is whole under its final name."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
