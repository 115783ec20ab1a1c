"""``python -m bench.loading``: ``parley load`` compared with eight lines of Structured Streaming, as Spark users write
them.

Both load the same topic of JSON records into new Parquet folders, in turns, in one Spark session. The eight lines use
``from_json``, which stores 5 in a string column as "5" and rounds decimals; ``parley load`` rejects such records. The
CPU time is that of all processes of Spark, without the broker.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pa_parquet
from confluent_kafka import Producer

from bench.clusters import Parley
from bench.figures import OURS, Found, report
from bench.pipeline import tree_cpu_seconds
from parley.pipeline.client.cluster import Connection
from parley.pipeline.load.columns import Layout
from parley.pipeline.load.job import LoadSettings, load, on_spark
from parley.pipeline.load.schemas import read_schema
from parley.pipeline.spark.session import parallelism, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
SCHEMA = "id bigint, customer string, price double, paid boolean, at timestamp"
TOPIC = "orders"


def fill(broker: Parley, count: int) -> None:
    broker.create_topic(TOPIC, PARTITIONS)
    settings = {"linger.ms": 20, "queue.buffering.max.messages": 500_000}
    with Producer({"bootstrap.servers": broker.bootstrap, **settings}) as producer:
        for number in range(count):
            value = {"id": number, "customer": f"customer {number % 1000}", "price": number / 4, "paid": not number % 3}
            value["at"] = f"2026-11-21T16:{number % 60:02}:{number // 60 % 60:02}Z"
            while True:
                try:
                    producer.produce(TOPIC, json.dumps(value), key=f"{number % 10_000}", partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)


def eight_lines(spark: SparkSession, bootstrap: str, folder: Path) -> None:
    from pyspark.sql.functions import col, from_json

    reader = spark.readStream.format("parley").option("kafka.bootstrap.servers", bootstrap)
    records = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    values = records.select("*", from_json(col("value").cast("string"), SCHEMA).alias("order"))
    table = values.select("order.*", "key", "topic", "partition", "offset", "timestamp", "timestampType")
    writer = table.writeStream.format("parquet").option("path", str(folder))
    writer = writer.option("checkpointLocation", f"{folder}-checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()


def parley_load(spark: SparkSession, bootstrap: str, folder: Path, kind: str) -> None:
    layout = Layout(value_format="json", schema=read_schema(SCHEMA), flat=True)
    settings = LoadSettings(Connection(bootstrap=bootstrap), TOPIC, str(folder), kind, layout)
    load(settings, on_spark(spark), at_once=max(2, parallelism(spark)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loading", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_500_000)
    given = parser.parse_args()
    spark = spark_session("bench", master="local[2]", settings={"spark.ui.enabled": "false"}, quiet=True)
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as temporary:
        folder = Path(temporary)
        broker = Parley(folder / "broker")
        broker.start()
        try:
            fill(broker, given.records)
            ways: dict[tuple[str, str], Callable[[Path], None]] = {
                ("Parquet", "eight lines"): lambda path: eight_lines(spark, broker.bootstrap, path),
                ("Parquet", OURS): lambda path: parley_load(spark, broker.bootstrap, path, "parquet"),
                ("Delta", OURS): lambda path: parley_load(spark, broker.bootstrap, path, "delta"),
            }
            report(_in_turns(ways, folder, broker, given))
        finally:
            broker.stop()
            spark.stop()


def _in_turns(
    ways: dict[tuple[str, str], Callable[[Path], None]], folder: Path, broker: Parley, given: argparse.Namespace
) -> Found:
    """Return the figures of all rounds but the first, in which Java compiles the hot code."""
    found = Found()
    for turn in range(given.rounds + 1):
        for (kind, name), way in ways.items():
            seconds, cpu = _timed(way, folder / f"{kind}-{name}-{turn}", broker, given.records)
            print(f"round {turn}: {name}, {kind}: {seconds:.1f} s, {cpu:.1f} CPU s", file=sys.stderr, flush=True)
            if turn:
                found.figures[f"{given.records:,} JSON records to {kind}: s", name].append(seconds)
                found.figures[f"{given.records:,} JSON records to {kind}: CPU s", name].append(cpu)
    return found


def _timed(way: Callable[[Path], None], path: Path, broker: Parley, records: int) -> tuple[float, float]:
    """Return the seconds and the CPU seconds that a load takes."""

    def cpu_seconds() -> float:
        return tree_cpu_seconds(os.getpid()) - broker.cpu_seconds()

    began, before = time.perf_counter(), cpu_seconds()
    way(path)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - before
    there = sum(pa_parquet.ParquetFile(one).metadata.num_rows for one in path.rglob("*.parquet"))
    assert there == records, f"{there} of {records} records are in {path}"
    return seconds, cpu


if __name__ == "__main__":
    main()
