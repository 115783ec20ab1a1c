"""The offset up to which tombstones may be missing from a compacted log (docs/storage.md, "Replicas that were away").

Rules:

1. Below this offset, tombstones and transaction markers may have been removed. The log contains no record that a
   removed tombstone deletes, and no batch of a transaction that a removed marker ends.
2. The offset is on disk before a tombstone is removed. It is lowered on disk before the log is truncated below it.
3. If the file is malformed, tombstones may be missing from the whole log. With a lower offset, a replica that was away
   would keep the records that the missing tombstones delete, and show them as leader.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from parley.storage.checkpoints import INT64_MAX, MalformedCheckpoint, read_well_formed, whole_number, write

_log = logging.getLogger(__name__)

CHECKPOINT: Final = "removed-tombstones-checkpoint"


class TombstoneCheckpoint:
    """The checkpoint of one log. ``up_to`` is the offset up to which tombstones may be missing; 0 if there is no file
    at ``path``."""

    def __init__(self, path: Path, log_end: int, *, is_new: bool = False) -> None:
        """``log_end`` is the log end offset, which becomes ``up_to`` if the file is malformed. ``is_new`` means that
        the log has no files yet, so the checkpoint is not read. Raises ``OSError``."""
        self.path = path
        self.up_to = 0 if is_new else self._read(log_end)

    def _read(self, log_end: int) -> int:
        try:
            return max(read_well_formed(self.path, _offset) or (0,))
        except MalformedCheckpoint as error:
            _log.warning("%s is malformed (%s): tombstones may be missing from the whole log", self.path, error)
            return log_end

    def set(self, offset: int) -> None:
        """Set the offset, and block until it is on disk. Raises ``OSError``."""
        if offset != self.up_to:
            write(self.path, [str(offset)])
            self.up_to = offset


def _offset(words: list[str]) -> int:
    if len(words) != 1:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not an offset")
    return whole_number(words[0], INT64_MAX)
