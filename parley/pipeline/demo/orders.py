"""The Spark job of the worked example (docs/example-orders.md): change events of orders become revenue by window.

A value is the JSON of a change in a database's log: ``op`` (c, u, d), ``at``, and the order ``before`` and ``after``
it. Each change adds its difference to the revenue of its country, in the window of its time. Windows are written once,
when the watermark shows that they are complete.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from parley.pipeline.demo.changes import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDER: Final = "struct<id: bigint, country: string, amount: decimal(12, 2)>"
SCHEMA: Final = f"op string, at timestamp, before {ORDER}, after {ORDER}"
WATERMARK: Final = "30 minutes"
"""The watermark's delay. It exceeds the lateness of events and the time differences between partitions."""


def revenue(changes: DataFrame, window: str) -> DataFrame:
    """Return the revenue by window and country, as keys and values of records."""
    from pyspark.sql import functions as f

    parts = f.array(
        f.struct(f.col("before.country").alias("country"), (-f.col("before.amount")).alias("amount")),
        f.struct("after.country", "after.amount"),
    )
    booked = changes.withWatermark("at", WATERMARK).select("at", f.inline(parts)).where("country IS NOT NULL")
    sums = booked.groupBy(f.window("at", window), "country").agg(
        f.sum("amount").cast("decimal(14, 2)").alias("revenue"), f.count("*").alias("bookings")
    )
    start = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("window")
    return sums.select(
        f.to_json(f.struct(start, "country")).alias("key"),
        f.to_json(f.struct(start, "country", f.col("revenue").cast("string").alias("revenue"), "bookings")).alias(
            "value"
        ),
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], SCHEMA, revenue, name="orders"))
