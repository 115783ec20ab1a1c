"""Copies one range of one partition: the work of a Spark task.

The target's log, not a checkpoint, decides where to begin. The driver passes an anchor: when the target's log ended at
``downstream``, record ``upstream`` of the source was the next to copy, with the number ``sequence`` of a producer id.
If the log now contains more batches of that id, the last one shows how many records (``appending``), and that many
records from ``upstream`` on have been copied already. It does not matter when or how often a copier was killed, or
which other clients write to the target.

Rule: if it is uncertain which record was the last (``_resume``), some records are copied again, and none is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from parley.pipeline.client.cluster import Connection, shared_cluster
from parley.pipeline.client.decode import visible
from parley.pipeline.client.fetching import Isolation, OffsetOutOfRange, TopicPartition
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.mirror.appending import Appender, Overtaken, Tail, is_settled, tail, written_by
from parley.pipeline.mirror.batches import Piece, join, pieces
from parley.pipeline.mirror.translation import Run
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import records
from parley.protocol.records.batch_header import headers
from parley.protocol.records.record import Record

ATTEMPTS: Final = 5
"""How many times a copy is attempted if other writers overtake it, before it is left for the next round."""
_AT_ONCE: Final = 20
"""The number of batches that are passed to the appender together."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The place from which a copy resumes. It was recorded before the first use of the producer id.

    If the target's log contains nothing of ``producer`` from ``downstream`` on, record ``upstream`` is the next to
    copy, as number ``sequence`` of the producer.
    """

    upstream: int
    downstream: int
    producer: ProducerId
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Range:
    """A range to copy: a partition of a flow, from its anchor up to but excluding offset ``end`` (or the end of the
    batch that contains it).

    ``reach`` is the end of the source's log: records up to there may have been copied already.
    """

    flow: int
    source: Connection
    target: Connection
    partition: TopicPartition
    remote: TopicPartition
    anchor: Anchor
    end: int
    reach: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


@dataclass(slots=True)
class Copied:
    """The result of copying a range. ``problem`` is empty if everything was copied. The next copy resumes at
    ``anchor``, even after a problem.
    """

    flow: int
    partition: TopicPartition
    anchor: Anchor
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    problem: str = ""
    out_of_range: tuple[int, int] | None = None
    """The log start and log end on the source, if the log does not contain the requested offset."""
    cut_at: int | None = None
    """The offset from which on the target has lost copied records; None if it has lost none."""
    refused: bool = False
    """True if the target accepts no more batches under the anchor's producer id, so that a new id is needed."""
    waited: bool = False
    """True if the problem is a temporary error that lasted longer than the time for retries."""


def copy(wanted: Range) -> Copied:
    """Copy a range. A failure is reported in the result, so that it does not stop other ranges."""
    done = Copied(wanted.flow, wanted.partition, wanted.anchor)
    try:
        _try(wanted, done)
    except OffsetOutOfRange as error:
        done.problem, done.out_of_range = error.message, (error.log_start, error.log_end)
    except KafkaError as error:
        done.problem = f"{error.code.name}: {error.message}"
        done.waited = error.code.retriable or error.code is ErrorCode.BROKER_NOT_AVAILABLE
    return done


def _try(wanted: Range, done: Copied) -> None:
    tried: set[int] = set()
    for _ in range(ATTEMPTS):
        try:
            _copy(wanted, done)
        except Overtaken as overtaken:
            done.problem = str(overtaken)
            tried.add(done.anchor.sequence)
        else:
            return
    if len(tried) == 1:
        # All attempts failed at the same record: no other writer has appended, and none will if the log is settled.
        target, anchor = shared_cluster(wanted.target), done.anchor
        if is_settled(target, wanted.remote):
            found = tail(target, wanted.remote, anchor.producer, anchor.downstream)
            done.refused = found.count_since(anchor.sequence) == 0


def _copy(wanted: Range, done: Copied) -> None:
    target, producer = shared_cluster(wanted.target), done.anchor.producer
    found = tail(target, wanted.remote, producer, done.anchor.downstream)
    done.cut_at = cut_at(found, done.anchor)
    if done.cut_at is not None:
        done.problem = f"{wanted.remote} has lost copied records"
        return
    _resume(wanted, found, done)
    appender = Appender(target, wanted.remote, producer, done.anchor.sequence, found.end)
    for some in _chunks(_pieces(wanted, done.anchor.upstream, wanted.end)):
        places = appender.append([piece.batch for piece in some])
        for piece, place in zip(some, places, strict=True):
            join(done.runs, piece.runs(place))
            done.records += piece.count
            done.size_bytes += piece.size_bytes
        done.anchor = Anchor(some[-1].next_offset, appender.next_offset, producer, appender.sequence)
    # There may be markers after the last copied record, which need not be read again.
    done.anchor = replace(done.anchor, upstream=max(done.anchor.upstream, wanted.end))
    done.problem = ""


