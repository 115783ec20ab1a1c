"""Turns fetched batches into rows for a sink task."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from parley.pipeline.client.decode import decode
from parley.pipeline.client.fetching import Fetched
from parley.pipeline.connect.tasks.tolerance import Raw

_MICROS_PER_MS: Final = 1000
_OFFSET_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF


def read_rows(fetched: Fetched, start: int, end: int = _OFFSET_MAX) -> list[Raw]:
    """Return the visible records from ``start`` to before ``end``. Raises BadBatch."""
    rows: list[Raw] = []
    topic, partition = fetched.partition
    for batch in decode(fetched, start, end, include_headers=True):
        key, value, _, _, offset, timestamp, kind, headers = batch.columns
        millis = timestamp.cast(pa.int64()).to_numpy() // _MICROS_PER_MS
        listed: Any = zip(
            offset.to_pylist(),
            millis.tolist(),
            kind.to_pylist(),
            key.to_pylist(),
            value.to_pylist(),
            _headers(headers),
            strict=True,
        )
        rows += [Raw(topic, partition, *row) for row in listed]
    return rows


def _headers(column: pa.Array) -> list[tuple[tuple[str, bytes | None], ...]]:
    if column.null_count == len(column):
        return [()] * len(column)
    return [tuple((one["key"], one["value"]) for one in row or ()) for row in column.to_pylist()]
