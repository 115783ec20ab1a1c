"""Settles what an interrupted deletion or replacement of segments left in a log's directory.

docs/storage.md, "Replacing segments", has the steps of a replacement and the suffixes of its files. If a ``.cleaned``
file exists, the replacement is rolled back: the ``.cleaned`` file and all ``.swap`` files from its offset on are
removed. Any other ``.swap`` file is complete: the segments it replaces are removed, and it takes their place. Each step
is on disk before the next one begins, because the machine may lose power here, too.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from parley.protocol.records.errors import CorruptRecord
from parley.storage.checkpoints import sync_directory
from parley.storage.segment import (
    CLEANED,
    DELETED,
    DIGEST_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SUFFIXES,
    SWAP,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    file_name,
)
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile, batches

_log = logging.getLogger(__name__)


def settle(directory: Path) -> list[int]:
    """Leave only files of whole segments, each offset in one of them; return the base offsets of segments that were
    being deleted. Raises ``OSError``."""
    names = sorted(os.listdir(directory))
    cleaned = [(base, name) for name in names if name.endswith(CLEANED) and (base := base_offset_of(name)) is not None]
    swapped = [(base, name) for name in names if name.endswith(SWAP) and (base := base_offset_of(name)) is not None]
    unfinished = min((base for base, _ in cleaned), default=None)
    aborted = [name for base, name in swapped if unfinished is not None and base >= unfinished]
    # The .swap files first: the .cleaned ones are the evidence that they are incomplete.
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
    """Remove the segments that the ``.swap`` files cover, and rename those."""
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
        _log.info("%s replaces the segments that it was made from", directory / name)
        (directory / name).rename(directory / name.removesuffix(SWAP))
    sync_directory(directory)


def _renamed_already(directory: Path, base_offset: int) -> list[str]:
    """The names of files that may be the new segment's, renamed before its ``.log`` file: a crash keeps renames in any
    order. A new segment with a digest has a file of each kind; otherwise its transaction index is empty."""
    kept = [file_name(base_offset, kind) for kind in INDEX_SUFFIXES]
    names = [name for name in kept if not (directory / (name + SWAP)).exists()]
    digest = file_name(base_offset, DIGEST_SUFFIX)
    if not (directory / digest).exists() and not (directory / (digest + SWAP)).exists():
        names = [name for name in names if not name.endswith(TRANSACTION_INDEX_SUFFIX)]
    return names


def _end_of(path: Path, base_offset: int) -> int:
    """The offset after the last batch in the file, but at least ``base_offset`` + 1."""
    end = base_offset + 1
    file = SegmentFile(path)
    try:
        for _, header in batches(file, 0, os.fstat(file.fd).st_size, chunk=SCAN_CHUNK):
            end = header.next_offset
    except CorruptRecord as error:
        _log.warning("%s: %s", path, error)
    return end
