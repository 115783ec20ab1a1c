"""The leader epochs of one log, each with the offset at which it starts (KIP-101, KIP-279).

A follower, or a consumer after a rebalance, requests the end offset of an epoch to find out whether and where its log
or position diverges. Rules:

1. Epochs and start offsets both increase from entry to entry. If a new entry contradicts older ones, the new entry is
   right, and the older ones are removed.
2. An epoch is *stored* if the log contains a record of it, or if it begins at the log end and the log contains all
   records from before that epoch. A leader *begins* its epoch in memory only (docs/coordination.md, "Stored epochs").
3. The table is in memory; ``LeaderEpochCache.flush`` writes the stored epochs to ``leader-epoch-checkpoint``. That must
   happen before the recovery point passes an epoch's first record; recovery restores later epochs from the batches.
   Entries are replaced, never changed, so other threads may flush.
4. The file has a checksum. If it is wrong, the file counts as missing, and recovery reads all epochs from the batches.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.sentinels import NO_EPOCH, NO_OFFSET
from parley.storage.checkpoints import INT32_MAX, INT64_MAX, MalformedCheckpoint, read, whole_number, write

CHECKPOINT = "leader-epoch-checkpoint"

_log = logging.getLogger(__name__)
_epoch = attrgetter("epoch")
_start = attrgetter("start_offset")


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leader epoch, and the offset of the first record written in it; the log end if there is no such record."""

    epoch: int
    start_offset: int


def epoch_at(entries: Sequence[EpochStart], offset: int) -> int | None:
    """Return the epoch in force at ``offset``, or None before the first entry. ``entries`` are sorted by offset."""
    following = bisect_right(entries, offset, key=_start)
    return entries[following - 1].epoch if following else None


