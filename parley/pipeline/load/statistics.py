"""A file's statistics for Delta's log: counts, minimum and maximum values. Readers use them to skip files.

They come from the footer of the Parquet file. Columns that Delta's readers compare differently from Parquet are left
out: nested columns, bytes, long texts, doubles (Parquet's bounds ignore NaN). Pure decisions, no I/O.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, Final

_TEXT_MAX: Final = 64
_MILLISECOND: Final = dt.timedelta(milliseconds=1)


def statistics(metadata: Any) -> str:
    """Return a file's statistics as JSON, from its Parquet metadata."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for at in range(metadata.num_columns):
        name = metadata.schema.column(at).path
        found = [group.column(at).statistics for group in groups]
        if metadata.schema.column(at).max_repetition_level or "." in name or any(one is None for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        bounded = [one for one in found if one.has_min_max]
        if len(bounded) == sum(one.num_values > 0 for one in found) and bounded:
            bounds = _bounds([one.min for one in bounded], [one.max for one in bounded])
            if bounds is not None:
                least[name], greatest[name] = bounds
    content = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(content)


def _bounds(least: Sequence[Any], greatest: Sequence[Any]) -> tuple[Any, Any] | None:
    low, high = min(least), max(greatest)
    match low:
        case bool():
            return None
        case int():
            return low, high
        case str() if max(len(low), len(high)) <= _TEXT_MAX:
            return low, high
        case dt.datetime():  # Delta has milliseconds, so the greatest is rounded up
            if high.microsecond % 1000:
                if high > dt.datetime.max.replace(tzinfo=high.tzinfo) - _MILLISECOND:
                    return None  # the year 10000
                high += _MILLISECOND
            return _milliseconds(low), _milliseconds(high)
        case dt.date():
            return low.isoformat(), high.isoformat()
    return None


def _milliseconds(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
