"""`parley.protocol.records` can read what is encoded from Arrow, and decoding restores it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.client.encode import columns_of, encode
from parley.protocol.records.batch import records, validate
from parley.protocol.records.batch_header import headers
from parley.protocol.records.compression import Compression

NOW = 1_700_000_000_000
SINK = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)

maybe_bytes = st.none() | st.binary(max_size=20) | st.binary(min_size=60, max_size=200)
rows = st.fixed_dictionaries(
    {
        "key": maybe_bytes,
        "value": maybe_bytes,
        "timestamp": st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "headers": st.none()
        | st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": maybe_bytes}), max_size=3),
    }
)


def written(source: pa.RecordBatch, order: list[int], batch_bytes: int, codec: Compression) -> list[tuple[Any, ...]]:
    found = []
    for batch in encode(columns_of(source, NOW), np.array(order, np.int64), batch_bytes=batch_bytes, compression=codec):
        ((pos, header),) = headers(batch)
        assert header.size_bytes == len(batch)
        validate(batch, pos, header, consecutive=True)
        inside = list(records(batch, pos))
        assert header.record_count == len(inside)
        assert header.max_timestamp == max(record.timestamp for record in inside)
        found += [record[1:] for record in inside]
    return found


def expected(row: dict[str, Any]) -> tuple[Any, ...]:
    time = NOW
    if row["timestamp"] is not None:
        time = (row["timestamp"] - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    return time, row["key"], row["value"], tuple((one["key"], one["value"]) for one in row["headers"] or ())


@given(st.lists(rows, min_size=1, max_size=30), st.integers(1, 2000), st.sampled_from(Compression), st.data())
def test_records_are_the_rows(
    made: list[dict[str, Any]], batch_bytes: int, codec: Compression, data: st.DataObject
) -> None:
    order = data.draw(st.lists(st.integers(0, len(made) - 1), min_size=1))
    source = pa.RecordBatch.from_pylist(made, SINK)
    assert written(source, order, batch_bytes, codec) == [expected(made[row]) for row in order]


@given(st.lists(rows, min_size=3, max_size=20), st.data())
def test_a_slice_is_encoded_as_its_own_rows(made: list[dict[str, Any]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(made) - 1))
    count = data.draw(st.integers(1, len(made) - begin))
    source = pa.RecordBatch.from_pylist(made, SINK).slice(begin, count)
    found = written(source, list(range(count)), 500, Compression.NONE)
    assert found == [expected(row) for row in made[begin : begin + count]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.large_binary(), pa.binary(1), pa.string_view(), pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
def test_every_layout_of_bytes_is_taken(kind: pa.DataType) -> None:
    values = [b"a", None, b"c"] if pa.types.is_fixed_size_binary(kind) else ["a", None, "c"]
    source = pa.RecordBatch.from_arrays([pa.array(values).cast(kind)], ["value"])
    assert [one[2] for one in written(source, [0, 1, 2], 100, Compression.NONE)] == [b"a", None, b"c"]


def test_batches_do_not_exceed_their_bound_but_for_a_single_record() -> None:
    source = pa.RecordBatch.from_pydict({"value": [b"x" * 40] * 10 + [b"y" * 1000] + [b"z" * 40]})
    sizes = [len(batch) - 61 for batch in encode(columns_of(source, NOW), np.arange(12), batch_bytes=100)]
    assert sizes == [94] * 5 + [1009, 47]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": [b""]}, "column 'value' is missing. Columns: key"),
        ({"value": [1]}, "'value' must be binary or string, not int64"),
        ({"value": [b""], "key": [1.5]}, "'key' must be binary or string, not double"),
        ({"value": [b""], "timestamp": ["today"]}, "'timestamp' must be a timestamp, or a long"),
        ({"value": [b""], "timestamp": [-2]}, "before 1970"),
        ({"value": [b""], "headers": [["a"]]}, "'headers' must be a list of structs of key and value"),
        ({"value": [b""], "headers": [[{"key": None, "value": b""}]]}, "a header without a key"),
        ({"value": [b""], "headers": [[None, {"key": "k", "value": b""}]]}, "a null header"),
    ],
)
def test_columns_that_cannot_be_are_named(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        columns_of(pa.RecordBatch.from_pydict(columns), NOW)
