"""The leader epochs of one log, each with the offset at which it starts (KIP-101, KIP-279).

A follower, or a consumer after a rebalance, requests the end offset of an epoch to find out whether and where its log
or position diverges. Rules:

1. Epochs and start offsets both increase from entry to entry. An entry that contradicts older entries is right, and
   they are removed.
2. An epoch is added with its first record, or as soon as its leader takes over.
3. The table is in memory; ``LeaderEpochCache.flush`` writes it to ``leader-epoch-checkpoint``. That must happen before
   the recovery point passes an epoch's first record; recovery restores later epochs from the batches. Entries are
   replaced, never changed, so other threads may flush.
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
    """A leader epoch, and the offset of the first record written in it."""

    epoch: int
    start_offset: int


def epoch_at(entries: Sequence[EpochStart], offset: int) -> int | None:
    """Return the epoch in force at ``offset``, or None before the first entry. ``entries`` are sorted by offset."""
    following = bisect_right(entries, offset, key=_start)
    return entries[following - 1].epoch if following else None


class LeaderEpochCache:
    """The leader epochs of one log, oldest first. Reads the checkpoint at ``path`` if it exists."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """``is_new`` means that the log has no files yet, so the checkpoint is not read."""
        self.path = path
        self._entries: tuple[EpochStart, ...] = ()
        self._latest = NO_EPOCH
        self._latest_start = NO_OFFSET
        self._flushed: tuple[EpochStart, ...] = ()
        self._flushing = threading.RLock()
        for entry in () if is_new else read(path, _entry):
            self.assign(entry.epoch, entry.start_offset)
        self._flushed = self._entries

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        """All known epochs, oldest first."""
        return self._entries

    @property
    def latest_epoch(self) -> int | None:
        """The newest known epoch, or None if the log has none."""
        return self._latest if self._latest != NO_EPOCH else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that ``epoch`` starts at ``start_offset``. Does nothing if it is already the newest epoch.

        Must be called for every appended batch; it costs one comparison if nothing changes. Recovery calls it only for
        epochs above ``latest_epoch``, because the checkpoint may contain later epochs than the batch being read. An
        epoch below zero (batches written before KIP-101) is ignored.
        """
        if (epoch == self._latest and start_offset >= self._latest_start) or epoch < 0:
            return
        kept = self._entries
        while kept and (kept[-1].epoch > epoch or kept[-1].start_offset >= start_offset):
            kept = kept[:-1]
        dropped = self._entries[len(kept) :]
        if len(dropped) > 1 or (dropped and dropped[0].start_offset != start_offset):
            _log.warning("%s: epoch %d from offset %d contradicts %s", self.path, epoch, start_offset, dropped)
        if not kept or kept[-1].epoch < epoch:  # otherwise the epoch started earlier
            kept = (*kept, EpochStart(epoch, start_offset))
        self._set(kept)

    def insert(self, epoch: int, start_offset: int) -> None:
        """Record that an older ``epoch`` starts at or before ``start_offset``.

        Does nothing if this is already known, or contradicts the known epochs.
        """
        at = bisect_right(self._entries, start_offset, key=_start)
        before, behind = self._entries[:at], self._entries[at:]
        if epoch < 0 or (before and before[-1].epoch >= epoch) or (behind and behind[0].epoch < epoch):
            return
        if behind and behind[0].epoch == epoch:
            behind = behind[1:]
        self._set((*before, EpochStart(epoch, start_offset), *behind))

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """Return the largest known epoch not above ``epoch``, and its end offset: the start of the next epoch, or
        ``log_end``.

        An epoch older than all known epochs ends where the first known epoch starts. Returns (-1, -1) if ``epoch`` is
        -1 or newer than all known epochs.
        """
        if epoch <= NO_EPOCH or epoch > self._latest:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._latest:
            return epoch, log_end
        entries = self._entries
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
        """Remove the epochs that start at or after ``offset``, because the log now ends there."""
        kept = bisect_left(self._entries, offset, key=_start)
        if kept < len(self._entries):
            self._set(self._entries[:kept])

    def correct(self, epoch: int, offset: int) -> bool:
        """Remove the entries that a batch at ``offset`` with ``epoch`` contradicts, and all later entries. Returns True
        if there were any.

        A contradicted entry has a higher epoch for the batch's offset than the batch. Otherwise this broker, as a
        leader, would send its followers wrong end offsets of epochs, and they would conclude that their logs diverge.
        """
        known = self.epoch_at(offset)
        if known is None or not NO_EPOCH < epoch < known:
            return False
        _log.warning(
            "%s is wrong: it has leader epoch %d for offset %d, whose batch has %d", self.path, known, offset, epoch
        )
        self.truncate_from_end(next(entry.start_offset for entry in self._entries if entry.epoch > epoch))
        return True

    def truncate_from_start(self, offset: int) -> None:
        """Remove the epochs that ended at or before ``offset``; the epoch in force at ``offset`` now starts there."""
        in_force = bisect_right(self._entries, offset, key=_start) - 1
        if in_force > 0 or (in_force == 0 and self._entries[0].start_offset < offset):
            first = EpochStart(self._entries[in_force].epoch, offset)
            self._set((first, *self._entries[in_force + 1 :]))

    def clear(self) -> None:
        """Remove all epochs, because the log was emptied."""
        self._set(())

    def flush(self) -> None:
        """Write the checkpoint if it is out of date. Blocks. Raises ``OSError``."""
        with self._flushing:
            entries = self._entries
            if entries != self._flushed:
                write(self.path, (f"{entry.epoch} {entry.start_offset}" for entry in entries))
                self._flushed = entries

    def _set(self, entries: tuple[EpochStart, ...]) -> None:
        self._entries = entries
        last = entries[-1] if entries else EpochStart(NO_EPOCH, NO_OFFSET)
        self._latest, self._latest_start = last.epoch, last.start_offset


def _entry(words: list[str]) -> EpochStart:
    if len(words) != 2:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not an epoch and its start offset")
    return EpochStart(whole_number(words[0], INT32_MAX), whole_number(words[1], INT64_MAX))
