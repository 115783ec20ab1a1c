"""Plans and executes reads: decides which bytes of which segment file a fetch returns, and reads them.

Rules (docs/storage.md has them all):

1. A read returns whole batches of one segment, starting with the batch that contains the requested offset, below
   ``up_to`` and within ``max_bytes``; only the first batch may be larger.
2. Planning a read usually touches no file, because the log remembers the batch boundaries at which earlier reads ended.
3. A read keeps its file open, so its bytes stay readable if the segment is deleted meanwhile.
4. A read verifies the bytes that this process has not verified yet. It contains no damage: it starts after damage and
   ends before damage.
5. Any thread may read while another appends. ``LogEnd`` and the tuple of segments are replaced as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch_header import HEADER_SIZE, BatchHeader
from parley.protocol.records.errors import CorruptRecord
from parley.storage.damage.log_integrity import DamagedOffset, LogIntegrity
from parley.storage.resource_exhaustion import no_memory
from parley.storage.segment import Segment
from parley.storage.segment_file import SegmentFile, batches

_REMEMBERED: Final = 16
_SEALED_OPEN: Final = 8

Failed = Callable[[OSError], KafkaError]
"""Reports a failure of the disk, and returns the error to raise."""


class LogEnd(NamedTuple):
    """The end of the log: its next offset, the active segment, and the bytes of whole batches in that segment."""

    offset: int
    segment: Segment
    size: int


class LogRead:
    """A planned read of ``size`` bytes at ``position`` of ``fd``. A read may be empty; ``fd`` is then -1.

    Call ``try_read`` and, if it would wait for the disk, ``read`` in a thread; or call ``os.sendfile`` with ``fd``,
    which stays open while this object exists. ``next_offset`` is the offset at which the next read continues, or None
    if it can only be determined from the batches.
    """

    __slots__ = ("_failed", "_file", "next_offset", "offset", "position", "segment_base_offset", "size")

    def __init__(
        self,
        offset: int,
        next_offset: int | None,
        base: int,
        file: SegmentFile | None,
        position: int,
        size: int,
        failed: Failed,
    ) -> None:
        self._failed = failed
        self.offset = offset
        self.next_offset = next_offset
        self.segment_base_offset = base
        self._file = file
        self.position = position
        self.size = size

    @property
    def fd(self) -> int:
        """The open segment file, for ``os.sendfile``; -1 if there is nothing to send."""
        return self._file.fd if self._file is not None else -1

    def headers(self, *, nowait: bool) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position in the file and the header of each batch. Reads nothing else.

        Raises ``KafkaError`` as ``read`` does; with ``nowait``, ``BlockingIOError`` if it would have to wait for the
        disk.
        """
        if self._file is None:
            return
        try:
            yield from batches(self._file, self.position, self.position + self.size, nowait=nowait)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._failed(error) from error

    def part(self, position: int, end: int) -> LogRead:
        """Return a read of the whole batches from file position ``position`` up to, but excluding, ``end``."""
        base = self.segment_base_offset
        return LogRead(self.offset, None, base, self._file, position, end - position, self._failed)

    def try_read(self) -> bytearray:
        """Return the bytes if they are in memory. Raises ``BlockingIOError`` if not, and the errors of ``read``."""
        return self._read(nowait=True)

    def read(self) -> bytearray:
        """Return the bytes. Blocks.

        Raises ``KafkaError``: KAFKA_STORAGE_ERROR, or CORRUPT_MESSAGE if the log was truncated meanwhile.
        """
        return self._read(nowait=False)

    def _read(self, *, nowait: bool) -> bytearray:
        try:
            data = bytearray(self.size)
        except MemoryError as error:
            raise no_memory(f"{self.size} bytes of records") from error
        if self._file is not None:
            try:
                done = self._file.read_into(data, self.position, nowait=nowait)
            except BlockingIOError:
                raise
            except OSError as error:
                raise self._failed(error) from error
            if done < self.size:
                raise CorruptRecord(f"{self._file.path} ends {self.size - done} bytes early")
        return data


