"""A file that lists the known damage of a log until it is mended, so that a restart does not forget it.

After a restart, the same damage might not be found again: a reboot invalidates ``appended_epochs``, a startup without a
scan does not compare a batch with its neighbors, and an active segment loses its digest if the broker is killed. Rules:

1. The file is on disk before the damage is reported. It contains the positions of the damaged bytes of each segment.
2. An entry contains a checksum of the damaged bytes and of the entry itself. An entry is ignored if its bytes were
   mended, moved or removed since, or if the entry was altered. Outdated entries are therefore harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple, Self

from parley.protocol.records.crc32c import crc32c
from parley.storage.checkpoints import INT64_MAX, MalformedCheckpoint, encode, read, whole_number, write_atomically
from parley.storage.damage.damaged_ranges import DamagedBytes, joined
from parley.storage.log_directory import FULL
from parley.storage.readable_segment import ReadableSegment
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile

RECORDED_DAMAGE: Final = "damaged-ranges"

_log = logging.getLogger(__name__)


class _Entry(NamedTuple):
    base_offset: int  # of the segment
    damaged: DamagedBytes


class RecordedDamage:
    """The recorded damage of one log. Any thread may call any method."""

    def __init__(self, path: Path) -> None:
        """Start without damage. The file will be written to ``path``."""
        self.path = path
        self._on_disk: Mapping[_Entry, int] = {}
        self._checksums: Mapping[_Entry, int] = {}  # of the damage that is still there
        self._lock = Lock()

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the file at ``path``. A missing or malformed file counts as empty. Raises ``OSError``."""
        opened = cls(path)
        opened._on_disk = dict(read(path, _entry))
        return opened

    def of(self, segment: ReadableSegment) -> tuple[DamagedBytes, ...]:
        """Return the recorded damage of a segment, without entries whose bytes have changed. Reads the damaged bytes.
        Raises ``OSError``."""
        found = {
            entry: checksum
            for entry, checksum in self._on_disk.items()
            if entry.base_offset == segment.base_offset and _checksum(entry, segment.file) == checksum
        }
        self._checksums = {**self._checksums, **found}
        return joined((entry.damaged for entry in found), ())

    def record(self, segments: Iterable[ReadableSegment]) -> None:
        """Write the damage of these segments to the file, unless the file already contains exactly this damage. Removes
        the file if the segments have none.

        Blocks until the file is on disk. Raises ``OSError``, except if the disk is full, which is only logged.
        """
        with self._lock:
            checksums: dict[_Entry, int] = {}
            for segment in segments:
                for damaged in segment.damage:
                    entry = _Entry(segment.base_offset, damaged)
                    known = self._checksums.get(entry)
                    with suppress(FileNotFoundError):  # the next startup finds that the file is missing
                        checksums[entry] = _checksum(entry, segment.file) if known is None else known
            self._checksums = checksums
            if checksums != self._on_disk:
                self._write(checksums)

    def _write(self, checksums: Mapping[_Entry, int]) -> None:
        try:
            if checksums:
                write_atomically(self.path, encode(map(_line, checksums, checksums.values())))
            else:
                self.path.unlink(missing_ok=True)
            self._on_disk = checksums
        except OSError as error:
            if error.errno not in FULL:
                raise
            _log.warning("cannot record the damage of a log", extra={"path": str(self.path), "reason": str(error)})


def _checksum(entry: _Entry, file: SegmentFile) -> int:
    """Return the checksum of the damaged bytes, followed by the entry."""
    position, end, checksum = entry.damaged.position, entry.damaged.end, 0
    while position < end and (piece := file.read(min(SCAN_CHUNK, end - position), position)):
        checksum = crc32c(piece, checksum)
        position += len(piece)
    return crc32c(_words(entry).encode(), checksum)


def _words(entry: _Entry) -> str:
    damaged = entry.damaged
    numbers = (entry.base_offset, damaged.position, damaged.end, damaged.first_offset, damaged.last_offset)
    return " ".join([*map(str, numbers), *damaged.reason.split()])


def _line(entry: _Entry, checksum: int) -> str:
    return f"{checksum} {_words(entry)}"


def _entry(words: list[str]) -> tuple[_Entry, int]:
    if len(words) < 6:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a damaged range")
    checksum, base_offset, *damaged = [whole_number(word, INT64_MAX) for word in words[:6]]
    position, end, first_offset, last_offset = damaged
    reason = " ".join(words[6:])
    return _Entry(base_offset, DamagedBytes(position, end, first_offset, last_offset, reason)), checksum
