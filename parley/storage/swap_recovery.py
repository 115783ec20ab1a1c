"""Finishes or undoes a deletion or replacement of segments that was interrupted.

docs/storage.md, "Replacing segments", describes the steps of a replacement and the suffixes of its files. If a
``.cleaned`` file exists, the replacement is rolled back: the ``.cleaned`` file and all ``.swap`` files from its offset
on are removed. Any other ``.swap`` file is complete: the segments that it replaces are removed, and it is renamed to
its final name. Each step is on disk before the next one, because the machine may lose power again.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from parley.protocol.records.errors import CorruptRecord
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.segment_digest import read_digest
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile, batches
from parley.storage.segment_names import (
    CLEANED,
    DELETED,
    DIGEST_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SUFFIXES,
    SWAP,
    TIME_INDEX_SUFFIX,
    base_offset_of,
    file_name,
)

_log = logging.getLogger(__name__)


def settle(directory: Path) -> list[int]:
    """Remove or rename files until only whole segments that do not overlap are left. Returns the base offsets of
    segments whose deletion was interrupted. Raises ``OSError``."""
    names = sorted(os.listdir(directory))
    cleaned = [(base, name) for name in names if name.endswith(CLEANED) and (base := base_offset_of(name)) is not None]
    swapped = [(base, name) for name in names if name.endswith(SWAP) and (base := base_offset_of(name)) is not None]
    unfinished = min((base for base, _ in cleaned), default=None)
    aborted = [name for base, name in swapped if unfinished is not None and base >= unfinished]
    # The .swap files are removed first: the .cleaned files show that they are incomplete.
    for removed in ([name for name in names if name.endswith(DELETED)], aborted, [name for _, name in cleaned]):
        for name in removed:
            (directory / name).unlink()
        if removed:
            sync_directory(directory)
    finished = [(base, name) for base, name in swapped if name not in aborted]
    if finished:
        _finish(directory, finished)
    deleted = LOG_SUFFIX + DELETED
    return [base for name in names if name.endswith(deleted) and (base := base_offset_of(name)) is not None]


def _finish(directory: Path, swapped: list[tuple[int, str]]) -> None:
    """Remove the segments that the ``.swap`` files replace, and rename the ``.swap`` files to their final names."""
    covered = [(base, _end_of(directory / name, base)) for base, name in swapped if name.endswith(LOG_SUFFIX + SWAP)]
    if covered:
        first, end = min(base for base, _ in covered), max(end for _, end in covered)
        taken = {kept for base, _ in covered for kept in _renamed_already(directory, base)}
        for name in sorted(set(os.listdir(directory)) - taken):
            base = base_offset_of(name)
            if base is not None and first <= base < end and name in {file_name(base, kind) for kind in SUFFIXES}:
                (directory / name).unlink()
        sync_directory(directory)
    for _, name in swapped:
        _log.info("putting %s in place of the segments that it replaces", directory / name)
        (directory / name).rename(directory / name.removesuffix(SWAP))
    sync_directory(directory)


def _renamed_already(directory: Path, base_offset: int) -> list[str]:
    """Return the files of a new segment that already have their final names, although its ``.log`` file does not.

    After a crash, renames may have reached the disk in any order. A complete new segment has a matching digest. Without
    one, a digest or a transaction index with a final name belongs to the old segment.
    """
    size = (directory / file_name(base_offset, LOG_SUFFIX + SWAP)).stat().st_size
    digests = [read_digest(directory / file_name(base_offset, DIGEST_SUFFIX + suffix)) for suffix in ("", SWAP)]
    has_digest = any(digest is not None and digest.size == size for digest in digests)
    kinds = INDEX_SUFFIXES if has_digest else (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)
    names = [file_name(base_offset, kind) for kind in kinds]
    return [name for name in names if not (directory / (name + SWAP)).exists()]


def _end_of(path: Path, base_offset: int) -> int:
    """Return the offset after the last batch in the file, or ``base_offset`` + 1 if the file is empty."""
    end = base_offset + 1
    file = SegmentFile(path)
    try:
        for _, header in batches(file, 0, os.fstat(file.fd).st_size, chunk=SCAN_CHUNK):
            end = header.next_offset
    except CorruptRecord as error:
        _log.warning("the compacted segment %s is damaged: %s", path, error)
    return end