class Boundaries:
    """The most recent boundaries between batches that were appended or read: offset -> (segment, position).

    There are two generations of a fixed size; the older one is dropped when the recent one is full. An entry also means
    that no earlier byte of the segment belongs to that offset or a later one.
    """

    __slots__ = ("_older", "_recent")

    def __init__(self) -> None:
        self._recent: dict[int, tuple[Segment, int]] = {}
        self._older: dict[int, tuple[Segment, int]] = {}

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember that the first batch from ``offset`` on starts, or will start, at ``position`` of ``segment``."""
        recent = self._recent
        if len(recent) >= _REMEMBERED:
            self._older = recent
            self._recent = recent = {}
        recent[offset] = (segment, position)

    def get(self, offset: int) -> tuple[Segment, int] | None:
        """Return the segment and position at which ``offset`` starts, or None if they are not remembered."""
        return self._recent.get(offset) or self._older.get(offset)


class View(NamedTuple):
    """One version of the list of a log's segments, and the boundaries remembered in them. A change to the list needs a
    new view."""

    segments: tuple[Segment, ...]
    bases: list[int]
    boundaries: Boundaries

    @classmethod
    def of(cls, segments: tuple[Segment, ...]) -> View:
        """Return a view without remembered boundaries."""
        return cls(segments, [segment.base_offset for segment in segments], Boundaries())

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        """Return the segment that covers ``offset`` and all later segments."""
        return self.segments[max(bisect_right(self.bases, offset) - 1, 0) :]


class LogReader:
    """Plans the reads of one log, over ``view`` and up to ``end``; the log replaces both."""

    __slots__ = ("_failed", "_integrity", "_opened", "end", "view")

    def __init__(self, segments: tuple[Segment, ...], end_offset: int, integrity: LogIntegrity, failed: Failed) -> None:
        self._integrity = integrity
        self._failed = failed
        self._opened: list[Segment] = []
        self.show(segments, end_offset)

    def show(self, segments: tuple[Segment, ...], end_offset: int) -> None:
        """Use these segments for all later plans, and forget every boundary."""
        self.view = View.of(segments)
        self.end = LogEnd(end_offset, segments[-1], segments[-1].size)
        self._opened = [segment for segment in self._opened if segment in segments[:-1]]

    def release(self) -> None:
        """Stop referring to the log, because it is closed. Reads planned before still report failures to it."""
        self._failed = _failed_after_release

    def appended(self, end: LogEnd) -> None:
        """Record that the active segment grew."""
        self.end = end
        self.view.boundaries.remember(*end)

    def plan(self, offset: int, max_bytes: int, up_to: int, *, min_one_batch: bool, nowait: bool) -> LogRead:
        """Return the read that starts with the batch that contains ``offset``: whole batches of one segment, below
        offset ``up_to``.

        The read has at most ``max_bytes``, except that, with ``min_one_batch``, the first batch may be larger.
        ``offset`` must lie in the log. Raises ``CorruptRecord`` (``DamagedOffset`` if ``offset`` lies in damage),
        ``ClosedLog`` if the log is closed meanwhile, and ``OSError``. With ``nowait``, raises
        ``BlockingIOError`` if finding the position, or verifying the bytes, would wait for the disk: the caller plans
        again in a thread, without ``nowait``.
        """
        while True:
            view, end = self.view, self.end
            try:
                read = self._plan(view, end, offset, max_bytes, min(up_to, end.offset), min_one_batch, nowait)
            except DamagedOffset:
                raise
            except (CorruptRecord, FileNotFoundError):
                if nowait:
                    raise BlockingIOError from None
                if not self._finds_damage(view, offset):
                    raise
                continue
            if read is not None:
                return read

    def _plan(
        self, view: View, end: LogEnd, offset: int, max_bytes: int, up_to: int, min_one_batch: bool, nowait: bool
    ) -> LogRead | None:
        """Return the read that ``plan`` describes, or None if damage was found and the read must be planned again."""
        if self._integrity.missing and offset < up_to:
            self._integrity.refuse_missing(offset)
        place = self._locate(view, end, offset, nowait) if offset < up_to else None
        if place is None:
            return LogRead(offset, offset, -1, None, 0, 0, self._failed)
        segment, start = place
        if segment is not end.segment:
            self._note_opened(segment)
        limit, following = _limit(view, end, segment, up_to, nowait)
        if limit - start > max_bytes:
            limit, following = _cut(segment, start, start + max_bytes, limit, min_one_batch, nowait)
        if limit <= start:
            return LogRead(offset, offset, -1, None, 0, 0, self._failed)
        if segment.unverified and self._integrity.is_unverified(segment, start, limit):
            if nowait:
                raise BlockingIOError
            if self._integrity.verify_read(segment, start, limit):
                return None
        if segment.damage:  # another thread may have just verified these bytes, and found the damage
            limit, following = _before_damage(segment, start, limit, following)
            if limit == start:  # the damage was found after ``start`` was located
                return None
        if following is not None:
            view.boundaries.remember(following, segment, limit)
        return LogRead(offset, following, segment.base_offset, segment.file, start, limit - start, self._failed)

    def _locate(self, view: View, end: LogEnd, offset: int, nowait: bool) -> tuple[Segment, int] | None:
        """Return the segment and position of the first batch that ends at or after ``offset``, or None at the log end.

        Raises ``DamagedOffset`` if the offset lies in damage.
        """
        place = view.boundaries.get(offset)
        if place is not None:
            segment, position = place
            size = end.size if segment is end.segment else segment.size
            if segment.damage and position < size:
                position = _behind_damage(segment, offset, position)
            if position < size:
                return segment, position
        for segment in view.from_offset(offset):
            if offset <= segment.base_offset:
                position = 0
            else:
                if segment.unverified:
                    self._verify_around(segment, offset, nowait)
                found = segment.find(offset, nowait=nowait)
                position = found[0] if found is not None else segment.size
            if segment.damage:
                position = _behind_damage(segment, offset, position)
            if position < (end.size if segment is end.segment else segment.size):
                return segment, position
        return None

    def _verify_around(self, segment: Segment, offset: int, nowait: bool) -> None:
        """Verify the batches that a search for ``offset`` will read, so that no damaged header misleads the search."""
        begin = segment.offset_index.lookup(offset).position
        if self._integrity.is_unverified(segment, begin, begin + 1):
            if nowait:
                raise BlockingIOError
            self._integrity.verify_read(segment, begin, begin + 1)

    def _finds_damage(self, view: View, offset: int) -> bool:
        """Verify the segment whose headers cannot be read at ``offset``. Returns True if new damage was found, or the
        segment has changed meanwhile: the read must then be planned again."""
        segment = view.from_offset(offset)[0]
        return self._integrity.verify(segment, 0, segment.size).outdates_reads

    def _note_opened(self, segment: Segment) -> None:
        """Record that a sealed segment is open, and close the one that was opened longest ago if too many are open."""
        opened = self._opened
        if segment in opened:
            return
        opened.append(segment)
        if len(opened) > _SEALED_OPEN:
            opened.pop(0).rest()


def _failed_after_release(error: OSError) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The log is closed: {error}")


def _behind_damage(segment: Segment, offset: int, position: int) -> int:
    """Return ``position``, or the end of the damage that starts there. Raises ``DamagedOffset`` if ``offset`` lies in
    damage."""
    for damaged in segment.damage:
        if damaged.first_offset <= offset <= damaged.last_offset:
            raise DamagedOffset(offset, damaged.offsets)
        if damaged.position == position:
            position = damaged.end
    return position


def _before_damage(segment: Segment, start: int, limit: int, following: int | None) -> tuple[int, int | None]:
    """Return ``limit`` and ``following``, or the position and the first offset of the next damage if it lies before
    ``limit``."""
    for damaged in segment.damage:
        if start <= damaged.position < limit:
            return damaged.position, damaged.first_offset
    return limit, following


def _limit(view: View, end: LogEnd, segment: Segment, up_to: int, nowait: bool) -> tuple[int, int | None]:
    """Return the position in ``segment`` at which a read below ``up_to`` must end, and the offset that follows if
    known."""
    if segment.end_offset <= up_to:
        return segment.size, segment.end_offset
    if segment is end.segment and up_to == end.offset:
        return end.size, up_to
    place = view.boundaries.get(up_to)
    if place is not None and place[0] is segment:
        return place[1], up_to
    found = segment.find(up_to, nowait=nowait)
    if found is None:
        return (end.size if segment is end.segment else segment.size), None
    position, header = found
    return position, up_to if header.base_offset >= up_to else None


def _cut(
    segment: Segment, start: int, wanted: int, limit: int, min_one_batch: bool, nowait: bool
) -> tuple[int, int | None]:
    """Return a batch boundary at or before ``wanted``, and the offset that follows, if known.

    With ``min_one_batch``, returns the end of the first batch if it lies after ``wanted`` but not after ``limit``.
    """
    boundary, following = segment.boundary(start, wanted, nowait=nowait)
    if boundary == start and min_one_batch:
        first = next(segment.batches(start, chunk=HEADER_SIZE, nowait=nowait), None)
        if first is not None and start + first[1].size_bytes <= limit:
            return start + first[1].size_bytes, first[1].next_offset
    return boundary, following
