"""The scrubber: periodically reads all data again, to find damage before a consumer or follower reads it.

Rules:

1. A segment is due if it was last verified more than ``log.scrub.interval.ms`` ago. The segments that were verified
   longest ago come first. The modification time of a segment's digest is the time of its last verification, so a
   restart does not lose it. A segment without a digest that an earlier process wrote is due immediately.
2. Each directory has one loop. It verifies one piece at a time in the executor, and then pauses to stay below
   ``log.scrub.max.bytes.per.second``.
3. The log records the damage that is found. The owner of the log decides what to do about it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory
from parley.storage.log_maintenance import MaintenanceOwner
from parley.storage.segment import Segment
from parley.storage.segment_file import SegmentFile
from parley.storage.segment_names import DIGEST_SUFFIX

_log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
"""The number of bytes that are verified in one job of the executor: a few milliseconds of work if the disk is idle."""
LOOK_S = 60.0
"""How long the loop waits before it looks for due segments again, if it has found none."""
NEVER_MS = 0
"""The last verification time of a segment that was never verified."""


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """How often data is verified, and how fast."""

    interval_ms: int
    max_bytes_per_second: int


class ScrubberOwner(MaintenanceOwner, Protocol):
    """The part of the log manager that the scrubber uses."""

    def directory_of(self, log: Log) -> LogDirectory:
        """Return the directory of the log. Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log no longer exists."""


class Due(NamedTuple):
    """A segment to verify."""

    verified_ms: int
    base_offset: int
    size: int
    log: Log


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """The progress of verifying a directory: how many bytes were due when the scrubber last looked for due segments,
    how many it has verified since, and the elapsed time."""

    directory: LogDirectory
    log: Log
    """The log that is being verified."""
    verified_bytes: int
    due_bytes: int
    elapsed_s: float


class _Round(NamedTuple):
    """The verification of the segments that were due when the scrubber last looked. ``log`` is the log being
    verified."""

    log: Log
    due_bytes: int
    verified_before: int
    began_s: float


class Scrubber:
    """Verifies the logs of ``owner``, with one loop for each directory."""

    def __init__(
        self,
        owner: ScrubberOwner,
        directories: Iterable[LogDirectory],
        settings: Callable[[], ScrubSettings],
        *,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._owner = owner
        self._scrubs = {each: DirectoryScrub(owner, each, settings, now_ms, monotonic) for each in directories}

    @property
    def verified_bytes(self) -> int:
        """The bytes verified since the start."""
        return sum(each.verified_bytes for each in self._scrubs.values())

    @property
    def overdue_bytes(self) -> int:
        """The bytes that were due when the scrubber last looked at their directory, and that it has not verified
        since."""
        return sum(each.overdue_bytes for each in self._scrubs.values())

    @property
    def in_progress(self) -> list[ScrubProgress]:
        """The progress in each directory whose data is being verified now."""
        return [found for each in self._scrubs.values() if (found := each.progress) is not None]

    async def run(self, directory: LogDirectory) -> None:
        """Verify the logs in a directory until it goes offline, or the task is cancelled."""
        await self._scrubs[directory].run()

    def require(self, log: Log, since_ms: int) -> None:
        """Make all segments of a log that were last verified before ``since_ms`` due, ahead of other logs' segments.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log no longer exists.
        """
        self._scrubs[self._owner.directory_of(log)].require(log, since_ms)

    def unverified_bytes(self, log: Log, since_ms: int) -> int:
        """Return the number of bytes in the segments of a log that were last verified before ``since_ms``.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR if the log no longer exists.
        """
        return self._scrubs[self._owner.directory_of(log)].unverified_bytes(log, since_ms)


class DirectoryScrub:
    """The verification of the logs in one directory."""

    def __init__(
        self,
        owner: MaintenanceOwner,
        directory: LogDirectory,
        settings: Callable[[], ScrubSettings],
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self.verified_bytes = 0
        self.overdue_bytes = 0
        self._owner = owner
        self._directory = directory
        self._settings = settings
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._verified: dict[Log, dict[int, int]] = {}  # by base offset: when the segment was last verified
        self._required: dict[Log, int] = {}
        self._wakeup = asyncio.Event()
        self._round: _Round | None = None

    @property
    def progress(self) -> ScrubProgress | None:
        found = self._round
        if found is None:
            return None
        verified = min(self.verified_bytes - found.verified_before, found.due_bytes)
        return ScrubProgress(self._directory, found.log, verified, found.due_bytes, self._monotonic() - found.began_s)

    def require(self, log: Log, since_ms: int) -> None:
        if self._required.get(log, NEVER_MS) < since_ms:
            self._required[log] = since_ms
            self._wakeup.set()

    def unverified_bytes(self, log: Log, since_ms: int) -> int:
        # Segments that are newer than the last look are written or rolled while the operator waits: they must not make
        # the wait endless.
        verified = self._verified.get(log, {})
        return sum(
            segment.size
            for segment in log.segments
            if verified.get(segment.base_offset, _written_ms(segment)) < since_ms
        )

    async def run(self) -> None:
        while self._directory.online:
            self._wakeup.clear()
            due: list[Due] = []
            try:
                due = await self._owner.run(self._directory, self._look)
                self.overdue_bytes = sum(each.size for each in due)
                await self._verify_all(due)
            except KafkaError as error:
                _log.warning("the scrubber of %s pauses: %s", self._directory, error)
                due = []
            if not due:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wakeup.wait()

    # --- What is due ---

    def _look(self) -> list[Due]:
        """Return the due segments, in the order in which they are verified. Blocks."""
        logs = [log for log in self._owner.logs_in(self._directory) if log.is_written]
        self._verified = {log: self._times_of(log) for log in logs}
        self._required = {log: since_ms for log, since_ms in self._required.items() if log in self._verified}
        before_ms = self._now_ms() - self._settings().interval_ms
        due = [
            Due(verified_ms, segment.base_offset, segment.size, log)
            for log, times in self._verified.items()
            for segment in log.segments
            if segment.size
            and (verified_ms := times.get(segment.base_offset, NEVER_MS)) < max(before_ms, self._required.get(log, 0))
        ]
        return sorted(due, key=lambda each: (not self._is_required(each), each.verified_ms, each.base_offset))

    def _is_required(self, due: Due) -> bool:
        return due.verified_ms < self._required.get(due.log, NEVER_MS)

    def _times_of(self, log: Log) -> dict[int, int]:
        known = self._verified.get(log, {})
        return {
            segment.base_offset: known[segment.base_offset]
            if segment.base_offset in known
            else _verified_ms(segment, self._now_ms())
            for segment in log.segments
        }

    # --- Verifying ---

    async def _verify_all(self, due: Sequence[Due]) -> None:
        """Verify the segments, but return early if ``require`` was called: its segments come first."""
        due_bytes, before, began_s = self.overdue_bytes, self.verified_bytes, self._monotonic()
        try:
            for each in due:
                self._round = _Round(each.log, due_bytes, before, began_s)
                await self._verify(each)
                if self._wakeup.is_set():
                    break
        finally:
            self._round = None

    async def _verify(self, due: Due) -> None:
        """Verify a segment piece by piece, and record the time of its verification. Skips a segment that was
        removed."""
        segment = next((each for each in due.log.segments if each.base_offset == due.base_offset), None)
        # A clock that was set back must not make the segment due again.
        began_ms, position = max(self._now_ms(), self._required.get(due.log, NEVER_MS)), 0
        while segment is not None and position < segment.size:
            began_s = self._monotonic()
            end = await self._owner.run(self._directory, _verify_piece, due.log, segment, position)
            self.verified_bytes += end - position
            pause_s = (end - position) / self._settings().max_bytes_per_second - (self._monotonic() - began_s)
            position = end
            await asyncio.sleep(max(0.0, pause_s))
        if segment is not None:
            await self._owner.run(self._directory, _note_verified, due.log, segment, began_ms)
            self._verified[due.log][due.base_offset] = began_ms
        self.overdue_bytes -= due.size


def _verify_piece(log: Log, segment: Segment, position: int) -> int:
    """Verify a piece of a segment. Returns the end of the piece, or the segment's end if the segment was removed.

    Drops the pages of the piece from the page cache again if its first page was not there before.
    """
    if segment not in log.segments:
        return segment.size
    uncached = _uncached_file(segment, position)
    end = log.verify_segment(segment, position, PIECE_BYTES)
    if uncached is not None:
        os.posix_fadvise(uncached.fd, position, end - position, os.POSIX_FADV_DONTNEED)
    return end


def _uncached_file(segment: Segment, position: int) -> SegmentFile | None:
    """Return the segment's file if the byte at ``position`` is not in the page cache.

    Returns None if the file is missing: ``Log.verify_segment`` records that as damage.
    """
    try:
        file = segment.file
    except FileNotFoundError:
        return None
    try:
        file.read_into(bytearray(1), position, nowait=True)
    except BlockingIOError:
        return file
    return None


def _note_verified(log: Log, segment: Segment, at_ms: int) -> None:
    """Set the modification time of a sealed segment's digest, so that a restart does not make the segment due."""
    log.write_missing_digest(segment)
    segment.rest_if_sealed()
    with suppress(FileNotFoundError):
        os.utime(segment.path_of(DIGEST_SUFFIX), ns=(at_ms * 1_000_000, at_ms * 1_000_000))


def _written_ms(segment: Segment) -> int:
    """Return the time at which this process created a segment, or NEVER_MS if an earlier process wrote a part of it."""
    return NEVER_MS if segment.unverified else segment.created_ms


def _verified_ms(segment: Segment, now_ms: int) -> int:
    """Return the time at which a segment that is new to the scrubber was last verified. Returns NEVER_MS instead of a
    time in the future."""
    if not segment.unverified:
        return _written_ms(segment)
    try:
        verified_ms = os.stat(segment.path_of(DIGEST_SUFFIX)).st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return NEVER_MS
    return verified_ms if verified_ms <= now_ms else NEVER_MS
