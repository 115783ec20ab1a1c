"""The damage of one log, and the verification of what is read from its files. docs/storage.md, "Damage", has the
rules."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Final, NamedTuple

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.errors import CorruptRecord
from parley.storage.damage.appended_epochs import AppendedEpochs
from parley.storage.damage.checked_batches import CheckedBatches
from parley.storage.damage.damaged_ranges import DamagedBytes, DamagedRange, joined
from parley.storage.damage.recorded_damage import RecordedDamage
from parley.storage.damage.segment_check import Checked, Extent, check
from parley.storage.damage.segment_digest import DigestBuilder, write_digest
from parley.storage.damage.unverified_spans import first_in, overlap, verified_before, without
from parley.storage.durability import Durability
from parley.storage.leader_epoch_cache import LeaderEpochCache
from parley.storage.readable_segment import UNSEALED
from parley.storage.segment import Segment
from parley.storage.segment_names import DIGEST_SUFFIX

FIRST_READ: Final = 256 << 10
"""The number of bytes that a read verifies if the bytes before it are unverified."""
NEXT_READ: Final = 4 << 20
"""The minimum number of bytes that a read verifies if it continues where the verified bytes end. Starting a read in a
thread costs as much as verifying these bytes."""
LONGEST_READ: Final = 16 << 20
"""The maximum number of bytes that a read verifies if it continues a longer run of verified bytes: a reader that has
read so much in order will probably continue. The client waits for 2 ms, or for 80 ms if a disk reads 200 MB/s."""

_log = logging.getLogger(__name__)


class DamagedOffset(CorruptRecord):
    """Raised if the offset to read lies in a damaged range (CORRUPT_MESSAGE)."""

    def __init__(self, offset: int, damaged: DamagedRange) -> None:
        extent = f"offsets {damaged.first_offset} to {damaged.last_offset} are damaged"
        super().__init__(f"{offset} cannot be read, {extent}: {damaged.reason}")
        self.damaged = damaged


class ClosedLog(KafkaError):
    """Raised if the log was closed during a verification (KAFKA_STORAGE_ERROR).

    Its directory may have been renamed or removed, so that missing files prove nothing.
    """

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {name} is closed")


class Verified(NamedTuple):
    """The result of verifying a part of a segment."""

    end: int | None
    """The end of the verified bytes. None if batches or segments were removed from the log meanwhile: then nothing
    counts as verified."""
    found_damage: bool
    """True if new damage was found."""

    @property
    def outdates_reads(self) -> bool:
        """True if a read of the segment must look up its position again."""
        return self.found_damage or self.end is None


class LogIntegrity:
    """The known damage of the log ``name``.

    ``lock`` is the log's lock, and must be held to call ``log_end``, which returns the log end offset, and
    ``is_closed``, which returns True once the log is closed: from then on its directory may be renamed and removed.
    ``segments`` returns the segments of the log; ``recorded`` is their damage on disk. ``log_start`` returns the log
    start offset: damage below it may be known, but is not reported. ``on_damage`` is called with each reported range.
    """

    def __init__(
        self,
        name: str,
        lock: RLock,
        log_start: Callable[[], int],
        log_end: Callable[[], int],
        durability: Durability,
        epochs: LeaderEpochCache,
        appended_epochs: AppendedEpochs,
        recorded: RecordedDamage,
        segments: Callable[[], Sequence[Segment]],
        missing: Sequence[DamagedRange],
        is_closed: Callable[[], bool],
        on_damage: Callable[[DamagedRange], None],
    ) -> None:
        self.missing = tuple(missing)
        """The ranges, between segments or before the first one, whose batches are in no file."""
        self.recorded = recorded
        self._name = name
        self._lock = lock
        self._log_start = log_start
        self._log_end = log_end
        self._durability = durability
        self._epochs = epochs
        self._appended_epochs = appended_epochs
        self._segments = segments
        self._is_closed = is_closed
        self._on_damage = on_damage

    def damage(self, segments: Sequence[Segment], log_start: int) -> tuple[DamagedRange, ...]:
        """Return all known damage at or after ``log_start``, in order."""
        found = [damaged.offsets for segment in segments if segment.damage for damaged in segment.damage]
        if not found and not self.missing:
            return ()
        ranges = [damaged for damaged in (*self.missing, *found) if damaged.last_offset >= log_start]
        return tuple(sorted(ranges, key=lambda damaged: damaged.first_offset))

    def record(self, *others: Segment) -> None:
        """Record the damage of the log's segments and of ``others`` on disk. Blocks. Raises ``OSError``."""
        self.recorded.record((*self._segments(), *others))

    def report(self, damaged: DamagedRange) -> None:
        """Log that a range cannot be read, and notify the owner of the log."""
        facts = {"first": damaged.first_offset, "last": damaged.last_offset, "reason": damaged.reason}
        _log.error("records are damaged or missing", extra={"partition": self._name, **facts})
        self._on_damage(damaged)

    def refuse_missing(self, offset: int) -> None:
        """Raise ``DamagedOffset`` if ``offset`` lies in a range that no segment contains."""
        for missing in self.missing:
            if offset in missing:
                raise DamagedOffset(offset, missing)

    def cut(self, end_offset: int) -> None:
        """Record that the log now ends at ``end_offset``."""
        self.missing = tuple(missing for missing in self.missing if missing.first_offset < end_offset)

    def start_at(self, offset: int) -> None:
        """Record that the log now starts at ``offset``."""
        if self.missing:
            self.missing = tuple(missing for missing in self.missing if missing.last_offset >= offset)

    def verify_around(self, segment: Segment, offset: int) -> None:
        """Verify the batches that a truncation to ``offset`` will read, so that any damage in them is known. Blocks.

        Raises ``ClosedLog``, ``OSError``.
        """
        begin = segment.offset_index.lookup(offset - 1).position
        if self.is_unverified(segment, begin, begin + 1):
            self.verify_read(segment, begin, begin + 1)

    def locate(self, segments: Sequence[Segment], damaged: DamagedRange) -> tuple[Segment, DamagedBytes] | None:
        """Return the segment and the bytes of a damaged range; None if its batches are in no file.

        Raises ``KafkaError`` OFFSET_OUT_OF_RANGE if the range is no longer damaged.
        """
        for segment in segments:
            for found in segment.damage:
                if found.offsets == damaged:
                    return segment, found
        if damaged not in self.missing:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{damaged} is no longer damaged")
        return None

    def restored(self, missing: DamagedRange, up_to: int) -> None:
        """Record that a missing range has been restored up to ``up_to`` (exclusive)."""
        rest = replace(missing, first_offset=up_to)
        ranges = [rest if each == missing else each for each in self.missing]
        self.missing = tuple(each for each in ranges if each.first_offset <= each.last_offset)

    def is_unverified(self, segment: Segment, begin: int, end: int) -> bool:
        """Return True if a read of these bytes must verify them first."""
        return bool(segment.unverified) and overlap(segment.unverified, begin, end)

    def verify_read(self, segment: Segment, begin: int, end: int) -> bool:
        """Verify the bytes that a read needs, from its first unverified byte on, and some after them. Blocks.

        Returns True if the read must be planned again, because new damage was found or the log was changed meanwhile.
        Raises ``ClosedLog``, ``OSError``.
        """
        unverified = segment.unverified  # another thread may replace it
        begin = first_in(unverified, begin, end)
        run = verified_before(unverified, begin)
        size = min(max(run, NEXT_READ), LONGEST_READ) if run or not begin else FIRST_READ
        return self.verify(segment, begin, max(end, begin + size)).outdates_reads

    def verify(self, segment: Segment, begin: int, end: int) -> Verified:
        """Verify at least the bytes [``begin``, ``end``), or up to the end of the segment. Blocks.

        Raises ``ClosedLog``, ``OSError``.
        """
        with self._lock:
            removals = self._durability.removals
            # Taken at the same moment as the size: otherwise batches appended in between would count as damage.
            end_offset = segment.end_offset if segment.end_offset != UNSEALED else self._log_end()
            extent = Extent(segment.size, end_offset, segment.digest(), self._epochs, self._appended_epochs)
        try:
            checked = check(segment, begin, end, extent)
        except FileNotFoundError:
            missing = DamagedBytes(0, extent.size, segment.base_offset, end_offset - 1, "the file is missing")
            checked = Checked(0, extent.size, (missing,))
        with self._lock:
            if self._is_closed():
                raise ClosedLog(self._name)
            if removals != self._durability.removals:
                return Verified(None, found_damage=False)
            if checked.is_digest_wrong:
                segment.remove_digest()
            known = segment.damage
            new = [damaged for damaged in checked.damage if not _is_known(damaged, known)]
            if new:
                segment.damage = joined(known, new)
            # Set this after the damage: a read takes no lock, and would take damaged bytes for verified ones.
            segment.unverified = without(segment.unverified, checked.begin, checked.end)
        if checked.is_digest_wrong:
            facts = {"partition": self._name, "segment": segment.base_offset}
            _log.warning("the digest of intact records is wrong and will be rewritten", extra=facts)
        if new:
            self.record()
        for damaged in new:
            if damaged.last_offset >= self._log_start():
                self.report(damaged.offsets)
        return Verified(checked.end, found_damage=bool(new))

    def write_missing_digest(self, segment: Segment) -> None:
        """Write the digest of a sealed segment, unless it has a complete one or a batch is damaged. Blocks.

        Does nothing if the log is closed. Raises ``OSError``.
        """
        with self._lock:
            if self._is_closed() or segment.end_offset == UNSEALED or segment.damage or not segment.size:
                return
            known = segment.digest()
            if known is not None and known.covers_headers:
                if known.transactions is None:
                    with_transactions = replace(known, transactions=segment.transactions.checksum())
                    write_digest(segment.path_of(DIGEST_SUFFIX), with_transactions)
                return
            removals = self._durability.removals
        digest = DigestBuilder()
        try:
            checked = CheckedBatches(segment.file, segment.size, segment.base_offset, segment.end_offset)
        except FileNotFoundError:
            return  # the segment was removed; or only its file, which the next read reports
        for found in checked.walk(0, segment.size, segment.base_offset):
            if isinstance(found, DamagedBytes) or found.data is None:
                return
            digest.add(found.data, (found.header,))
        with self._lock:
            if removals == self._durability.removals and not self._is_closed():
                transactions = segment.transactions.checksum()
                write_digest(segment.path_of(DIGEST_SUFFIX), digest.digest(segment.end_offset, transactions))


def _is_known(damaged: DamagedBytes, known: Sequence[DamagedBytes]) -> bool:
    return any(each.position <= damaged.position and damaged.end <= each.end for each in known)
