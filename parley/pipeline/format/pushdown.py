"""Decides how filters from Spark narrow a batch read, and which of them Spark need not check.

Rules:

* Filters of topic, partition and offset narrow the ranges exactly, so Spark need not check them. A list of offsets
  narrows the ranges only to its smallest and largest offset, so Spark checks it too.
* Spark always checks a filter of the timestamp. A lower bound narrows the ranges: they start at the first record that
  is late enough. An upper bound does not, because timestamps may be out of order.
* A filter with a null, or with a value whose type differs from its column's, is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from parley.pipeline.client.cluster import TopicPartition
from parley.pipeline.format.offset_decisions import Range

_TYPES: Final[Mapping[str, type]] = {"topic": str, "partition": int, "offset": int, "timestamp": dt.datetime}
"""The columns whose filters can narrow a read. None of them is ever null."""
_OFFSET_END: Final = 2**63
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def _in(found: Any, values: Sequence[Any]) -> bool:
    return found in values


_COMPARE: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: _in,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: str.__contains__,
}


@dataclass(frozen=True, slots=True)
class _Condition:
    """A condition for a partition's topic or number: a comparison that must be true or, for a negated filter, false."""

    column: str
    compare: Callable[[Any, Any], bool]
    value: Any
    is_expected: bool

    def holds(self, partition: TopicPartition) -> bool:
        return self.compare(getattr(partition, self.column), self.value) is self.is_expected


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The part of a read that its filters select."""

    conditions: tuple[_Condition, ...] = ()
    first: int = 0
    end: int = _OFFSET_END
    """The offsets [``first``, ``end``) are read."""
    since_ms: int | None = None
    """Only records from a partition's first record with at least this timestamp (ms) on are read."""

    def applied(self, whole: Iterable[Range]) -> list[Range]:
        """Return the selected parts of the ranges. Ranges of which nothing is selected are left out."""
        wanted = (one for one in whole if all(condition.holds(one.partition) for condition in self.conditions))
        cut = (replace(one, start=max(one.start, self.first), end=min(one.end, self.end)) for one in wanted)
        return [one for one in cut if len(one)]


EVERYTHING: Final = Narrowing()
_NOTHING: Final = Narrowing(end=0)


def narrowing(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """Return the narrowing that all filters together allow, and the filters that Spark must check."""
    found, left = EVERYTHING, []
    for each in filters:
        taken, is_exact = _taken(found, each)
        found = found if taken is None else taken
        if not is_exact:
            left.append(each)
    return found, left


def _taken(found: Narrowing, each: Filter) -> tuple[Narrowing | None, bool]:
    """Add a filter to a narrowing. Returns the narrower one, or None if the filter does not narrow, and True if Spark
    need not check the filter.
    """
    is_expected = not isinstance(each, Not)
    plain = each.child if isinstance(each, Not) else each
    attribute: tuple[str, ...] = getattr(plain, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in _TYPES:
        return None, False
    column = attribute[0]
    if isinstance(plain, IsNull | IsNotNull):
        return (found if isinstance(plain, IsNotNull) is is_expected else _NOTHING), True
    value, compare = getattr(plain, "value", None), _COMPARE.get(type(plain))
    values: list[Any] = list(value) if isinstance(plain, In) and isinstance(value, list | tuple) else [value]
    if compare is None or not values or not all(_is_of(column, each) for each in values):
        return None, False
    if column == "timestamp":
        return (_since(found, plain, values) if is_expected else None), False
    if column == "offset":
        return _between(found, plain, values) if is_expected else (None, False)
    condition = _Condition(column, compare, value, is_expected)
    return replace(found, conditions=(*found.conditions, condition)), True


def _is_of(column: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, _TYPES[column]):
        return False
    return not isinstance(value, dt.datetime) or value.tzinfo is not None


def _between(found: Narrowing, plain: Filter, values: list[int]) -> tuple[Narrowing | None, bool]:
    first, end = {
        EqualTo: (values[0], values[0] + 1),
        EqualNullSafe: (values[0], values[0] + 1),
        GreaterThan: (values[0] + 1, found.end),
        GreaterThanOrEqual: (values[0], found.end),
        LessThan: (found.first, values[0]),
        LessThanOrEqual: (found.first, values[0] + 1),
        In: (min(values), max(values) + 1),
    }[type(plain)]
    bounded = replace(found, first=max(found.first, first), end=min(found.end, end))
    return bounded, not isinstance(plain, In)


def _since(found: Narrowing, plain: Filter, values: list[dt.datetime]) -> Narrowing | None:
    if isinstance(plain, LessThan | LessThanOrEqual):
        return None
    since_ms = (min(values) - _EPOCH) // _MILLISECOND  # timestamps of records are whole milliseconds
    if since_ms <= 0:
        return None  # such timestamps have special meanings in ListOffsets
    return replace(found, since_ms=max(since_ms, found.since_ms or 0))