class LeaderEpochCache:
    """The leader epochs of one log, oldest first. Reads the checkpoint at ``path`` if it exists. Raises ``OSError`` if
    the disk fails."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """``is_new`` means that the log has no files yet, so the checkpoint is not read."""
        self.path = path
        self._entries: tuple[EpochStart, ...] = ()
        self._stored: tuple[EpochStart, ...] = ()
        self._begun: EpochStart | None = None
        self.latest_stored = NO_EPOCH
        """The newest stored epoch; NO_EPOCH if there is none."""
        self.latest_start = NO_OFFSET
        """The offset at which the newest stored epoch starts; NO_OFFSET if there is none."""
        self._continued = NO_EPOCH  # a batch with this epoch at the log end changes nothing
        self._flushed: tuple[EpochStart, ...] | None = ()  # the contents of the file; None if it is not synced
        self._flushing = threading.RLock()
        for entry in () if is_new else read(path, _entry):
            self.assign(entry.epoch, entry.start_offset)
        self._flushed = self._stored

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All known epochs, oldest first. The last one may have only begun."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        """The newest known epoch, or None if the log has none."""
        return self._entries[-1].epoch if self._entries else None

    def at_end(self, log_end: int) -> tuple[int, int]:
        """Return the epoch of the last record of a log that ends at ``log_end``, and the newest stored epoch if it is
        newer than that record. Each is NO_EPOCH if there is none."""
        if self.latest_start < log_end:
            return self.latest_stored, NO_EPOCH
        before = epoch_at(self._stored, log_end - 1)
        return NO_EPOCH if before is None else before, self.latest_stored

    def begin(self, epoch: int, log_end: int) -> None:
        """Record in memory that this broker leads in ``epoch`` from ``log_end`` on. Its first record stores the
        epoch."""
        if epoch > self.latest_stored:
            self._begun = EpochStart(epoch, log_end)
            self._set(self._stored)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Store that ``epoch`` starts at ``start_offset``. Does nothing if it is already the newest stored epoch.

        Must be called for every appended batch; it costs one comparison if nothing changes. Recovery calls it only for
        epochs above ``latest_epoch``, because the checkpoint may contain later epochs than the batch being read. An
        epoch below zero (batches written before KIP-101) is ignored.
        """
        if (epoch == self._continued and start_offset >= self.latest_start) or epoch < 0:
            return
        kept = self._stored
        while kept and (kept[-1].epoch > epoch or kept[-1].start_offset >= start_offset):
            kept = kept[:-1]
        dropped = self._stored[len(kept) :]
        if len(dropped) > 1 or (dropped and dropped[0].start_offset != start_offset):
            _log.warning(
                "%s: removing %s, which contradict epoch %d from offset %d", self.path, dropped, epoch, start_offset
            )
        if not kept or kept[-1].epoch < epoch:  # otherwise the epoch started earlier
            kept = (*kept, EpochStart(epoch, start_offset))
        self._begun = None
        self._set(kept)

    def insert(self, epoch: int, start_offset: int) -> None:
        """Record that an older ``epoch`` starts at or before ``start_offset``.

        Does nothing if this is already known, or contradicts the known epochs.
        """
        at = bisect_right(self._stored, start_offset, key=_start)
        before, later = self._stored[:at], self._stored[at:]
        if epoch < 0 or (before and before[-1].epoch >= epoch) or (later and later[0].epoch < epoch):
            return
        if later and later[0].epoch == epoch:
            later = later[1:]
        self._set((*before, EpochStart(epoch, start_offset), *later))

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch not above ``epoch``, and its end offset: the start of the next epoch, or
        ``log_end``.

        An epoch older than all known epochs ends where the first known epoch starts. Returns (-1, -1) if ``epoch`` is
        -1 or newer than all known epochs.
        """
        entries = self._entries
        latest = entries[-1].epoch if entries else NO_EPOCH
        if epoch <= NO_EPOCH or epoch > latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == latest:
            return epoch, log_end
        following = bisect_right(entries, epoch, key=_epoch)
        found = entries[following - 1].epoch if following else epoch
        return found, entries[following].start_offset

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch in which the record at ``offset`` was written, or None before the first known epoch."""
        return epoch_at(self._entries, offset)

    def next_start(self, offset: int) -> int | None:
        """Return the first offset above ``offset`` at which an epoch starts, or None if there is none."""
        following = bisect_right(self._entries, offset, key=_start)
        return self._entries[following].start_offset if following < len(self._entries) else None

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that start after ``offset``, because the log now ends there.

        An epoch that starts at ``offset`` stays: the log still contains all records from before that epoch.
        """
        kept = bisect_right(self._stored, offset, key=_start)
        if kept < len(self._stored) or self._begun is not None:
            self._begun = None
            self._set(self._stored[:kept])

    def remove_from(self, offset: int) -> None:
        """Remove the epochs that start at ``offset`` or after it, even one that ``truncate_from_end`` would keep."""
        self.truncate_from_end(offset - 1)

    def correct(self, epoch: int, offset: int) -> bool:
        """Remove the entries that a batch at ``offset`` with ``epoch`` contradicts, and all later entries. Returns True
        if there were any.

        An entry is contradicted if it assigns the batch's offset a higher epoch than the batch has. With such an entry,
        this broker, as a leader, would send its followers wrong end offsets of epochs, and they would conclude that
        their logs diverge.
        """
        known = self.epoch_at(offset)
        if known is None or not NO_EPOCH < epoch < known:
            return False
        _log.warning(
            "%s is wrong: it has leader epoch %d for offset %d, whose batch has %d", self.path, known, offset, epoch
        )
        self._begun = None
        self._set(tuple(entry for entry in self._stored if entry.epoch <= epoch))
        return True

    def truncate_from_start(self, offset: int) -> None:
        """Remove the epochs that ended at or before ``offset``; the epoch in force at ``offset`` now starts there."""
        in_force = bisect_right(self._stored, offset, key=_start) - 1
        if in_force > 0 or (in_force == 0 and self._stored[0].start_offset < offset):
            first = EpochStart(self._stored[in_force].epoch, offset)
            self._set((first, *self._stored[in_force + 1 :]))

    def clear(self) -> None:
        """Remove all epochs, because the log was emptied."""
        self._begun = None
        self._set(())

    def flush(self, *, sync: bool = True) -> None:
        """Write the stored epochs to the checkpoint if it is out of date. Blocks until it is on disk. With
        ``sync=False``, nothing is synced: the file survives a crash of the process, but perhaps not a crash of the
        machine. Raises ``OSError``."""
        with self._flushing:
            stored = self._stored
            if stored != self._flushed:
                write(self.path, (f"{entry.epoch} {entry.start_offset}" for entry in stored), sync=sync)
                self._flushed = stored if sync else None

    def _set(self, stored: tuple[EpochStart, ...]) -> None:
        begun = self._begun
        self._stored = stored
        self._entries = stored if begun is None else (*_before(stored, begun.start_offset), begun)
        last = stored[-1] if stored else EpochStart(NO_EPOCH, NO_OFFSET)
        self.latest_stored, self.latest_start = last.epoch, last.start_offset
        self._continued = last.epoch if begun is None else NO_EPOCH


def _before(entries: tuple[EpochStart, ...], offset: int) -> tuple[EpochStart, ...]:
    return entries[: bisect_left(entries, offset, key=_start)]


def _entry(words: list[str]) -> EpochStart:
    if len(words) != 2:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not an epoch and its start offset")
    return EpochStart(whole_number(words[0], INT32_MAX), whole_number(words[1], INT64_MAX))
