"""Segments that were verified before the broker stopped, and whose files have not changed since.

Only the scrubber verifies bytes again that the process has already written or verified. If the broker restarts but the
machine does not, this list saves verifying them again: the same kernel still keeps the same files. Rules:

1. A clean stop lists the files of all segments without unverified bytes and without damage, with their inodes, sizes
   and times of the last change (``ctime``). The next start removes the list. It uses the list only if the stop was
   clean and the machine has not restarted since.
2. A file that equals its entry counts as verified. No program can set ``ctime``: it changes whenever a file is
   written, truncated or renamed, or its modification time is set. A file that was replaced has another inode.
3. Two changes within one tick of the clock may give a file the same ``ctime``. A file that changed just before the stop
   is therefore not listed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from parley.protocol.topic_partition import TopicPartition
from parley.storage.checkpoints import (
    INT32_MAX,
    MalformedCheckpoint,
    encode,
    read,
    whole_number,
    with_blank_checksum,
    write_atomically,
)
from parley.storage.segment import Segment
from parley.storage.segment_names import LOG_SUFFIX

VERIFIED_SEGMENTS: Final = "verified-segments"
"""The list, in each log directory. Its lines have the form ``topic partition base-offset inode size changed-ns``."""

SETTLED_NS: Final = 50_000_000
"""A file that has not changed for this long gets another ``ctime`` when it changes: Linux's clock ticks at least every
10 ms."""
COARSE_SETTLED_NS: Final = 3_000_000_000
"""The same for file systems with a resolution of up to two seconds. Their times are whole milliseconds."""
_MILLISECOND: Final = 1_000_000
_UINT64_MAX: Final = (1 << 64) - 1


class FileVersion(NamedTuple):
    """The state of a file by which a change is recognized: every change leads to another value. ``changed_ns`` is the
    file's ``ctime`` in nanoseconds since 1970."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Return the present version of the file at ``path``. Raises ``OSError``."""
        found = os.stat(path)
        return cls(found.st_ino, found.st_size, found.st_ctime_ns)

    def is_settled(self, now_ns: int) -> bool:
        """Return True if every change of the file after ``now_ns`` leads to another version."""
        is_coarse = self.changed_ns % _MILLISECOND == 0
        return self.changed_ns + (COARSE_SETTLED_NS if is_coarse else SETTLED_NS) <= now_ns


Versions = Mapping[int, FileVersion]
"""The versions of verified files of one log, by the base offset of the segment."""


def note_verified(directory: Path, logs: Iterable[tuple[TopicPartition, Sequence[Segment]]]) -> None:
    """Write the list of verified segments of the log directory. The logs must be closed. Blocks. Raises ``OSError``.

    The list is not synced, because it has no effect after a restart of the machine.
    """
    lines = [
        f"{topic} {partition} {segment.base_offset} {version.inode} {version.size} {version.changed_ns}"
        for (topic, partition), segments in logs
        for segment in segments
        if (version := _verified(segment)) is not None
    ]
    if lines:
        write_atomically(directory / VERIFIED_SEGMENTS, with_blank_checksum(encode(lines)), sync=False)


def _verified(segment: Segment) -> FileVersion | None:
    """Return the version of the segment's file; None if it must be verified after the next start."""
    if not segment.size or segment.unverified or segment.damage:
        return None
    with suppress(FileNotFoundError):
        version = FileVersion.of(segment.path_of(LOG_SUFFIX))
        if version.size == segment.size and version.is_settled(time.time_ns()):
            return version
    return None


def take_verified(directory: Path, *, is_valid: bool) -> dict[TopicPartition, Versions]:
    """Return the list of verified segments by partition, and remove it. A malformed list counts as empty.

    ``is_valid`` is False if the stop was not clean or the machine has restarted since: then nothing counts as verified.
    Raises ``OSError``.
    """
    path = directory / VERIFIED_SEGMENTS
    found: dict[TopicPartition, dict[int, FileVersion]] = {}
    for partition, base, version in read(path, _entry) if is_valid else ():
        found.setdefault(partition, {})[base] = version
    path.unlink(missing_ok=True)
    return dict(found)


def _entry(words: list[str]) -> tuple[TopicPartition, int, FileVersion]:
    if len(words) != 6:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic, a partition and four numbers")
    base, inode, size, changed_ns = (whole_number(word, _UINT64_MAX) for word in words[2:])
    return (words[0], whole_number(words[1], INT32_MAX)), base, FileVersion(inode, size, changed_ns)


def count_unchanged_as_verified(segments: Iterable[Segment], versions: Versions) -> None:
    """Mark the segments whose files still equal their entry in ``versions`` as verified. Blocks. Raises ``OSError``."""
    for segment in segments:
        known = versions.get(segment.base_offset)
        if known is not None and known.size == segment.size:
            with suppress(FileNotFoundError):  # the first read reports this
                if FileVersion.of(segment.path_of(LOG_SUFFIX)) == known:
                    segment.unverified = ()
