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
from pipeline.fetching import Isolation, OffsetOutOfRange, TopicPartition
from pipeline.mirror.appending import Appender, Overtaken, ProducerId, Tail, ours_between, tail
from pipeline.mirror.batches import Piece, join, pieces
from pipeline.mirror.translation import Run
from protocol.errors import KafkaError

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
    """What to copy: a partition of a flow from its anchor up to, not with, offset ``end`` (or the batch it is in)."""

    flow: int
    source: Connection
    target: Connection
    partition: TopicPartition
    remote: TopicPartition
    anchor: Anchor
    end: int
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
    source, target = cluster(wanted.source), cluster(wanted.target)
    found = tail(target, wanted.remote)
    _resume(replace(wanted, anchor=done.anchor), found, done)
    appender = Appender(target, wanted.remote, found, wanted.producer)
    for some in _chunks(_pieces(wanted, source, done.anchor.upstream)):
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
    upstream, alone, left = wanted.anchor.upstream, there == found.end - start, there
    if there:
        for piece in _pieces(wanted, cluster(wanted.source), upstream):
            if piece.count > left:
                upstream = _nth(piece, left)
                break
            if alone:
                join(done.runs, piece.runs(start + there - left))
            left -= piece.count
            upstream = piece.next_offset
            if not left:
                break
    done.anchor = Anchor(upstream, found.end)


def _nth(piece: Piece, number: int) -> int:
    """The offset of a record in a piece, by its place."""
    for span in piece.spans:
        if number < span.length:
            return span.first + number
        number -= span.length
    raise AssertionError("a piece has as many records as its spans")


def _pieces(wanted: Range, source: Cluster, position: int) -> Iterator[Piece]:
    for fetched in source.fetch(wanted.partition, position, wanted.end, wanted.isolation):
        yield from pieces(fetched, position)


def _chunks(some: Iterator[Piece]) -> Iterator[list[Piece]]:
    while chunk := list(islice(some, _AT_ONCE)):
        yield chunk
