"""The records of a share partition as spans: each span is a run of consecutive records with the same state.

A consumer usually acquires and acknowledges hundreds of records at a time, and one span then contains them all. A span
is split when the states of its records differ, and spans are joined when their states are the same again. The spans
cover the window of a share partition without gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from parley.broker.share.record_states import RecordState


class Outcome(NamedTuple):
    """The state and the delivery count that records get when an acknowledgement has been stored."""

    state: RecordState
    delivery_count: int


class Span(NamedTuple):
    """Consecutive records with the same state, both ends included."""

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    """The number of deliveries of the records, including the current one."""
    member: str = ""
    """The member that has acquired the records."""
    lock_until: float = 0.0
    """When the lock of acquired records expires, in seconds of the event loop's clock."""
    batch_size: int = 0
    """The number of records in the batch in which these records were first delivered. Failing records are delivered
    again in parts of that batch."""
    pending: Outcome | None = None
    """Set while the member's acknowledgement is being stored. Until it is stored, the records stay acquired."""
    is_stored: bool = True
    """False if the state has changed and has not been stored yet."""

    @property
    def size(self) -> int:
        """The number of records."""
        return self.last - self.first + 1

    def is_like(self, other: Span) -> bool:
        """Return True if the records of both spans have the same state."""
        return self[2:] == other[2:]


def _first(span: Span) -> int:
    return span.first


class Spans:
    """Spans in the order of offsets, without gaps."""

    def __init__(self) -> None:
        self._spans: list[Span] = []

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def head(self) -> Span | None:
        """The first span, or None if there are no spans."""
        return self._spans[0] if self._spans else None

    def append(self, span: Span) -> None:
        """Add the records that follow the last span."""
        if self._spans and self._spans[-1].is_like(span):
            span = span._replace(first=self._spans.pop().first)
        self._spans.append(span)

    def within(self, first: int, last: int) -> list[Span]:
        """Return the spans from ``first`` to ``last`` (inclusive), cut at both ends."""
        low, high = self._range(first, last)
        found = self._spans[low:high]
        if found and found[0].first < first:
            found[0] = found[0]._replace(first=first)
        if found and found[-1].last > last:
            found[-1] = found[-1]._replace(last=last)
        return found

    def change(self, first: int, last: int, change: Callable[[Span], Span]) -> None:
        """Replace each span from ``first`` to ``last`` (inclusive) with the result of ``change``, which must keep the
        offsets."""
        low, high = self._range(first, last)
        if low >= high:
            return
        before, after = self._spans[low], self._spans[high - 1]
        changed = [change(span) for span in self.within(first, last)]
        if before.first < first:
            changed.insert(0, before._replace(last=first - 1))
        if after.last > last:
            changed.append(after._replace(first=last + 1))
        low, high = max(0, low - 1), min(len(self._spans), high + 1)
        if self._spans[low].first < changed[0].first:
            changed.insert(0, self._spans[low])
        if self._spans[high - 1].last > changed[-1].last:
            changed.append(self._spans[high - 1])
        self._spans[low:high] = _joined(changed)

    def drop_before(self, offset: int) -> None:
        """Remove the records before ``offset``."""
        kept = self._range(offset, offset)[0]
        del self._spans[:kept]
        if self._spans and self._spans[0].first < offset:
            self._spans[0] = self._spans[0]._replace(first=offset)

    def drop_head(self) -> None:
        """Remove the first span."""
        del self._spans[0]

    def _range(self, first: int, last: int) -> tuple[int, int]:
        """Return the slice (start, stop) of the spans that contain records from ``first`` to ``last`` (inclusive)."""
        low = max(0, bisect_right(self._spans, first, key=_first) - 1)
        if low < len(self._spans) and self._spans[low].last < first:
            low += 1
        return low, bisect_right(self._spans, last, lo=low, key=_first)


def _joined(spans: list[Span]) -> list[Span]:
    joined = [spans[0]]
    for span in spans[1:]:
        if joined[-1].is_like(span):
            joined[-1] = joined[-1]._replace(last=span.last)
        else:
            joined.append(span)
    return joined
