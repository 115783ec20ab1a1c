"""The modules compiled by mypyc behave like their sources, for every input."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import compiled
from parley.pipeline.client import _build, _rows
from parley.pipeline.client.encode import bytes_of, columns_of
from parley.protocol.records._walk import encode_records

INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-1000, 1000)
maybe_bytes = st.none() | st.binary(max_size=12)


def interpreted(module: str) -> ModuleType:
    """Return the module run from its source, under a name of its own."""
    name, source = f"{module}_from_source", str(compiled.source_of(module))
    spec = importlib.util.spec_from_file_location(name, source, loader=SourceFileLoader(name, source))
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


ROWS = interpreted("parley.pipeline.client._rows")
BUILD = interpreted("parley.pipeline.client._build")
pytestmark = pytest.mark.skipif(
    compiled.status().get("parley.pipeline.client._rows") != "compiled",
    reason="nothing is compiled here (no C compiler at installation)",
)


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or the ValueError that it raises. Any other exception is a failure."""
    try:
        return call(*arguments)
    except ValueError as error:
        return f"ValueError: {error}"


def located(module: Any, data: bytes, shift: int, count: int, offset: int, timestamp: int) -> Any:
    rows = module.Rows()
    said = outcome(rows.locate, data, 0, len(data), shift, count, offset, timestamp)
    columns = [rows.bounds, rows.offsets, rows.timestamps, rows.flags, rows.headers]
    return said, [column.getvalue() for column in columns]


@st.composite
def nearly_records(draw: st.DrawFn) -> tuple[bytes, int]:
    headers = st.lists(st.tuples(st.text(max_size=2), maybe_bytes), max_size=2).map(tuple)
    made = draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99), maybe_bytes, maybe_bytes, headers), max_size=3)
    )
    data = bytearray(encode_records(made, None, 5))
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data), len(made) + draw(st.sampled_from((0, 0, 0, 1, -1)))


@given(nearly_records(), st.integers(0, 1 << 31), INT64, INT64)
def test_records_are_located_alike(made: tuple[bytes, int], shift: int, offset: int, timestamp: int) -> None:
    data, count = made
    ours, theirs = (located(module, data, shift, count, offset, timestamp) for module in (_rows, ROWS))
    assert ours == theirs
    if ours[0] is not None:
        assert ours[1] == [b""] * 5


@given(st.lists(st.binary(max_size=20), max_size=3))
def test_headers_are_found_alike(parts: list[bytes]) -> None:
    data = b"".join(parts)
    ends = np.cumsum([0, *map(len, parts)])
    spans = np.stack((ends[:-1], ends[1:]), axis=1).astype(np.int64).tobytes()
    assert outcome(_rows.find_headers, data, spans) == outcome(ROWS.find_headers, data, spans)


@given(st.binary(max_size=50))
def test_keys_are_hashed_alike(data: bytes) -> None:
    assert _build.murmur2(data, 0, len(data)) == BUILD.murmur2(data, 0, len(data))
    column = bytes_of(pa.array([data, None], pa.binary()), "key")
    assert _build.hash_keys(column) == BUILD.hash_keys(column)


@given(
    st.lists(st.tuples(maybe_bytes, maybe_bytes, st.integers(0, 1 << 59)), min_size=1, max_size=5),
    st.integers(1, 100),
    st.data(),
)
def test_records_are_built_alike(made: list[tuple[Any, ...]], limit: int, data: st.DataObject) -> None:
    headers = data.draw(
        st.lists(
            st.none() | st.lists(st.tuples(st.text(max_size=2), maybe_bytes), max_size=2),
            min_size=len(made),
            max_size=len(made),
        )
    )
    rows = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([one[0] for one in made], pa.binary()),
            "value": pa.array([one[1] for one in made], pa.binary()),
            "timestamp": pa.array([one[2] for one in made], pa.int64()),
            "headers": pa.array(
                [None if one is None else [{"key": key, "value": value} for key, value in one] for one in headers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    columns, order = columns_of(rows, 0), np.arange(len(made), dtype=np.int64).tobytes()
    source = BUILD.Columns(
        *(
            BUILD.Bytes(one.data, one.offsets, one.nulls) if isinstance(one, _build.Bytes) else one
            for one in (
                columns.keys,
                columns.values,
                columns.timestamps,
                columns.header_lists,
                columns.header_keys,
                columns.header_values,
            )
        )
    )
    assert _build.build_records(columns, order, 0, limit) == BUILD.build_records(source, order, 0, limit)
