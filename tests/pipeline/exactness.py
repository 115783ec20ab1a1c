"""Values of all kinds, and a comparison of the value that was read back with the value that was sent."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

_ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(hours=8))])
_FROM, _TO = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)  # noqa: DTZ001 - the strategy wants them so
_DECIMALS = [
    "1.50", "1E+3", "0.1", "-0.0", "123456789012345678901.25", "0." + "0" * 37 + "1", "9" * 38, "9" * 39, "9" * 76,
    "1." + "0" * 50, "1E-100", "NaN", "Infinity",
]  # fmt: skip
_EDGES = [edge + by for bits in (7, 15, 31, 53, 63) for edge in (1 << bits, -(1 << bits)) for by in (-1, 0, 1)]


def plain_values() -> st.SearchStrategy[Any]:
    """Generate values without fields or elements, including those at the limits of types."""
    integers = st.one_of(st.integers(-3, 300), st.sampled_from([*_EDGES, 10**20, 10**40]))
    floats = st.one_of(
        st.sampled_from([5.5, 0.1, 5.0, -0.0, 1e22, math.nan, math.inf, 2.0**60]), st.floats(), st.floats(width=32)
    )
    decimals = st.decimals(-(10**6), 10**6, places=3) | st.sampled_from(list(map(Decimal, _DECIMALS)))
    times = st.times() | st.sampled_from([dt.time(1, 2, 3), dt.time(1, 2, 3, 4000)])
    moments = st.datetimes(_FROM, _TO, timezones=_ZONES) | st.just(dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC))
    texts = st.text(max_size=3) | st.sampled_from(["5", "true", "ä\0", "", "\ud800", " a ", "NULL", "x" * 70_000])
    days = st.dates(_FROM.date(), _TO.date())
    return st.one_of(
        st.none(), st.booleans(), integers, floats, texts, st.binary(max_size=3), decimals, days, times, moments
    )


def values() -> st.SearchStrategy[Any]:
    """Generate values, including lists and objects."""

    def nested(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", ""]), inside, max_size=2)

    return st.recursive(plain_values(), nested, max_leaves=4)


def is_same(sent: Any, read: Any) -> bool:
    """Return True if a value came back as it was sent: numbers and times by their value, all else also by its class.

    A missing field is null. A double came back if the result is the same double.
    """
    if sent is None or read is None:
        return sent is None and (
            read is None or (isinstance(read, dict) and all(is_same(None, one) for one in read.values()))
        )
    if isinstance(sent, dict) and isinstance(read, list):
        return len(sent) == len(read) and all(is_same(sent[key], one) for key, one in read)
    if isinstance(sent, dict):
        names = sent.keys() | read.keys()
        return isinstance(read, dict) and all(is_same(sent.get(name), read.get(name)) for name in names)
    if isinstance(sent, list | tuple):
        return isinstance(read, list) and len(sent) == len(read) and all(map(is_same, sent, read))
    if isinstance(sent, bool) or isinstance(read, bool):
        return sent is read
    if isinstance(sent, int | float | Decimal):
        return isinstance(read, int | float | Decimal) and _is_same_number(sent, read)
    if isinstance(sent, dt.datetime):
        return isinstance(read, dt.datetime) and _in_utc(sent) == _in_utc(read)
    return type(sent) is type(read) and bool(sent == read)


def _is_same_number(sent: float | Decimal, read: float | Decimal) -> bool:
    if isinstance(sent, float) and math.isnan(sent):
        return isinstance(read, float) and math.isnan(read)
    if isinstance(sent, float) and sent == 0 and isinstance(read, float):
        return read == 0 and math.copysign(1, sent) == math.copysign(1, read)
    return sent == read or (isinstance(sent, float) and not sent.is_integer() and float(read) == sent)


def _in_utc(moment: dt.datetime) -> dt.datetime:
    """Return a time in UTC. A database without time zones returns the UTC time that it was given."""
    return moment.astimezone(dt.UTC) if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
