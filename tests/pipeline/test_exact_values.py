"""The values that a column represents exactly, and how it is widened: one rule for all sinks and for load."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.pipeline.values.exact import JSON, UNKNOWN, DoesNotFit, fits, fitter
from parley.pipeline.values.widening import Fractions, delta_type, is_always_exact, only_adds_fields, settled, widened
from tests.pipeline.exactness import is_same, plain_values, values

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
KINDS = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.binary(2), pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.timestamp("s", "UTC"),
    pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ns", "UTC"),
    pa.decimal128(5, 2), pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(76, 38), pa.list_(pa.int64()),
    pa.list_(pa.float64()), pa.list_(UNKNOWN), pa.map_(pa.string(), pa.int32()), pa.struct([("x", pa.int64())]),
    pa.struct([("x", pa.list_(pa.string())), ("y", pa.float64())]), UNKNOWN,
]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (5.0, pa.int64(), 5),
        (5, pa.float64(), 5.0),
        (1 << 53, pa.float64(), float(1 << 53)),
        (Decimal("5.00"), pa.int8(), 5),
        (2.7, pa.decimal128(10, 2), Decimal("2.70")),
        (Decimal("0.5"), pa.float32(), 0.5),
        (-1, pa.int8(), -1),
        (bytearray(b"ab"), pa.binary(2), b"ab"),
        (MOMENT.astimezone(dt.timezone(dt.timedelta(hours=5))), pa.timestamp("us", "UTC"), MOMENT),
        ({"x": 1, "z": None}, pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}),
        ({"a": 1.0}, pa.map_(pa.string(), pa.int32()), [("a", 1)]),
        (None, pa.int8(), None),
        ({1: [b"\xff", MOMENT]}, JSON, [[1, ["/w==", MOMENT.isoformat()]]]),
    ],
)
def test_a_value_is_stored_as_an_equal_one(value: Any, kind: Any, stored: Any) -> None:
    found = fitter(kind)(value)
    assert found == stored
    assert type(found) is type(stored)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (5.5, pa.int64(), "a number with a fraction cannot be stored exactly in a column of type int64"),
        (True, pa.int64(), "a boolean cannot be stored exactly"),
        (1, pa.bool_(), "an integer cannot be stored exactly"),
        (128, pa.int8(), "an integer cannot be stored exactly in a column of type int8"),
        (1 << 63, pa.int64(), "an integer of more than 64 bits"),
        ((1 << 53) + 1, pa.float64(), "an integer cannot be stored exactly in a column of type double"),
        (Decimal("0.1"), pa.float64(), "a decimal cannot be stored exactly in a column of type double"),
        (0.1, pa.float32(), "a number with a fraction"),
        (math.nan, pa.int64(), "NaN cannot be stored"),
        (math.inf, pa.decimal128(38, 0), "infinity cannot be stored"),
        (-0.0, pa.int64(), "a double cannot be stored"),
        (Decimal("NaN"), pa.float64(), "a decimal that is not a number"),
        (Decimal("1E+999999999"), pa.int64(), "a decimal cannot be stored"),
        (Decimal("1.234"), pa.decimal128(10, 2), "a decimal cannot be stored"),
        (5, pa.string(), "an integer cannot be stored exactly in a column of type string"),
        ("5", pa.int64(), "a text cannot be stored"),
        ("\ud800", pa.string(), "a lone surrogate"),
        (b"a", pa.string(), "bytes cannot be stored"),
        ("a", pa.binary(), "a text cannot be stored"),
        (b"abc", pa.binary(2), "3 bytes"),
        (MOMENT, pa.date32(), "a timestamp cannot be stored"),
        (MOMENT.date(), pa.timestamp("us", "UTC"), "a date cannot be stored"),
        (MOMENT, pa.timestamp("ms", "UTC"), "finer fraction"),
        (MOMENT, pa.timestamp("us"), "a timestamp cannot be stored"),
        (MOMENT.replace(tzinfo=None), pa.timestamp("us", "UTC"), "a timestamp without a time zone"),
        (MOMENT.replace(year=1600), pa.timestamp("ns", "UTC"), "the years 1677 to 2262"),
        (MOMENT.time(), pa.time32("ms"), "finer fraction"),
        ([1, "a"], pa.list_(pa.int64()), r"a text in \[1\] cannot be stored exactly in a column of type int64"),
        ({"x": {"y": [1, 2.5]}}, pa.struct([("x", pa.struct([("y", pa.list_(pa.int8()))]))]), r"in x\.y\[1\]"),
        (
            {"z": 1},
            pa.struct([("x", pa.int64())]),
            "an integer in z cannot be stored exactly in a column whose type is unknown",
        ),
        ({"x": math.nan}, JSON, "NaN in x"),
    ],
)
def test_a_value_that_would_change_is_named(value: Any, kind: Any, text: str) -> None:
    with pytest.raises(DoesNotFit, match=text):
        fitter(kind)(value)


@given(values(), st.sampled_from(KINDS))
def test_stored_values_equal_the_sent_values_in_arrow_too(value: Any, kind: Any) -> None:
    try:
        stored = fitter(kind)(value)
    except DoesNotFit:
        return
    assert is_same(value, stored)
    if kind.id != pa.timestamp("ns").id or kind.unit != "ns":  # which Python represents by another class
        assert is_same(value, pa.array([stored], kind).to_pylist()[0])


@given(st.lists(values(), min_size=1, max_size=4), st.sampled_from(Fractions))
def test_a_widened_column_holds_the_new_value_and_says_whether_it_holds_the_old_ones(
    given_values: list[Any], fractions: Fractions
) -> None:
    kind: Any = UNKNOWN
    seen: list[Any] = []
    for value in given_values:
        try:
            wider = widened(kind, value, None, fractions)
        except DoesNotFit:
            continue
        assert fits(value, wider)
        if not is_always_exact(kind, wider) and not all(fits(each, wider) for each in seen):
            continue
        kind = wider
        seen.append(value)
        assert all(fits(each, kind) for each in seen)
        last = settled(kind)
        assert last == settled(last)
        assert only_adds_fields(kind, kind)
        has_time = any(name in str(kind) for name in ("time32", "time64"))
        assert delta_type(kind) is None or not has_time


@given(plain_values(), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_a_type_that_is_always_exact_holds_every_value_of_the_old_one(value: Any, old: Any, new: Any) -> None:
    if is_always_exact(old, new) and fits(value, old):
        assert fits(value, new)


@pytest.mark.parametrize(
    ("kind", "value", "wider"),
    [
        (pa.int8(), 200, pa.int16()),
        (pa.int32(), 1 << 40, pa.int64()),
        (pa.int64(), 1 << 63, pa.decimal128(19, 0)),
        (pa.int32(), 5.5, pa.float64()),
        (pa.int64(), 5.5, pa.float64()),
        (pa.int64(), math.nan, pa.float64()),
        (pa.float32(), 0.1, pa.float64()),
        (pa.decimal128(5, 2), Decimal("1.234"), pa.decimal128(6, 3)),
        (pa.decimal128(38, 2), Decimal("1.234"), pa.decimal128(38, 3)),
        (pa.decimal128(5, 2), 10**20, pa.decimal128(23, 2)),
        (pa.timestamp("ms", "UTC"), MOMENT, pa.timestamp("us", "UTC")),
        (pa.time32("ms"), MOMENT.time(), pa.time64("us")),
        (pa.binary(2), b"abc", pa.binary()),
        (UNKNOWN, {"x": None, "y": [1]}, pa.struct([("x", UNKNOWN), ("y", pa.list_(pa.int64()))])),
        (pa.struct([("x", pa.int8())]), {"x": 300}, pa.struct([("x", pa.int16())])),
        (pa.list_(UNKNOWN), [1, 2.5], pa.list_(pa.float64())),
        (pa.map_(pa.string(), pa.int32()), {"a": 1 << 40}, pa.map_(pa.string(), pa.int64())),
    ],
)
def test_the_table_of_widening(kind: Any, value: Any, wider: Any) -> None:
    assert widened(kind, value) == wider


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), True), (pa.bool_(), 1), (pa.string(), 5), (pa.int64(), "5"), (pa.float64(), (1 << 53) + 1),
        (pa.float64(), Decimal("0.1")), (pa.decimal128(38, 30), 10**20), (pa.date32(), MOMENT), (pa.string(), b"a"),
        (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=None)), (pa.list_(pa.int64()), {"a": 1}), (UNKNOWN, 10**40),
        (pa.int64(), 10**40), (UNKNOWN, [(1 << 53) + 1, 0.5]), (UNKNOWN, {"x": [1, "a"]}), (UNKNOWN, {1: 2}),
    ],
)  # fmt: skip
def test_where_no_type_holds_both_there_is_none(kind: Any, value: Any) -> None:
    with pytest.raises(DoesNotFit):
        widened(kind, value)


def test_a_schema_says_the_type_of_a_new_column_and_how_far_one_is_widened() -> None:
    assert widened(UNKNOWN, 5, pa.int8()) == pa.int8()
    assert widened(UNKNOWN, None, pa.int8()) == pa.int8()
    assert widened(UNKNOWN, 5.5, pa.int8()) == pa.float64()  # a value that does not fit its schema
    assert widened(pa.int8(), 200, pa.int64()) == pa.int64()
    assert widened(pa.int64(), (1 << 53) + 1) == pa.int64()
    assert widened(pa.int64(), 5.5, None, Fractions.DECIMAL) == pa.decimal128(20, 1)


def test_unknown_parts_become_text_or_are_left_out() -> None:
    kind = pa.struct([("a", UNKNOWN), ("b", pa.list_(UNKNOWN)), ("c", pa.struct([])), ("d", pa.int8())])
    assert settled(kind) == pa.struct([("b", pa.list_(pa.string())), ("d", pa.int8())])
    assert settled(pa.struct([("a", UNKNOWN)])) == UNKNOWN
