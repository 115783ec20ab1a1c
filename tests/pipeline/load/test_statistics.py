"""The statistics of a file in Delta's log are true bounds of its values, or are left out."""

from __future__ import annotations

import datetime as dt
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parley.pipeline.load.statistics import statistics

LAST = dt.datetime.max.replace(tzinfo=dt.UTC)
FIRST = dt.datetime.min.replace(tzinfo=dt.UTC)


def bounds(values: list[Any], kind: Any) -> tuple[Any, Any]:
    file = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, kind)}), file)
    told = json.loads(statistics(pq.read_metadata(file)))
    assert told["numRecords"] == len(values)
    return told["minValues"].get("x"), told["maxValues"].get("x")


@pytest.mark.parametrize("zone", ["UTC", None])
def test_times_are_rounded_outwards(zone: str | None) -> None:
    kind, mark = pa.timestamp("us", zone), "Z" if zone else ""

    def of(*moments: dt.datetime) -> tuple[Any, Any]:
        return bounds([each if zone else each.replace(tzinfo=None) for each in moments], kind)

    before = dt.datetime(1969, 12, 31, 23, 59, 59, 999001, dt.UTC)
    assert of(before) == (f"1969-12-31T23:59:59.999{mark}", f"1970-01-01T00:00:00.000{mark}")
    assert of(FIRST, LAST.replace(microsecond=999000)) == (
        f"0001-01-01T00:00:00.000{mark}",
        f"9999-12-31T23:59:59.999{mark}",
    )
    assert of(LAST.replace(microsecond=998001))[1] == f"9999-12-31T23:59:59.999{mark}"


@pytest.mark.parametrize("zone", ["UTC", None])
@pytest.mark.parametrize("microsecond", [999001, 999999])
def test_a_time_that_cannot_be_rounded_up_has_no_bounds(zone: str | None, microsecond: int) -> None:
    last = LAST.replace(microsecond=microsecond)
    assert bounds([last if zone else last.replace(tzinfo=None)], pa.timestamp("us", zone)) == (None, None)
