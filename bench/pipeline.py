"""``python -m bench.pipeline``: our Spark format beside Spark's own Kafka connector, on the same topics in one run.

The two take turns (A B A B ...); medians are printed, and the ratio ours / theirs. Rows per CPU second count the
processor time of Spark with all its processes (Java, Python workers), not that of the broker. The latency is from
when a record was made to when a consumer has its copy, at 100 records a second through a streaming query.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession

from bench.clusters import TICKS, Parley
from parley.pipeline.mirror.job import on_spark
from parley.pipeline.mirror.rounds import Mirror
from parley.pipeline.mirror.settings import from_mm2
from parley.pipeline.session import spark_session
from tests.system import peers

KINDS = ("kafka", "parley")
PARTITIONS = 6
LATENCY_RECORDS_PER_S = 100
Figures = dict[tuple[str, str], list[float]]


def tree_cpu_seconds(root: int) -> float:
    """Processor time so far of a process, its descendants, and those of them that have ended."""
    children: dict[int, list[int]] = defaultdict(list)
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended meanwhile
            children[int(fields[1])].append(int(entry.name))
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    found, todo = 0, [root]
    while todo:
        process = todo.pop()
        found += ticks.get(process, 0)
        todo += children[process]
    return found / TICKS


class Bench:
    """A broker, a Spark, and what was measured."""

    def __init__(self, spark: SparkSession, broker: Parley, rows: int, size: int) -> None:
        self.spark = spark
        self.broker = broker
        self.rows = rows
        self.size = size
        self.figures: Figures = defaultdict(list)
        self._topics = 0

    def fill(self, topic: str, codec: str) -> None:
        """Write the topic that is read, with librdkafka."""
        self.broker.create_topic(topic, PARTITIONS)
        settings = {"compression.type": codec, "linger.ms": 20, "queue.buffering.max.messages": 500_000}
        with Producer({"bootstrap.servers": self.broker.bootstrap, **settings}) as producer:
            for number in range(self.rows):
                value = (b"%012d-" % number) * (self.size // 13 + 1)
                while True:
                    try:
                        producer.produce(topic, value[: self.size], key=b"%08d" % (number % 10_000))
                        break
                    except BufferError:
                        producer.poll(0.1)

    def source(self, kind: str, topic: str) -> DataFrame:
        reader = self.spark.read.format(kind).option("kafka.bootstrap.servers", self.broker.bootstrap)
        return reader.option("subscribe", topic).load()

    def measured(self, label: str, kind: str, work: Callable[[], None]) -> None:
        before, began = self.cpu_seconds(), time.perf_counter()
        work()
        cpu, seconds = self.cpu_seconds() - before, time.perf_counter() - began
        self.figures[f"{label}: k rows / CPU s", kind].append(self.rows / cpu / 1000)
        self.figures[f"{label}: k rows / s", kind].append(self.rows / seconds / 1000)

    def cpu_seconds(self) -> float:
        """Of Spark; the broker is a child of this process too."""
        return tree_cpu_seconds(os.getpid()) - self.broker.cpu_seconds()

    def read(self, kind: str, topic: str, label: str) -> None:
        self.measured(label, kind, lambda: self.source(kind, topic).write.format("noop").mode("overwrite").save())

    def write(self, kind: str, label: str) -> None:
        """Rows that Spark makes, to a new topic."""
        value = f"rpad(CAST(id AS STRING), {self.size}, 'x')"
        rows = self.spark.range(0, self.rows, 1, 2).selectExpr("CAST(id % 10000 AS STRING) AS key", f"{value} AS value")
        target = self.new_topic()
        options = {"kafka.bootstrap.servers": self.broker.bootstrap, "topic": target}
        self.measured(label, kind, lambda: rows.write.format(kind).options(**options).mode("append").save())
        self.broker.delete_topic(target)

    def copy(self, kind: str, topic: str, label: str) -> None:
        target = self.new_topic()
        options = {"kafka.bootstrap.servers": self.broker.bootstrap, "topic": target}
        rows = self.source(kind, topic).select("key", "value")
        self.measured(label, kind, lambda: rows.write.format(kind).options(**options).mode("append").save())
        self.broker.delete_topic(target)

    def mirror(self, kind: str, topic: str, label: str) -> None:
        """The whole topic to another: by the connector's source and sink, or by ``parley mirror``."""
        if kind == "kafka":
            self.copy(kind, topic, label)
            return
        self._topics += 1
        source = f"source-{self._topics}"  # another cluster each time: a mirror would know what it has copied
        where = {f"{alias}.bootstrap.servers": self.broker.bootstrap for alias in (source, "target")}
        flow = {
            f"{source}->target.enabled": "true",
            f"{source}->target.topics": topic,
            "emit.heartbeats.enabled": "false",
        }
        settings = from_mm2({"clusters": f"{source}, target", **where, **flow})
        with Mirror(settings, on_spark(self.spark), now_ms=lambda: time.time_ns() // 1_000_000) as mirror:
            ends = mirror.ends()
            self.measured(label, kind, lambda: mirror.copy(ends))
            assert [one.records for one in mirror.progress()] == [self.rows]
        self.broker.delete_topic(f"{source}.{topic}")

    def new_topic(self) -> str:
        self._topics += 1
        self.broker.create_topic(f"target-{self._topics}", PARTITIONS)
        return f"target-{self._topics}"

    def latency(self, kind: str, seconds: float) -> None:
        """A streaming query copies a topic without a trigger; how old a record is when its copy arrives."""
        source, target = self.new_topic(), self.new_topic()
        where = {"kafka.bootstrap.servers": self.broker.bootstrap}
        reader = self.spark.readStream.format(kind).options(**where, subscribe=source, startingOffsets="earliest")
        with tempfile.TemporaryDirectory(prefix="parley-bench-") as checkpoint:
            writer = reader.load().select("key", "value").writeStream.format(kind).options(**where, topic=target)
            query = writer.option("checkpointLocation", checkpoint).start()
            try:
                ages = self._ages(source, target, seconds)
            finally:
                query.stop()
        late = statistics.quantiles(ages, n=100)
        self.figures["stream, latency p50, ms", kind].append(late[49])
        self.figures["stream, latency p99, ms", kind].append(late[98])

    def _ages(self, source: str, target: str, seconds: float) -> list[float]:
        """In ms; the first third is for warming up."""
        where = {"bootstrap.servers": self.broker.bootstrap}
        consumer = Consumer({**where, "group.id": target, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10})
        consumer.subscribe([target])
        count = int(seconds * LATENCY_RECORDS_PER_S)

        def send() -> None:
            with Producer({**where, "linger.ms": 0}) as producer:
                for _ in range(count):
                    producer.produce(source, b"%d" % time.time_ns())
                    producer.poll(0)
                    time.sleep(1 / LATENCY_RECORDS_PER_S)  # a poll that waits returns with the first acknowledgement

        sender = threading.Thread(target=send)
        sender.start()
        ages: list[float] = []
        while len(ages) < count:
            message = consumer.poll(60)
            if message is None:
                raise SystemExit(f"only {len(ages)} of {count} records were copied")
            if (value := message.value()) is not None and not message.error():
                ages.append((time.time_ns() - int(value)) / 1e6)
        sender.join()
        consumer.close()
        return ages[count // 3 :]


def table(figures: Figures) -> str:
    """The medians and ratios as Markdown."""
    lines = ["| | `kafka` | `parley` | ratio |", "|---|---|---|---|"]
    for label in dict.fromkeys(label for label, _ in figures):
        theirs, ours = (statistics.median(figures[label, kind]) for kind in KINDS)
        lines.append(f"| {label} | {theirs:,.0f} | {ours:,.0f} | {ours / theirs:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each format")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of each measurement")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--latency-seconds", type=float, default=30, help="how long the stream runs; 0: it does not")
    given = parser.parse_args()
    jars = ",".join(str(jar) for jar in sorted((peers.CACHE / f"spark-kafka-{peers.SPARK}").glob("*.jar")))
    settings = {"spark.jars": jars, "spark.driver.memory": "2g", "spark.ui.enabled": "false"}
    spark = spark_session("bench", master="local[2]", settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="parley-bench-") as folder:
        broker = Parley(Path(folder) / "broker")
        broker.start()
        bench = Bench(spark, broker, given.rows, given.size)
        try:
            run(bench, given.rounds, given.latency_seconds)
        finally:
            broker.stop()
            spark.stop()
    print(table(bench.figures))


def run(bench: Bench, rounds: int, latency_seconds: float) -> None:
    """Round 0 is for Java to compile what it runs, and is not counted."""
    for codec in ("none", "lz4"):
        bench.fill(f"source-{codec}", codec)
    for turn in range(rounds + 1):
        for kind in KINDS:
            print(f"round {turn} of {rounds}: {kind}", file=sys.stderr, flush=True)
            for codec in ("none", "lz4"):
                bench.read(kind, f"source-{codec}", f"read, {codec}")
            bench.write(kind, "write")
            bench.copy(kind, "source-none", "copy")
            for codec in ("none", "lz4"):
                bench.mirror(kind, f"source-{codec}", f"mirror, {codec}")
            if latency_seconds and turn:
                bench.latency(kind, latency_seconds)
        if not turn:
            bench.figures.clear()


if __name__ == "__main__":
    main()
