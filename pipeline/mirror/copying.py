"""One range of one partition copied: what a Spark task does.

Where to begin is not taken from a checkpoint but from the target's log. The driver says that record ``upstream`` of the
source is the next to be copied once the target's log ends at ``downstream`` (the anchor). Has the log grown since,
then as many records from ``upstream`` on are there already as an `appending.Appender` wrote behind the anchor: they
are counted, by the headers of their batches. So it does not matter when a copier was killed, or how often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Final

from pipeline.cluster import Cluster, Connection
from pipeline.decode import visible
from pipeline.fetching import Isolation, OffsetOutOfRange, TopicPartition
from pipeline.mirror.appending import Appender, Overtaken, ProducerId, Tail, ours_between, tail
from pipeline.mirror.batches import Piece, join, pieces
from pipeline.mirror.translation import Run
from protocol.errors import KafkaError
from protocol.records.batch import records
from protocol.records.record import Record

ATTEMPTS: Final = 5
"""How often a copy that somebody else got ahead of begins again before it is left for the next time."""
_AT_ONCE: Final = 20
"""Batches handed to the appender together."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """Record ``upstream`` is to be copied next, if the target's log ends at ``downstream``."""

    upstream: int
    downstream: int


@dataclass(frozen=True, slots=True)
class Range:
    """What to copy: a partition of a flow from its anchor up to, not with, offset ``end`` (or the batch it is in).

    ``reach`` is how far the source's log goes: so far may have been copied already.
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
    producer: ProducerId | None = None


@dataclass(slots=True)
class Copied:
    """What became of a range. ``problem`` is empty unless it was not copied to its end; ``anchor`` holds always."""

    flow: int
    partition: TopicPartition
    anchor: Anchor
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    size_bytes: int = 0
    problem: str = ""
    out_of_range: tuple[int, int] | None = None
    """The offsets that the source has, where it no longer has those asked for."""


@cache
def cluster(connection: Connection) -> Cluster:
    """The connections of this process to a cluster; they are kept for the tasks to come."""
    return Cluster(connection)


def copy(wanted: Range) -> Copied:
    """Copy a range; what goes wrong is told in the outcome, so that it stops no other range."""
    done = Copied(wanted.flow, wanted.partition, wanted.anchor)
    try:
        for attempt in range(ATTEMPTS):
            try:
                # A producer id that somebody else has used since is given up, for a new one.
                _copy(wanted if attempt < 2 else replace(wanted, producer=None), done)
            except Overtaken as overtaken:
                done.problem = str(overtaken)
            else:
                done.problem = ""
                break
    except OffsetOutOfRange as error:
        done.problem, done.out_of_range = error.message, (error.log_start, error.log_end)
    except KafkaError as error:
        done.problem = f"{error.code.name}: {error.message}"
    return done


def _copy(wanted: Range, done: Copied) -> None:
    target = cluster(wanted.target)
    found = tail(target, wanted.remote)
    _resume(replace(wanted, anchor=done.anchor), found, done)
    appender = Appender(target, wanted.remote, found, wanted.producer)
    for some in _chunks(_pieces(wanted, done.anchor.upstream, wanted.end)):
        places = appender.append([piece.batch for piece in some])
        for piece, place in zip(some, places, strict=True):
            join(done.runs, piece.runs(place))
            done.records += piece.count
            done.size_bytes += piece.size_bytes
        done.anchor = Anchor(some[-1].next_offset, appender.next_offset)
    # Behind the last record copied there may be markers, which nobody has to look at again.
    done.anchor = Anchor(max(done.anchor.upstream, wanted.end), done.anchor.downstream)


def _resume(wanted: Range, found: Tail, done: Copied) -> None:
    """Move the anchor to the end of the target's log."""
    start = wanted.anchor.downstream
    there = ours_between(cluster(wanted.target), wanted.remote, start, found.end) if found.end > start else 0
    if not there:
        done.anchor = Anchor(wanted.anchor.upstream, found.end)
        return
    runs: list[Run] = []
    last, left = None, there
    for piece in _pieces(wanted, wanted.anchor.upstream, wanted.reach):
        join(runs, piece.runs(start + there - left))
        last = _nth(piece, min(left, piece.count) - 1)
        left -= min(left, piece.count)
        if not left:
            break
    if found.producer is not None and not _is_last(wanted, last, found.end - 1):
        # Records counted as copied were compacted away since: then others were counted in their place.
        last = _last_like(wanted, found.end - 1)
    elif there == found.end - start:  # nobody else has written behind the anchor
        join(done.runs, _up_to(runs, last))
    done.anchor = Anchor(wanted.anchor.upstream if last is None else last + 1, found.end)


def _is_last(wanted: Range, offset: int | None, downstream: int) -> bool:
    """Whether the record at ``offset`` of the source is the one at ``downstream`` of the target."""
    if offset is None:
        return False
    there = _record(cluster(wanted.target), wanted.remote, downstream)
    return there is not None and _same(_record(cluster(wanted.source), wanted.partition, offset), there)


def _last_like(wanted: Range, downstream: int) -> int | None:
    """The last record of the source, from the anchor on, that is as the one at ``downstream`` of the target.

    None where there is none: then it is better to copy again than to leave out.
    """
    there = _record(cluster(wanted.target), wanted.remote, downstream)
    found = None
    for fetched in cluster(wanted.source).fetch(wanted.partition, wanted.anchor.upstream, wanted.end, wanted.isolation):
        for pos, _ in visible(fetched, wanted.anchor.upstream):
            for record in records(fetched.records, pos):
                if record.offset >= wanted.anchor.upstream and _same(record, there):
                    found = record.offset
    return found


def _same(one: Record | None, other: Record | None) -> bool:
    """Whether two records carry the same; a target may stamp them with a time of its own."""
    return one is not None and other is not None and one[2:] == other[2:]


def _record(where: Cluster, partition: TopicPartition, offset: int) -> Record | None:
    for fetched in where.fetch(partition, offset, offset + 1):
        for pos, _ in visible(fetched, offset, offset + 1):
            for record in records(fetched.records, pos):
                if record.offset == offset:
                    return record
    return None


def _up_to(runs: list[Run], last: int | None) -> Iterator[Run]:
    """Runs, without what is behind ``last``."""
    for run in runs:
        if last is not None and run.upstream <= last:
            yield Run(run.upstream, min(run.last, last), run.downstream)


def _nth(piece: Piece, number: int) -> int:
    """The offset of a record in a piece, by its place."""
    for span in piece.spans:
        if number < span.length:
            return span.first + number
        number -= span.length
    raise AssertionError("a piece has as many records as its spans")


def _pieces(wanted: Range, position: int, end: int) -> Iterator[Piece]:
    for fetched in cluster(wanted.source).fetch(wanted.partition, position, end, wanted.isolation):
        yield from pieces(fetched, position)


def _chunks(some: Iterator[Piece]) -> Iterator[list[Piece]]:
    while chunk := list(islice(some, _AT_ONCE)):
        yield chunk
