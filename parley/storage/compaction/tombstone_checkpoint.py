"""The offset up to which tombstones may be missing from a compacted log (docs/storage.md, "Replicas that were away").

Rules:

1. Below this offset, tombstones and transaction markers may have been removed. The log contains no record that a
   removed tombstone deletes, and no batch of a transaction that a removed marker ends.
2. The offset is on disk before a tombstone is removed. It is lowered on disk before the log is truncated below it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from parley.storage.checkpoints import INT64_MAX, MalformedCheckpoint, encode, read, whole_number, write_atomically

CHECKPOINT: Final = "removed-tombstones-checkpoint"


class TombstoneCheckpoint:
    """The offset of one log (``up_to``). Reads the file at ``path``; without a file, no tombstone was removed."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """``is_new`` means that the log has no files yet, so the checkpoint is not read."""
        self.path = path
        self.up_to = 0 if is_new else max(read(path, _offset), default=0)

    def set(self, offset: int) -> None:
        """Set the offset, and block until it is on disk. Raises ``OSError``."""
        if offset != self.up_to:
            write_atomically(self.path, encode([str(offset)]))
            self.up_to = offset


def _offset(words: list[str]) -> int:
    if len(words) != 1:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not an offset")
    return whole_number(words[0], INT64_MAX)
