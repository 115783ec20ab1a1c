"""The Spark job of ``make pipeline``: the changes to a repository, counted by time and folder.

A record of the source topic is JSON: one changed file in one commit. The target topic gets the count of each window and
folder once, when the watermark shows that the window is complete. ``python -m parley.pipeline.demo.changes --help`` has
the options. The job runs until SIGTERM, continues from its checkpoint, and prints a line of JSON for every micro-batch.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.spark.session import spark_session
from parley.protocol.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SCHEMA: Final = "commit string, at timestamp, path string, folder string, added long, deleted long"
WATERMARK: Final = "1 hour"
"""The watermark's delay: how late a change may arrive and still be counted."""
_LOOK_S: Final = 0.2


def values(spark: SparkSession, bootstrap: str, topic: str, at_once: int, schema: str) -> DataFrame:
    """Return a stream of the fields in a topic's JSON values, from the topic's beginning.

    ``at_once`` limits the offsets of one micro-batch. ``schema`` is the values' schema in DDL.
    """
    from pyspark.sql import functions as f

    source = (
        spark.readStream.format("parley")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(at_once))
        .load()
    )
    value = f.from_json(f.col("value").cast("string"), schema)
    return source.select(value.alias("found")).select("found.*")


def counted(rows: DataFrame, window: str) -> DataFrame:
    """Return the counts by window and folder, as keys and values of records."""
    from pyspark.sql import functions as f

    counts = (
        rows.withWatermark("at", WATERMARK)
        .groupBy(f.window("at", window), "folder")
        .agg(f.count("*").alias("changes"), f.sum("added").alias("added"), f.sum("deleted").alias("deleted"))
    )
    start = f.col("window.start").alias("from")
    return counts.select(
        f.to_json(f.struct(start, "folder")).alias("key"),
        f.to_json(f.struct(start, "folder", "changes", "added", "deleted")).alias("value"),
    )


def _query(
    spark: SparkSession, options: argparse.Namespace, schema: str, counted: Callable[[DataFrame, str], DataFrame]
) -> StreamingQuery:
    rows = values(spark, options.bootstrap_server, options.source, options.at_once, schema)
    writer = (
        counted(rows, options.window)
        .writeStream.format("parley")
        .option("kafka.bootstrap.servers", options.bootstrap_server)
        .option("topic", options.target)
        .option("checkpointLocation", options.checkpoint_dir)
        .outputMode("append")
        .trigger(processingTime="500 milliseconds")
    )
    query: StreamingQuery = writer.start()
    return query


def _line(progress: Any) -> dict[str, Any]:
    """Return the line to print for a micro-batch. ``done`` is the number of the source topic's offsets that are
    counted.
    """
    end = progress["sources"][0]["endOffset"]
    end = json.loads(end) if isinstance(end, str) else end
    topics = [partitions for topic, partitions in (end or {}).items() if topic]  # the batch's start has no name
    done = sum(offset for partitions in topics for offset in partitions.values())
    return {"batch": progress["batchId"], "rows": progress["numInputRows"], "done": done}


def run(
    arguments: list[str], schema: str, counted: Callable[[DataFrame, str], DataFrame], *, name: str = "make pipeline"
) -> int:
    """Apply ``counted`` to a topic's values, and write the result to another topic, until SIGTERM.

    ``schema`` is the values' schema in DDL, ``name`` the application's name in Spark. Returns 0, or 1 if the cluster
    cannot be used or the query fails.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--bootstrap-server", required=True)
    parser.add_argument("--source", required=True, help="the topic to read")
    parser.add_argument("--target", required=True, help="the topic to write to")
    parser.add_argument("--window", default="10 minutes")
    parser.add_argument("--checkpoint-dir", required=True)
    parser.add_argument("--master", default=None)
    parser.add_argument("--at-once", type=int, default=200, help="records of a micro-batch")
    options = parser.parse_args(arguments)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    small = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    with Cluster(Connection(bootstrap=options.bootstrap_server)) as cluster:
        try:
            cluster.contact()
        except KafkaError as error:
            print(f"The cluster cannot be used: {error}", file=sys.stderr)
            return 1
    spark = spark_session(name, master=options.master, settings=small, quiet=True)
    query = _query(spark, options, schema, counted)
    shown = -1
    while query.isActive and not over.wait(_LOOK_S):
        for progress in query.recentProgress:
            if progress["batchId"] > shown and progress["numInputRows"]:
                shown = progress["batchId"]
                print(json.dumps(_line(progress)), flush=True)
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        print(f"The query failed: {failure}", file=sys.stderr)
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], SCHEMA, counted))
