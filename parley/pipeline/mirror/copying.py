"""One range of one partition copied: what a Spark task does.

Where to begin is not taken from a checkpoint but from the target's log. The driver says that record ``upstream`` of the
source is the next to be copied, with the number ``sequence`` of a producer id, once the target's log ends at
``downstream`` (the anchor). Has the log more of that id by now, its last batch says how many records (`appending`), and
as many from ``upstream`` on are there already. So it does not matter when a copier was killed, or how often, or who
else writes there.

Rule: where it is not certain which record was the last (`_resume`), some are copied again, and none is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from typing import Final

from parley.pipeline.client.cluster import Cluster, Connection
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
"""How often a copy that another got ahead of begins again before it is left for the next time."""
_AT_ONCE: Final = 20
"""Batches handed to the appender together."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Anchor:
    """Record ``upstream`` is to be copied next, as number ``sequence`` of ``producer``, if the target's log has nothing
    of this producer from ``downstream`` on. It was noted before the first use of the id."""

    upstream: int
    downstream: int
    producer: ProducerId
    sequence: int = 0


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
    cut_at: int | None = None
    """As the function of this name."""
    refused: bool = False
    """The target takes nothing more of the anchor's producer id: another one is needed."""
    waited: bool = False
    """It took all the time that there is for trying: a broker did not answer."""


@cache
def cluster(connection: Connection) -> Cluster:
    """The connections of this process to a cluster; they are kept for the tasks to come."""
    return Cluster(connection)


def copy(wanted: Range) -> Copied:
    """Copy a range; what goes wrong is told in the outcome, so that it stops no other range."""
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
        # No other writer has appended meanwhile. None will, unless records wait for their replicas.
        target, anchor = cluster(wanted.target), done.anchor
        if is_settled(target, wanted.remote):
            found = tail(target, wanted.remote, anchor.producer, anchor.downstream)
            done.refused = found.count_since(anchor.sequence) == 0


def _copy(wanted: Range, done: Copied) -> None:
    target, producer = cluster(wanted.target), done.anchor.producer
    found = tail(target, wanted.remote, producer, done.anchor.downstream)
    done.cut_at = cut_at(found, done.anchor)
    if done.cut_at is not None:
        done.problem = f"{wanted.remote} has lost what was copied"
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
    # Behind the last record copied there may be markers, which need no second look.
    done.anchor = replace(done.anchor, upstream=max(done.anchor.upstream, wanted.end))
    done.problem = ""


def cut_at(found: Tail, anchor: Anchor) -> int | None:
    """If something is gone from a target that its anchor says was there: the offset up to which all is there."""
    if found.end >= anchor.downstream and found.count_since(anchor.sequence) >= 0:
        return None
    return 0 if found.last is None else found.last + 1


def _resume(wanted: Range, found: Tail, done: Copied) -> None:
    """Move the anchor to the end of the target's log.

    The offset of the last record that is there is at least that of as many records without a gap. If it is more, some
    are missing on the source: either they were when it was copied, or compaction has taken them away since, and then
    others that were not copied would be counted in their place. So there it is compared what was copied.
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
            if there == found.end - start.downstream:  # no other client has written behind the anchor
                join(done.runs, _up_to(runs, last))
        else:
            _log.warning(
                "%s goes on at offset %d: the log was compacted since it was copied, so that some records behind it may"
                " be copied twice",
                wanted.partition,
                least,
            )
    done.anchor = Anchor(upstream, found.end, start.producer, sequence)


def _alike(wanted: Range, start: Anchor, found: Tail, last: int) -> bool:
    """Whether the records of the source up to ``last`` are those on the target, one after the other."""
    there = _written(wanted, start, found)
    for fetched in cluster(wanted.source).fetch(wanted.partition, start.upstream, last + 1, wanted.isolation):
        for pos, _ in visible(fetched, start.upstream, last + 1):
            for record in records(fetched.records, pos):
                if start.upstream <= record.offset <= last and not _same(record, next(there, None)):
                    return False
    return next(there, None) is None


def _written(wanted: Range, start: Anchor, found: Tail) -> Iterator[Record]:
    """The records of the target that were copied behind the anchor."""
    for fetched in cluster(wanted.target).fetch(wanted.remote, start.downstream, found.end):
        for pos, header in headers(fetched.records):
            if header.base_offset < found.end and written_by(start.producer, header):
                yield from records(fetched.records, pos)


def _same(one: Record, other: Record | None) -> bool:
    """Whether two records carry the same; a target may stamp them with a time of its own."""
    return other is not None and one[2:] == other[2:]


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
