"""Prepares the batches of a source's log for the target, without decoding them if possible.

A batch is copied unchanged if its header shows that it has no gap. The following batches are decoded and built again
with the same codec: compacted batches (a producer must not leave gaps), messages in old formats, batches with
LogAppendTime (only a broker may write them), the first batch if the copy begins inside it, and consecutive small
batches, which are joined. Transaction markers are not copied; with READ_COMMITTED, neither are aborted records.
Transactions are not copied either: on the target, their records are ordinary records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from parley.pipeline.client.decode import BadBatch, visible
from parley.pipeline.client.fetching import Fetched
from parley.pipeline.mirror.appending import Batch
from parley.pipeline.mirror.translation import Run
from parley.protocol.errors import KafkaError
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import (
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    MAGIC_V2,
    TRANSACTIONAL_BIT,
    BatchHeader,
    TimestampType,
    read_header,
)
from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record

SMALL_BYTES: Final = 4096
"""Below this size, decoding a batch costs less than an additional batch."""
JOINED_BYTES: Final = 128 * 1024
"""The approximate size of a batch joined from small ones (before compression, which can only make it smaller)."""


class Span(NamedTuple):
    """The offsets ``first`` to ``last``, without a gap."""

    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch to append, and the offsets of the source's records in it."""

    batch: Batch
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        return self.batch.header.record_count

    @property
    def next_offset(self) -> int:
        return self.spans[-1].last + 1

    @property
    def size_bytes(self) -> int:
        return HEADER_SIZE + len(self.batch.body)

    def runs(self, downstream: int) -> Iterator[Run]:
        """Yield the runs that the piece's records form when the piece is appended at offset ``downstream``."""
        for span in self.spans:
            yield Run(span.first, span.last, downstream)
            downstream += span.length


def pieces(fetched: Fetched, position: int) -> Iterator[Piece]:
    """Yield the batches to append from the result of a fetch, starting at offset ``position``.

    Raises ``parley.pipeline.client.decode.BadBatch``, which contains the offset, for a batch that contradicts its
    checksum or its header.
    """
    small: list[Record] = []
    codec, size = Compression.NONE, 0
    for pos, header in visible(fetched, position):
        if _is_whole(header, position) and header.size_bytes >= SMALL_BYTES:
            if small:
                yield _built(small, codec)
                small, size = [], 0
            yield _as_it_is(fetched.records, pos, header)
            continue
        if small and (header.compression is not codec or size >= JOINED_BYTES):
            yield _built(small, codec)
            small, size = [], 0
        codec = header.compression
        found = _records(fetched, pos, header, position)
        small += found
        size += sum(len(record.key or b"") + len(record.value or b"") for record in found)
    if small:
        yield _built(small, codec)


def _records(fetched: Fetched, pos: int, header: BatchHeader, position: int) -> list[Record]:
    try:
        return [record for record in records(fetched.records, pos) if record.offset >= position]
    except KafkaError as error:
        raise BadBatch(fetched.partition, header, error) from None


def _is_whole(header: BatchHeader, position: int) -> bool:
    return (
        header.magic == MAGIC_V2
        and header.base_offset >= position
        and header.record_count == header.last_offset_delta + 1
        and header.timestamp_type is TimestampType.CREATE
        and not header.attributes & DELETE_HORIZON_BIT
    )


def _as_it_is(buf: bytes, pos: int, header: BatchHeader) -> Piece:
    plain = header._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)
    body = memoryview(buf)[pos + HEADER_SIZE : pos + header.size_bytes]
    return Piece(Batch(plain, body), (Span(header.base_offset, header.last_offset),))


def _built(some: list[Record], codec: Compression) -> Piece:
    made = build(some, compression=codec)
    batch = Batch(read_header(made), memoryview(made)[HEADER_SIZE:])
    return Piece(batch, tuple(spans(record.offset for record in some)))


def spans(offsets: Iterable[int]) -> Iterator[Span]:
    """Yield spans without gaps that together contain these increasing offsets."""
    first = last = None
    for offset in offsets:
        if first is None or last is None:
            first = offset
        elif offset != last + 1:
            yield Span(first, last)
            first = offset
        last = offset
    if first is not None and last is not None:
        yield Span(first, last)


def join(runs: list[Run], more: Iterable[Run]) -> None:
    """Append ``more`` to ``runs``. Merges adjacent runs."""
    for run in more:
        if runs and runs[-1].last + 1 == run.upstream and runs[-1].distance == run.distance:
            runs[-1] = Run(runs[-1].upstream, run.last, runs[-1].downstream)
        else:
            runs.append(run)
