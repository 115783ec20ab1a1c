"""Functions for tests with Spark: options, comparable rows, and the end of a query."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

T0_MS = time.time_ns() // 1_000_000 - 3_600_000
"""The timestamp of the first record, recent enough that brokers do not delete it by its age."""
QUERY_SECONDS = 300
"""Far more than a query takes, to distinguish a hung query from a slow machine."""


def read(spark: SparkSession, kind: str, bootstrap: str, **options: Any) -> DataFrame:
    """Return a batch of topics by the format ``kind``; underscores in the names of ``options`` are dots."""
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("includeHeaders", "true")
    return reader.options(**_named(options)).load()


def stream(spark: SparkSession, kind: str, bootstrap: str, **options: Any) -> DataFrame:
    """Return a stream of topics by the format ``kind``, from their beginning."""
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", bootstrap)
    defaults = {"includeHeaders": "true", "startingOffsets": "earliest"}
    return reader.options(**{**defaults, **_named(options)}).load()


def copy_stream(rows: DataFrame, kind: str, bootstrap: str, topic: str, checkpoint: Path, **options: Any) -> Any:
    """Return a writer of a stream to a topic by the format ``kind``. It is not started yet."""
    writer = rows.select("key", "value", "headers").writeStream.format(kind).option("topic", topic)
    writer = writer.option("kafka.bootstrap.servers", bootstrap).option("checkpointLocation", str(checkpoint))
    return writer.options(**_named(options))


def _named(options: dict[str, Any]) -> dict[str, str]:
    return {key.replace("_", "."): str(value) for key, value in options.items()}


def finish(query: StreamingQuery) -> None:
    """Wait for a query that ends by itself. Raises the error if it failed."""
    assert query.awaitTermination(QUERY_SECONDS), "the query does not end"


def table(rows: DataFrame) -> list[dict[str, Any]]:
    """Return every row with all its columns, in the order of the topics' logs."""
    found: pa.Table = rows.toArrow()
    rows_found: list[dict[str, Any]] = found.sort_by([(name, "ascending") for name in _LOG_ORDER]).to_pylist()
    return rows_found


def records(rows: DataFrame) -> Counter[tuple[Any, ...]]:
    """Return the set of keys, values and headers, without duplicates."""
    found = rows.select("key", "value", "headers").toArrow().to_pylist()
    return Counter((row["key"], row["value"], str(row["headers"])) for row in found)


def produce(bootstrap: str, topic: str, count: int, *, first: int = 0, partitions: int = 1, **config: Any) -> None:
    """Produce records, some of which have no key, value or headers."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    with Producer({"bootstrap.servers": bootstrap, **settings}) as producer:
        for number in range(first, first + count):
            producer.produce(
                topic,
                key=None if number % 7 == 3 else b"key-%d" % (number % 50),
                value=None if number % 11 == 5 else b"%d-" % number + b"v" * (number % 40),
                headers=_HEADERS[number % len(_HEADERS)],
                partition=number % partitions,
                timestamp=T0_MS + number,
            )


_LOG_ORDER = ("topic", "partition", "offset")
_HEADERS: list[list[tuple[str, str | bytes | None]] | None] = [
    None,
    [("n", b"1"), ("none", None)],
    [],
    [("twice", b"a"), ("twice", b"b"), ("", b"")],
]
