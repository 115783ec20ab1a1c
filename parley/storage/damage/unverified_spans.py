"""The unverified bytes of a segment: those that this process has neither appended, nor scanned, nor read and verified.

They are a tuple of disjoint, half-open spans ``(begin, end)``, in order. The tuple is replaced, never changed, so any
thread may read it. A segment that this process wrote has no spans, so a read of the segment costs one comparison.
"""

from __future__ import annotations

Spans = tuple[tuple[int, int], ...]


def overlap(spans: Spans, begin: int, end: int) -> bool:
    """Return True if any byte in [``begin``, ``end``) lies in ``spans``."""
    return any(first < end and begin < last for first, last in spans)


def first_in(spans: Spans, begin: int, end: int) -> int:
    """Return the first byte of [``begin``, ``end``) that lies in ``spans``, or ``end`` if no byte does."""
    return next((max(first, begin) for first, last in spans if first < end and begin < last), end)


def verified_before(spans: Spans, position: int) -> int:
    """Return the number of bytes directly before ``position`` that lie in no span."""
    return min((max(position - last, 0) for first, last in spans if first < position), default=position)


def without(spans: Spans, begin: int, end: int) -> Spans:
    """Return the spans without the bytes in [``begin``, ``end``)."""
    left = []
    for first, last in spans:
        if first < min(last, begin):
            left.append((first, min(last, begin)))
        if max(first, end) < last:
            left.append((max(first, end), last))
    return tuple(left)
