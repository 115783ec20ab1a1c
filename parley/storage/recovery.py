"""Opens a log: turns the files in its directory into segments whose batches, indexes, epochs and producers agree.

The steps (docs/storage.md has all rules):

1. Interrupted deletions and replacements are completed (``swap_recovery``).
2. The segments are opened; those that cannot be trusted must be scanned (``trusted_segments``).
3. These segments are scanned, and the log end is found (``recovery_scan``).
4. The log start is the checkpointed one. Segments after it that are in no file are missing, unless retention was
   deleting them. Nothing outside the log is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from parley.protocol.sentinels import NO_EPOCH
from parley.storage.checkpoints import sync_directory
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.damage.segment_digest import remove_digest
from parley.storage.damage.verified_files import count_unchanged_as_verified
from parley.storage.leader_epoch_cache import EpochStart
from parley.storage.loaded_log import LastKnown, LoadedLog, LogState
from parley.storage.log_config import LogConfig
from parley.storage.recovery_scan import RecoveryScan
from parley.storage.segment import Segment
from parley.storage.segment_names import DIGEST_SUFFIX, base_offset_of
from parley.storage.swap_recovery import settle
from parley.storage.trusted_segments import OpenedSegments, base_offsets_in, open_segments

_log = logging.getLogger(__name__)


def load(directory: Path, config: LogConfig, known: LastKnown, state: LogState, now_ms: int) -> LoadedLog:
    """Open the log in ``directory``; an empty directory becomes an empty log at the log start offset.

    Updates ``state`` to the log end. Blocks. Raises ``OSError``.
    """
    deleted = settle(directory)
    known = _with_log_start(known, directory, state)
    noted_epochs = state.epochs.entries
    if not deleted:
        _remove_what_follows_nothing(directory, known, state)
    opened = open_segments(directory, config, known, state, now_ms)
    segments = opened.segments
    known = _with_valid_log_start(known, directory, opened)
    RecoveryScan(directory, config, known, state, opened, noted_epochs=noted_epochs, now_ms=now_ms).run()
    _remove_what_ends_before_log_start(directory, known, opened)
    was_found = bool(segments)
    if not segments:
        opened.log_end = known.log_start_offset
        segments.append(_new_segment(directory, config, state, opened.log_end, now_ms))
    if segments[-1].base_offset in opened.scanned:
        remove_digest(segments[-1].path_of(DIGEST_SUFFIX))  # the segment takes appends again
    if known.verified:
        unscanned = [segment for segment in segments if segment.base_offset not in opened.scanned]
        count_unchanged_as_verified(unscanned, known.verified)
    for segment in segments:
        segment.rest()
    log_start, missing = _find_log_start(known, opened, deleted)
    log_end = opened.log_end
    _limit_state(state, log_start, log_end, noted_epochs if was_found else ())
    if log_end < known.recovery_point:
        lost = f"{directory} ends at {log_end}, but had been synced up to {known.recovery_point}"
        _log.error("%s: the disk has lost records, or files were removed", lost)
    whole = known.clean and not opened.scanned
    return LoadedLog(
        tuple(segments),
        log_start,
        log_end,
        log_end if whole else min(known.recovery_point, log_end),
        state,
        tuple(missing),
        known.cleaned_up_to if known.cleaned_up_to is not None and known.cleaned_up_to <= log_end else None,
        whole and was_found,
    )


def _with_log_start(known: LastKnown, directory: Path, state: LogState) -> LastKnown:
    """Return ``known`` with the log start from the leader epochs, if no checkpoint contains a log start and the epochs
    start before the first segment.

    A broker that is killed soon after its first startup has no checkpoint. Retention writes the checkpoint before it
    removes files. Without a checkpoint, retention has therefore removed no segments, and those that the epochs show are
    missing.
    """
    bases = base_offsets_in(directory)
    starts = [entries[0].start_offset for entries in (state.epochs.entries, state.appended_epochs.runs) if entries]
    is_parleys = known.highest_leader_epoch != NO_EPOCH  # Apache Kafka writes no checkpoint for most log starts
    if known.knows_log_start or not is_parleys or not bases or not starts or min(starts) >= bases[0]:
        return known
    return replace(known, log_start_offset=min(starts), knows_log_start=True)


def _remove_what_follows_nothing(directory: Path, known: LastKnown, state: LogState) -> None:
    """Remove all segments of a log that was never synced, if a crash lost its first segment.

    Not called if there are ``.deleted`` files: retention, which also removes the first segments, leaves them until
    the recovery point is written.
    """
    start = known.log_start_offset
    if known.clean or known.recovery_point > start:
        return
    bases = base_offsets_in(directory)
    if not bases or bases[0] <= start:
        return
    if known.same_boot or any(entry.start_offset >= bases[0] for entry in state.epochs.entries[:1]):
        return  # files were removed; or the log started here, and only the checkpoints were lost
    _log.warning("%s lost its segments from %d to %d: deleting the rest", directory, start, bases[0] - 1)
    for path in sorted(directory.iterdir()):
        if base_offset_of(path.name) in bases:
            remove_digest(path) if path.suffix == DIGEST_SUFFIX else path.unlink()
    sync_directory(directory)


def _with_valid_log_start(known: LastKnown, directory: Path, opened: OpenedSegments) -> LastKnown:
    """Return ``known`` without a log start above the log end, unless a crash of the machine may have lost the end of
    the log."""
    if opened.segments and (known.clean or known.same_boot) and known.log_start_offset > opened.log_end:
        _log.error(
            "%s ends at %d, so its log start cannot be %d: the checkpoint of log start offsets is damaged. The log "
            "begins at its first segment",
            directory,
            opened.log_end,
            known.log_start_offset,
        )
        return replace(known, log_start_offset=opened.segments[0].base_offset)
    return known


def _remove_what_ends_before_log_start(directory: Path, known: LastKnown, opened: OpenedSegments) -> None:
    """Delete all segments of a log that ends before its log start."""
    log_start, log_end = known.log_start_offset, opened.log_end
    if opened.segments and log_start > log_end:
        _log.warning("%s ends at %d, before its log start %d: deleting all of it", directory, log_end, log_start)
        while opened.segments:
            opened.segments.pop().delete()


def _new_segment(directory: Path, config: LogConfig, state: LogState, start: int, now_ms: int) -> Segment:
    """Create the first segment of an empty log."""
    segment = Segment.create(directory, start, config, now_ms)
    state.producers.truncate_fully(start)
    state.epochs.clear()
    return segment


def _find_log_start(known: LastKnown, opened: OpenedSegments, deleted: Sequence[int]) -> tuple[int, list[DamagedRange]]:
    """Return the log start, and the ranges after it whose batches are in no file.

    ``deleted`` contains the base offsets of segments whose deletion was interrupted.
    """
    start = known.log_start_offset
    missing = [each for each in opened.missing if start <= each.last_offset < opened.log_end]
    first = start if opened.first is None else opened.first
    if start < first and known.knows_log_start and not _retention_deleted(deleted, first, known):
        return start, [DamagedRange(start, first - 1, "the first segments are missing"), *missing]
    return max(start, first), missing


def _retention_deleted(deleted: Sequence[int], first: int, known: LastKnown) -> bool:
    """Return True if the log starts at ``first`` because of an interrupted deletion of segments, whose base offsets are
    ``deleted``.

    A compaction also deletes segments, but new ones replace them: if the new ones do not exist, they are missing.
    Parley writes the log start before retention deletes a segment. Apache Kafka does not.
    """
    compacted = 0 if known.is_kafkas or known.cleaned_up_to is None else known.cleaned_up_to
    return any(compacted <= base < first for base in deleted)


def _limit_state(state: LogState, log_start: int, log_end: int, noted_epochs: Sequence[EpochStart]) -> None:
    """Remove from ``state`` everything that concerns offsets outside the log.

    ``noted_epochs`` are the epochs in ``leader-epoch-checkpoint``. A scan does not find an epoch that starts at the log
    end. It stays if the batches confirm the epochs before it.
    """
    state.epochs.truncate_from_end(log_end)
    before = {entry.epoch for entry in noted_epochs if entry.start_offset < log_end}
    at_end = next((entry for entry in noted_epochs if entry.start_offset == log_end), None)
    known = {entry.epoch for entry in state.epochs.entries}
    if at_end is not None and before <= known and at_end.epoch > max(known, default=NO_EPOCH):
        state.epochs.assign(at_end.epoch, at_end.start_offset)
    state.appended_epochs.truncate_from_end(log_end)
    state.epochs.truncate_from_start(log_start)
    state.producers.on_log_start_advanced(log_start)
