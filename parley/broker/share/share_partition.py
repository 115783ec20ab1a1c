"""The state of a share partition: which records of its window are available, acquired or final (KIP-932).

Rules of this module, which does no I/O (docs/groups.md, "How a share partition works"):

* The *window* begins at the first record that is not final, and ends after the last record that was ever acquired. It
  contains at most ``max_record_locks`` records. While it is full, only released records are delivered.
* An acknowledgement takes effect when it has been stored. Until then the records stay acquired. If it cannot be stored,
  the member keeps the records until their lock expires.
* An expired lock (Kafka's acquisition lock) or a missing record changes the state immediately. The change is stored
  with the next write.
* Writes do not overlap: ``begin_write`` returns everything that has changed, and ``end_write`` applies the outcome.
* A record that was delivered ``delivery_count_limit`` times is archived when it is released. From half that number on,
  records are delivered in ever smaller parts, and one by one the last time, so that a bad record affects no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from parley.broker.coordinators.share_state.batches import append_batch
from parley.broker.coordinators.share_state.persister import ShareState, StateBatch
from parley.broker.share.acknowledgements import ACCEPT, RELEASE, RENEW, AcknowledgementBatch
from parley.broker.share.record_states import ACQUIRED, ARCHIVED, AVAILABLE, RecordEvent, RecordState, after
from parley.broker.share.spans import Outcome, Span, Spans
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

THROTTLED_DELIVERIES_MIN: Final = 2
"""The minimum number of times that records are delivered together."""


class LogBatch(NamedTuple):
    """The offsets of a batch in the log, both ends included."""

    first: int
    last: int
    is_dead: bool = False
    """True if its records must not reach consumers: a control batch, or a batch of an aborted transaction."""


class Limits(NamedTuple):
    """The settings of a share group that limit its deliveries and its window."""

    max_record_locks: int
    delivery_count_limit: int

    @property
    def together_max(self) -> int:
        """The number of times that records are delivered together before they are delivered in parts."""
        return max(THROTTLED_DELIVERIES_MIN, -(-self.delivery_count_limit // 2))


class Wanted(NamedTuple):
    """The number of records that a fetch may acquire."""

    max_records: int
    is_exact: bool
    """False if the batch that reaches ``max_records`` may be acquired completely (``share_acquire_mode`` 0)."""


class Acquired(NamedTuple):
    """Consecutive records that a member has acquired, both ends included."""

    first: int
    last: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Write:
    """The changes to store. ``pending`` contains the records whose acknowledgements this write stores."""

    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]
    pending: tuple[tuple[int, int], ...]


class SharePartition:
    """The window of one share group in one partition."""

    def __init__(self, state: ShareState, start_offset: int, *, must_store_all: bool = False) -> None:
        """Restore the window from ``state``, but start it at ``start_offset``.

        With ``must_store_all``, the first write contains the whole state. Raises ValueError if a delivery state in
        ``state`` is unknown.
        """
        self._spans = Spans()
        self.start_offset = start_offset
        """The offset of the first record that is not final, or ``end_offset`` if there is none."""
        self.end_offset = start_offset
        """The offset after the last record that was ever acquired."""
        self._has_available = bool(state.batches)
        self._has_changed = must_store_all or state.start_offset != start_offset
        self._must_store_all = must_store_all
        for batch in state.batches:
            self._take_stored(batch)
        self._advance()

    def _take_stored(self, batch: StateBatch) -> None:
        first = max(batch.first_offset, self.end_offset)
        if batch.last_offset < first:
            return
        if first > self.end_offset:
            self._append(Span(self.end_offset, first - 1, AVAILABLE, batch_size=first - self.end_offset))
        state, size = RecordState(batch.delivery_state), batch.last_offset - first + 1
        self._append(Span(first, batch.last_offset, state, batch.delivery_count, batch_size=size))

    def _append(self, span: Span) -> None:
        self._spans.append(span)
        self.end_offset = span.last + 1

    def _advance(self) -> None:
        """Move the start of the window to the first record that is not final."""
        while (head := self._spans.head) is not None and head.state.is_final:
            self._spans.drop_head()
            self.start_offset = head.last + 1
            self._has_changed = True
        if self._spans.head is None:
            self.start_offset = self.end_offset

    def log_start_moved(self, offset: int) -> None:
        """Drop the records before the log start offset. Later acknowledgements of them are ignored."""
        if offset > self.start_offset:
            self._spans.drop_before(offset)
            self.start_offset, self.end_offset = offset, max(offset, self.end_offset)
            self._has_changed = True
            self._advance()

    # --- Contents ---

    @property
    def spans(self) -> Iterable[Span]:
        """The records of the window, as spans."""
        return self._spans

    @property
    def in_flight(self) -> int:
        """The number of records in the window."""
        return self.end_offset - self.start_offset

    @property
    def in_flight_batches(self) -> int:
        """The number of spans: runs of consecutive records with the same state."""
        return len(self._spans)

    def next_offset(self, limits: Limits) -> int | None:
        """Return the offset of the first available record. If there is none, return the end of the window, or None if
        the window is full."""
        if self._has_available:
            for span in self._spans:
                if span.state is AVAILABLE:
                    return span.first
            self._has_available = False
        return self.end_offset if self.in_flight < limits.max_record_locks else None

    # --- Acquisition ---

    def acquire(
        self,
        member: str,
        offset: int,
        batches: Sequence[LogBatch],
        wanted: Wanted,
        limits: Limits,
        lock_until: float,
    ) -> list[Acquired]:
        """Acquire available records for a member from ``batches``, the batches of the log that follow ``offset``.

        Returns the acquired records; empty if none could be acquired. Offsets between batches, which compaction has
        removed, and the offsets of dead batches are archived. ``lock_until`` is the time when the locks expire, in
        seconds of the event loop's clock.
        """
        acquired: list[Acquired] = []
        taken, cursor, known_end = 0, max(offset, self.start_offset), self.end_offset
        for batch in batches:
            if batch.last < cursor:
                continue
            self._archive(cursor, batch.first - 1)
            cursor = max(cursor, batch.first)
            if batch.is_dead:
                self._archive(cursor, batch.last)
            else:
                room = wanted.max_records - taken if wanted.is_exact else batch.last - cursor + 1
                found, is_full = self._acquire_in(member, cursor, batch.last, room, bool(taken), limits, lock_until)
                acquired += found
                taken += sum(each.last - each.first + 1 for each in found)
                if is_full or taken >= wanted.max_records:
                    break
            cursor = batch.last + 1
        self._note_batch(known_end)
        self._advance()
        return _joined(acquired)

    def _note_batch(self, first: int) -> None:
        """Record that the new records, from ``first`` on, were delivered together as one batch."""
        size = self.end_offset - first
        if size > 0:
            self._spans.change(first, self.end_offset - 1, lambda span: span._replace(batch_size=size))

    def _archive(self, first: int, last: int) -> None:
        """Archive the offsets from ``first`` to ``last`` that are available or after the window.

        They contain no records for consumers, or records that were delivered too often.
        """
        if first > last:
            return

        def archived(span: Span) -> Span:
            if span.state is not AVAILABLE:
                return span
            self._has_changed = True
            return Span(
                span.first, span.last, after(AVAILABLE, RecordEvent.ARCHIVE), span.delivery_count, is_stored=False
            )

        self._spans.change(first, last, archived)
        if last >= self.end_offset:
            self._has_changed = True
            self._append(Span(self.end_offset, last, ARCHIVED, is_stored=False))

    def _acquire_in(
        self, member: str, first: int, last: int, room: int, has_some: bool, limits: Limits, lock_until: float
    ) -> tuple[list[Acquired], bool]:
        """Acquire up to ``room`` records of a batch. Returns the acquired records, and True if the response must not
        contain more."""
        acquired: list[Acquired] = []
        for span in self._spans.within(first, last):
            if span.state is not AVAILABLE or room <= 0:
                continue
            if span.delivery_count >= limits.delivery_count_limit:
                self._archive(span.first, span.last)
                continue
            together, is_alone = _portion(span, limits)
            if is_alone and (has_some or acquired):
                return acquired, True
            size = min(together, room)
            acquired.append(self._acquire(span._replace(last=span.first + size - 1), member, lock_until))
            room -= size
            if is_alone:
                return acquired, True
        return self._acquire_new(member, last, room, limits, lock_until, acquired)

    def _acquire_new(
        self, member: str, last: int, room: int, limits: Limits, lock_until: float, acquired: list[Acquired]
    ) -> tuple[list[Acquired], bool]:
        """Acquire records after the window, and extend the window. Returns ``acquired`` with these records, and True
        if some records of the batch did not fit."""
        if last < self.end_offset:
            return acquired, False
        size = min(last - self.end_offset + 1, room, limits.max_record_locks - self.in_flight)
        if size <= 0:
            return acquired, True
        new = Span(self.end_offset, self.end_offset + size - 1, ACQUIRED, 1, member, lock_until)
        self._append(new)
        return [*acquired, Acquired(new.first, new.last, 1)], new.last < last

    def _acquire(self, span: Span, member: str, lock_until: float) -> Acquired:
        def acquired(part: Span) -> Span:
            return part._replace(
                state=after(part.state, RecordEvent.ACQUIRE),
                delivery_count=part.delivery_count + 1,
                member=member,
                lock_until=lock_until,
                batch_size=part.batch_size or span.size,
            )

        self._spans.change(span.first, span.last, acquired)
        return Acquired(span.first, span.last, span.delivery_count + 1)

    # --- Acknowledgement ---

    def acknowledge(
        self, member: str, batches: Sequence[AcknowledgementBatch], limits: Limits, lock_until: float
    ) -> bool:
        """Apply the acknowledgements of a member, all or none. Returns True if they must be stored to take effect.

        Records before the window are ignored. A renewal extends locks to ``lock_until``, in seconds of the event loop's
        clock, and need not be stored. Raises INVALID_RECORD_STATE if the member has not acquired a record or has
        already acknowledged it, or INVALID_REQUEST if offsets are after the window.
        """
        for batch in batches:
            self._check_acquired(member, batch)
        needs_write = False
        for batch in batches:
            for first, last, kind in batch.runs(self.start_offset):
                if kind == RENEW:
                    self._spans.change(first, last, lambda span: span._replace(lock_until=lock_until))
                else:
                    self._spans.change(first, last, _acknowledging(kind, limits))
                    needs_write = True
        self._has_changed = self._has_changed or needs_write
        return needs_write

    def _check_acquired(self, member: str, batch: AcknowledgementBatch) -> None:
        if batch.last < self.start_offset:
            return
        if self._spans.head is None:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, "The batch cannot be acknowledged: no records are acquired."
            )
        if batch.last >= self.end_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "The batch cannot be acknowledged: its offsets are past acquired records."
            )
        for span in self._spans.within(batch.first, batch.last):
            if span.state is not ACQUIRED or span.pending is not None:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE, "The batch cannot be acknowledged: records are not acquired."
                )
            if span.member != member:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE, "The batch cannot be acknowledged: another member has acquired it."
                )

    def release_member(self, member: str, limits: Limits) -> bool:
        """Release the records of a member that leaves. Returns True if the release must be stored to take effect.

        As in Kafka, the delivery is counted: a record that crashes its consumers must not be delivered forever.
        """
        return self._change_acquired(
            lambda span: span.member == member, lambda span: span._replace(pending=_released(span, limits))
        )

    def end_locks(self, now: float, limits: Limits) -> int:
        """Release the records whose lock has expired at ``now``, in seconds of the event loop's clock, and return their
        number."""
        ended = 0

        def released(span: Span) -> Span:
            nonlocal ended
            ended += span.size
            return _settled(span, _released(span, limits))._replace(is_stored=False)

        if self._change_acquired(lambda span: span.lock_until <= now, released):
            self._has_available = True
            self._advance()
        return ended

    def _change_acquired(self, is_meant: Callable[[Span], bool], change: Callable[[Span], Span]) -> bool:
        meant = [span for span in self._spans if span.state is ACQUIRED and span.pending is None and is_meant(span)]
        for span in meant:
            self._spans.change(span.first, span.last, change)
        self._has_changed = self._has_changed or bool(meant)
        return bool(meant)

    def next_lock_end(self) -> float | None:
        """Return the time when the next lock expires, in seconds of the event loop's clock.

        Returns None if no records are acquired, or only records whose acknowledgements are being stored.
        """
        return min(
            (span.lock_until for span in self._spans if span.state is ACQUIRED and span.pending is None), default=None
        )

    # --- Storing ---

    @property
    def has_changed(self) -> bool:
        """True if there are changes to store."""
        return self._has_changed

    def begin_write(self) -> Write:
        """Return all changes to store, including pending acknowledgements. Call ``end_write`` before the next write."""
        start, complete = self.start_offset, 0
        batches: list[StateBatch] = []
        pending: list[tuple[int, int]] = []
        for span in self._spans:
            state, count = span.pending or (span.state, span.delivery_count)
            if span.pending is not None:
                pending.append((span.first, span.last))
            if state.is_final and start == span.first:
                start = span.last + 1
                continue
            if state.is_final:
                complete += span.size
            if span.pending is None and span.is_stored and not self._must_store_all:
                continue
            if state is ACQUIRED:
                state, count = AVAILABLE, count - 1
            if count or state is not AVAILABLE or self._must_store_all:
                append_batch(batches, StateBatch(span.first, span.last, state, count))
        self._mark_stored()
        return Write(start, complete, tuple(batches), tuple(pending))

    def _mark_stored(self) -> None:
        for span in [span for span in self._spans if not span.is_stored]:
            self._spans.change(span.first, span.last, lambda each: each._replace(is_stored=True))
        self._has_changed = self._must_store_all = False

    def end_write(self, write: Write, *, is_stored: bool) -> None:
        """Apply the acknowledgements of a write, or undo them if it was not stored.

        After a failure the stored state is unknown, so the next write contains the whole state.
        """
        for first, last in write.pending:
            self._spans.change(first, last, _hold if is_stored else _undo)
        if not is_stored:
            self._has_changed = self._must_store_all = True
        has_changed = self._has_changed
        self._has_available = True
        self._advance()
        self._has_changed = has_changed


def before(batches: Sequence[StateBatch], offset: int) -> tuple[StateBatch, ...]:
    """Return the batches without the offsets from ``offset`` on."""
    return tuple(
        each._replace(last_offset=min(each.last_offset, offset - 1)) for each in batches if each.first_offset < offset
    )


def _joined(acquired: list[Acquired]) -> list[Acquired]:
    """Join consecutive records with the same delivery count."""
    joined: list[Acquired] = []
    for each in acquired:
        if joined and (joined[-1].last + 1, joined[-1].delivery_count) == (each.first, each.delivery_count):
            each = each._replace(first=joined.pop().first)
        joined.append(each)
    return joined


def _portion(span: Span, limits: Limits) -> tuple[int, bool]:
    """Return the number of records of ``span`` to deliver together, and True if no other records may be added."""
    together_max, limit = limits.together_max, limits.delivery_count_limit
    if span.delivery_count < together_max:
        return span.size, False
    if span.delivery_count >= limit - 1 and limit > THROTTLED_DELIVERIES_MIN:
        return 1, True
    return min(span.size, max(1, span.batch_size >> (span.delivery_count - together_max + 1))), True


def _acknowledging(kind: int, limits: Limits) -> Callable[[Span], Span]:
    def pending(span: Span) -> Span:
        if kind == RELEASE:
            return span._replace(pending=_released(span, limits))
        event = RecordEvent.ACCEPT if kind == ACCEPT else RecordEvent.ARCHIVE
        return span._replace(pending=Outcome(after(span.state, event), span.delivery_count))

    return pending


def _released(span: Span, limits: Limits) -> Outcome:
    is_spent = span.delivery_count >= limits.delivery_count_limit
    return Outcome(after(span.state, RecordEvent.ARCHIVE if is_spent else RecordEvent.RELEASE), span.delivery_count)


def _settled(span: Span, outcome: Outcome) -> Span:
    return Span(span.first, span.last, outcome.state, outcome.delivery_count, batch_size=span.batch_size)


def _hold(span: Span) -> Span:
    return span if span.pending is None else _settled(span, span.pending)


def _undo(span: Span) -> Span:
    return span._replace(pending=None)