def cut_at(found: Tail, anchor: Anchor) -> int | None:
    """Return the offset in the target up to which it still has all copied records; None if no copied record is lost."""
    if found.end >= anchor.downstream and found.count_since(anchor.sequence) >= 0:
        return None
    return 0 if found.last is None else found.last + 1


def _resume(wanted: Range, found: Tail, done: Copied) -> None:
    """Move the anchor of ``done`` to the end of the target's log.

    If the source has no gaps, the number of copied records gives the last copied offset. If counting that many records
    leads to a higher offset, there are gaps: they existed when the records were copied, or compaction has made them
    since. In the second case, the count reaches records that were never copied, so the records themselves are compared.
    If they differ, copying resumes at the offset that assumes no gaps, and some records may be copied twice.
    """
    start = done.anchor
    there = found.count_since(start.sequence)
    least = start.upstream + there
    sequence = start.sequence if found.sequence is None else found.sequence
    upstream = least
    if there:
        runs: list[Run] = []
        last, left = None, there
        for piece in _pieces(wanted, start.upstream, wanted.reach):
            join(runs, piece.runs(start.downstream + there - left))
            last = _nth(piece, min(left, piece.count) - 1)
            left -= min(left, piece.count)
            if not left:
                break
        if last is not None and not left and (last + 1 == least or _alike(wanted, start, found, last)):
            upstream = last + 1
            if there == found.end - start.downstream:  # no other client has written after the anchor
                join(done.runs, _up_to(runs, last))
        else:
            _log.warning(
                "%s continues at offset %d: the log was compacted after it was copied, so some later records may be "
                "copied twice",
                wanted.partition,
                least,
            )
    done.anchor = Anchor(upstream, found.end, start.producer, sequence)


def _alike(wanted: Range, start: Anchor, found: Tail, last: int) -> bool:
    """Return True if the source's records up to ``last`` equal the copied records in the target, in the same order.
    Raises KafkaError.
    """
    there = _written(wanted, start, found)
    for fetched in shared_cluster(wanted.source).fetch(wanted.partition, start.upstream, last + 1, wanted.isolation):
        for pos, _ in visible(fetched, start.upstream, last + 1):
            for record in records(fetched.records, pos):
                if start.upstream <= record.offset <= last and not _same(record, next(there, None)):
                    return False
    return next(there, None) is None


def _written(wanted: Range, start: Anchor, found: Tail) -> Iterator[Record]:
    """Yield the records in the target that were copied after the anchor was recorded. Raises KafkaError."""
    for fetched in shared_cluster(wanted.target).fetch(wanted.remote, start.downstream, found.end):
        for pos, header in headers(fetched.records):
            if header.base_offset < found.end and written_by(start.producer, header):
                yield from records(fetched.records, pos)


def _same(one: Record, other: Record | None) -> bool:
    """Return True if two records have the same content. Timestamps may differ, because the target may set its own."""
    return other is not None and one[2:] == other[2:]


def _up_to(runs: list[Run], last: int | None) -> Iterator[Run]:
    """Yield the runs without the offsets after ``last``; nothing if it is None."""
    for run in runs:
        if last is not None and run.upstream <= last:
            yield Run(run.upstream, min(run.last, last), run.downstream)


def _nth(piece: Piece, number: int) -> int:
    """Return the source's offset of a record of the piece. ``number`` counts from 0."""
    for span in piece.spans:
        if number < span.length:
            return span.first + number
        number -= span.length
    raise AssertionError("a piece has as many records as its spans")


def _pieces(wanted: Range, position: int, end: int) -> Iterator[Piece]:
    for fetched in shared_cluster(wanted.source).fetch(wanted.partition, position, end, wanted.isolation):
        yield from pieces(fetched, position)


def _chunks(some: Iterator[Piece]) -> Iterator[list[Piece]]:
    while chunk := list(islice(some, _AT_ONCE)):
        yield chunk
