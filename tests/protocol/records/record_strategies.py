"""Hypothesis strategies for records."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record

CODECS = list(Compression)
LEGACY_CODECS = [codec for codec in Compression if codec is not Compression.ZSTD]

timestamps = st.integers(0, 1 << 45) | st.just(-1)
contents = st.none() | st.binary(max_size=60) | st.sampled_from([bytes(63), bytes(64), bytes(9000)])
names = st.text(st.characters(codec="utf-8"), max_size=10)
record_headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=20)), max_size=4).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, *, base_offset: int = 0, gaps: bool = False, headers: bool = True) -> list[Record]:
    """Generate one or more records with increasing offsets from ``base_offset`` on, optionally with gaps as after
    compaction."""
    count = draw(st.integers(1, 8))
    offset = base_offset
    found = []
    for _ in range(count):
        fields = draw(st.tuples(timestamps, contents, contents, record_headers if headers else st.just(())))
        found.append(Record(offset, *fields))
        offset += draw(st.integers(1, 400)) if gaps else 1
    return found


def without_headers(records: Sequence[Record]) -> list[Record]:
    """Return the records as the old formats carry them."""
    return [record._replace(headers=()) for record in records]


def without_timestamps(records: Sequence[Record]) -> list[Record]:
    """Return the records as magic 0 carries them."""
    return [record._replace(headers=(), timestamp=-1) for record in records]
