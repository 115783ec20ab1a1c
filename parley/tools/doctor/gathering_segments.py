"""A quick check of the segments in log directories.

It reads the newest segments first, up to ``CHECKED_BYTES`` in all directories together, and verifies each batch. After
a clean stop it also looks for missing logs and segments. Records below the log start offset do not count, because they
were deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import HEADER_SIZE, read_header
from parley.protocol.topic_partition import TopicPartition
from parley.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, OffsetCheckpoint
from parley.storage.damage.checked_batches import CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes
from parley.storage.damage.segment_digest import read_digest
from parley.storage.log_directory import parse_partition_name, partition_name
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import DIGEST_SUFFIX, LOG_SUFFIX, base_offset_of
from parley.tools.doctor.facts import Damage, Folder

CHECKED_BYTES: Final = 256 << 20
DAMAGE_MAX: Final = 20
_ZEROS_LOOKED_AT: Final = 1 << 20


class Segment(NamedTuple):
    """A segment's file with the offsets from ``base`` up to but excluding ``end``. Its log begins at ``log_start``."""

    path: Path
    base: int
    end: int
    log_start: int


def damage_in(folders: Sequence[Folder], *, is_running: bool) -> tuple[list[Damage], int]:
    """Return the damage that the quick check finds, at most ``DAMAGE_MAX``, and the number of partitions.

    While a broker is running, the last batch of a segment may be incomplete. That is not damage.
    """
    found: list[Damage] = []
    segments: list[Segment] = []
    partitions = 0
    for folder in folders:
        if folder.error or not folder.exists:
            continue
        path = Path(folder.path)
        starts = OffsetCheckpoint(path / LOG_START_OFFSETS).read()
        logs = {key: _segments(path / partition_name(*key), starts.get(key, 0)) for key in _partitions(path)}
        partitions += len(logs)
        segments += [each for log in logs.values() for each in log if each.end > each.log_start]
        if folder.was_closed_cleanly and not is_running:
            found += _missing(path, logs, starts)
    segments.sort(key=_modified, reverse=True)
    left = CHECKED_BYTES
    for segment in segments:
        if left <= 0 or len(found) >= DAMAGE_MAX:
            break
        size, damage = checked(segment, left)
        left -= size
        if damage is not None and not (is_running and damage.is_tail):
            found.append(damage)
    return found[:DAMAGE_MAX], partitions


def _partitions(folder: Path) -> Iterator[TopicPartition]:
    try:
        for each in folder.iterdir():
            partition = parse_partition_name(each.name)
            if partition is not None and each.is_dir():
                yield partition
    except OSError:
        return


def _segments(folder: Path, log_start: int) -> list[Segment]:
    paths = {base: path for path in folder.glob(f"*{LOG_SUFFIX}") if (base := base_offset_of(path.name)) is not None}
    bases = sorted(paths)
    return [Segment(paths[base], base, end, log_start) for base, end in zip(bases, [*bases, UNSEALED][1:], strict=True)]


def _modified(segment: Segment) -> float:
    try:
        return segment.path.stat().st_mtime
    except OSError:
        return 0.0


# --- What is missing ---


def _missing(
    folder: Path, logs: Mapping[TopicPartition, Sequence[Segment]], starts: Mapping[TopicPartition, int]
) -> Iterator[Damage]:
    """Yield damage for each log and segment that is missing although the broker had it when it stopped."""
    for key, high_watermark in OffsetCheckpoint(folder / HIGH_WATERMARKS).read().items():
        if high_watermark > starts.get(key, 0) and not logs.get(key):
            yield _gap(folder / partition_name(*key), f"the log is missing, it had records up to {high_watermark - 1}")
    for key, segments in logs.items():
        if segments and segments[0].base > starts.get(key, segments[0].base):
            yield _gap(folder / partition_name(*key), f"offsets {starts[key]} to {segments[0].base - 1} are missing")
        for segment in segments:
            yield from _missing_after(segment)


def _missing_after(segment: Segment) -> Iterator[Damage]:
    """Yield damage if, according to the segment's digest, its end or the segments after it are missing."""
    digest = read_digest(segment.path.with_suffix(DIGEST_SUFFIX))
    if digest is None or digest.end_offset <= segment.base:
        return
    if segment.log_start < segment.end != UNSEALED and digest.end_offset < segment.end:
        yield _gap(segment.path.parent, f"offsets {digest.end_offset} to {segment.end - 1} are missing")
    size = segment.path.stat().st_size
    if segment.end == UNSEALED and size < digest.size:
        yield _gap(segment.path, f"the file has {size:,} of {digest.size:,} bytes")


def _gap(path: Path, reason: str) -> Damage:
    return Damage(str(path), 0, reason, is_tail=False, is_missing=True)


# --- What is damaged ---


def checked(segment: Segment, most: int) -> tuple[int, Damage | None]:
    """Check the batches in about the first ``most`` bytes of a segment. Returns how many bytes were checked, and the
    first damage in them or None."""
    position = 0
    try:
        file, size = SegmentFile(segment.path), segment.path.stat().st_size
        batches = CheckedBatches(file, size, segment.base, segment.end)
        for found in batches.walk(0, min(size, most), segment.base):
            position = found.position
            if isinstance(found, DamagedBytes) and found.last_offset >= segment.log_start:
                is_tail = found.end == size and _is_cut_off(file, position, size)
                return position, Damage(str(segment.path), position, found.reason, is_tail)
    except OSError as error:
        return position, Damage(str(segment.path), position, error.strerror or str(error), is_tail=False)
    return min(size, most), None


def _is_cut_off(file: SegmentFile, position: int, size: int) -> bool:
    """Return True if the batch at the position is the last one and was cut off while it was written: it extends beyond
    the end of the file, or only zeros follow."""
    try:
        return position + read_header(file.read(HEADER_SIZE, position), 0).size_bytes > size
    except KafkaError:
        return not any(file.read(_ZEROS_LOOKED_AT, position))
