"""Files that an interrupted deletion or replacement of segments left in a log's directory.

A segment is deleted by renaming its files to ``.deleted``, and removed later. Segments are replaced (by compaction) in
steps, so that a crash between any two leaves the old segments or the new ones, whole:

1. the new ones are written as ``.cleaned``;
2. they are renamed to ``.swap``, from the last segment to the first: when the first is ``.swap``, all are;
3. the old ones are renamed to ``.deleted``;
4. the new ones lose their suffix.

So a ``.cleaned`` file found at a start means that step 2 was not finished: it goes, and so do the ``.swap`` files from
its offset on. Any other ``.swap`` file is finished: what it replaces goes, and it takes its place.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from parley.protocol.records.errors import CorruptRecord
from parley.storage.segment import CLEANED, DELETED, LOG_SUFFIX, SUFFIXES, SWAP, base_offset_of, file_name
from parley.storage.segment_file import SCAN_CHUNK, SegmentFile, batches

_logger = logging.getLogger(__name__)


def settle(directory: Path) -> None:
    """Leave only files of whole segments, none of them twice. Raises ``OSError``."""
    names = sorted(os.listdir(directory))
    cleaned = [(base, name) for name in names if name.endswith(CLEANED) and (base := base_offset_of(name)) is not None]
    swapped = [(base, name) for name in names if name.endswith(SWAP) and (base := base_offset_of(name)) is not None]
    unfinished = min((base for base, _ in cleaned), default=None)
    aborted = [name for base, name in swapped if unfinished is not None and base >= unfinished]
    # The .swap files go before the .cleaned ones that tell that they are not finished.
    for name in [name for name in names if name.endswith(DELETED)] + aborted + [name for _, name in cleaned]:
        (directory / name).unlink()
    finished = [(base, name) for base, name in swapped if name not in aborted]
    if finished:
        _finish(directory, finished)


def _finish(directory: Path, swapped: list[tuple[int, str]]) -> None:
    """Steps 3 and 4: remove the segments that the swapped ones cover, and rename these."""
    covered = [(base, _end_of(directory / name, base)) for base, name in swapped if name.endswith(LOG_SUFFIX + SWAP)]
    if covered:
        first, end = min(base for base, _ in covered), max(end for _, end in covered)
        for name in sorted(os.listdir(directory)):
            base = base_offset_of(name)
            if base is not None and first <= base < end and name in {file_name(base, kind) for kind in SUFFIXES}:
                (directory / name).unlink()
    for _, name in swapped:
        _logger.info("%s takes the place of the segments it was made of", directory / name)
        (directory / name).rename(directory / name.removesuffix(SWAP))


def _end_of(path: Path, base_offset: int) -> int:
    """The offset that follows the last batch in the file, at least that behind its base offset."""
    end = base_offset + 1
    file = SegmentFile(path)
    try:
        for _, header in batches(file, 0, os.fstat(file.fd).st_size, chunk=SCAN_CHUNK):
            end = header.next_offset
    except CorruptRecord as error:
        _logger.warning("%s: %s", path, error)
    return end
