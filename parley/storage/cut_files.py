"""``.cut`` files: committed records that a truncation removed from the log, kept in the log's directory.

Rules:

1. A cut file is named ``<first offset>-<number>.cut``. The first offset has 20 digits; a later file of a log has a
   higher number. It contains the removed batches unchanged, so it can be read like a segment.
2. The file is complete and on disk before the log is truncated.
3. The total size of a log's cut files is limited. The oldest files are removed first. If the records of one truncation
   exceed the limit, only the first ones are kept. Damaged batches are left out.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.records.batch_header import headers
from parley.protocol.records.errors import CorruptRecord
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.log import Log

_log = logging.getLogger(__name__)

CUT_SUFFIX = ".cut"
READ_BYTES = 1 << 20

_NAME = re.compile(r"(\d{20})-([1-9]\d*)\.cut", re.ASCII)


@dataclass(frozen=True, slots=True)
class CutFile:
    """One cut file. ``number`` increases from each cut file of a log to the next."""

    path: Path
    first_offset: int
    number: int

    @property
    def size_bytes(self) -> int:
        """The size of the file. Raises ``OSError``."""
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """The result of ``keep_records``: the file (None if nothing was kept), and the offset after its last record.

    ``is_complete`` is False if some records were not kept: the records from ``end_offset`` on exceeded the limit, or
    some are damaged.
    """

    path: Path | None
    end_offset: int
    is_complete: bool


def cut_files(partition_directory: Path) -> list[CutFile]:
    """Return the cut files of a log, oldest first. Raises ``OSError``."""
    matches = [_NAME.fullmatch(name) for name in os.listdir(partition_directory)]
    found = [CutFile(partition_directory / match[0], int(match[1]), int(match[2])) for match in matches if match]
    return sorted(found, key=lambda file: file.number)


def keep_records(log: Log, offset: int, limit_bytes: int) -> KeptRecords:
    """Write the records from ``offset`` to the end of the log to a cut file. Removes the log's oldest cut files if
    necessary, so that all of them together take at most ``limit_bytes``.

    Blocks. Raises ``OSError``, and ``KafkaError`` KAFKA_STORAGE_ERROR.
    """
    begin = max(offset, log.log_start_offset)
    known = cut_files(log.directory)
    number = known[-1].number + 1 if known else 1
    path = log.directory / f"{begin:020}-{number}{CUT_SUFFIX}"
    temporary = path.with_name(path.name + ".tmp")
    size, end = 0, begin
    damaged: list[DamagedRange] = []
    try:
        with open(temporary, "wb") as file:
            for batches, next_offset in _batches(log, begin, damaged):
                if size + len(batches) > limit_bytes:
                    break
                file.write(batches)
                size, end = size + len(batches), next_offset
            file.flush()
            os.fsync(file.fileno())
        is_complete = not damaged and end >= log.log_end_offset
        if not size:
            return KeptRecords(None, begin, is_complete)
        _make_room(known, limit_bytes - size)
        os.replace(temporary, path)
        sync_directory(log.directory)
    finally:
        temporary.unlink(missing_ok=True)
    return KeptRecords(path, end, is_complete)


def copy_on_disk(source: Path, target: Path) -> None:
    """Copy a file and sync its data; the caller must sync the directory of ``target``. Raises ``OSError``."""
    with open(source, "rb") as old, open(target, "wb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())


def _batches(log: Log, offset: int, damaged: list[DamagedRange]) -> Iterator[tuple[memoryview, int]]:
    """Yield each readable batch, starting with the one that contains ``offset``, and the offset after it.

    Adds unreadable ranges to ``damaged``, and continues after them.
    """
    while offset < log.log_end_offset:
        begin = offset
        try:
            data = memoryview(log.read(offset, READ_BYTES, up_to=log.log_end_offset).read())
            for position, header in headers(data):
                yield data[position : position + header.size_bytes], header.next_offset
                offset = header.next_offset
            if not data:
                return
            if offset == begin:
                raise CorruptRecord("no batch could be read")
        except CorruptRecord as error:
            damaged.append(_damage_at(log, offset, error))
            offset = damaged[-1].last_offset + 1


def _damage_at(log: Log, offset: int, error: CorruptRecord) -> DamagedRange:
    """Return the damaged range that contains ``offset``, after verifying its segment if necessary. If there is none,
    returns a range from ``offset`` to the end of the log."""
    if not any(offset in each for each in log.damage):
        segment = [each for each in log.segments if each.base_offset <= offset][-1]
        log.verify_segment(segment, 0, segment.size)
    to_the_end = DamagedRange(offset, log.log_end_offset - 1, str(error))
    return next((each for each in log.damage if offset in each), to_the_end)


def _make_room(files: list[CutFile], limit_bytes: int) -> None:
    """Remove the oldest files until the others take at most ``limit_bytes``."""
    sizes = [file.size_bytes for file in files]
    total = sum(sizes)
    for file, size in zip(files, sizes, strict=True):
        if total <= limit_bytes:
            return
        file.path.unlink()
        _log.warning(
            "the oldest removed records of a log are deleted to make room for newer ones; "
            "log.cut.retention.bytes limits them",
            extra={"path": str(file.path), "size_bytes": size},
        )
        total -= size
