"""Spark's own Kafka connector, unchanged, with Parley; our format must return the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.sparking import T0_MS, copy_stream, finish, produce, read, records, stream, table
from tests.support.kafka import Kafka4
from tests.support.kafka_data import OVERRIDES, write_everything

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EVERYTHING = "mixed|codecs|append.time_topic-x|transactions|idempotent|trimmed|compacted"


@pytest.fixture(scope="session")
def kafka_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka4]:
    """Yield an Apache Kafka 4.3.1 broker with a topic for each way of storing records."""
    settings = {key: value for key, value in OVERRIDES.items() if "version" not in key}
    kafka = Kafka4(tmp_path_factory.mktemp("kafka-4"), {**settings, "num.partitions": "3"})
    try:
        write_everything(kafka)
        write_mixed(kafka.bootstrap_servers)
        yield kafka
    finally:
        kafka.close()


def write_mixed(bootstrap: str) -> None:
    for number, codec in enumerate(CODECS):
        produce(bootstrap, "mixed", 300, first=300 * number, partitions=3, compression_type=codec)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_same_rows_of_apache_kafka(spark: SparkSession, kafka_4: Kafka4, isolation: str) -> None:
    options = {"subscribePattern": EVERYTHING, "kafka.isolation.level": isolation}
    theirs = table(read(spark, "kafka", kafka_4.bootstrap_servers, **options))
    ours = table(read(spark, "parley", kafka_4.bootstrap_servers, minPartitions=12, **options))
    assert {row["topic"] for row in theirs} == set(EVERYTHING.split("|"))
    assert ours == theirs


def test_the_same_rows_of_parley(spark: SparkSession, kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("mixed", partitions=3)
    bootstrap = kafka_broker.bootstrap_servers
    write_mixed(bootstrap)
    theirs = read(spark, "kafka", bootstrap, subscribe="mixed")
    ours = read(spark, "parley", bootstrap, subscribe="mixed")
    assert ours.schema == theirs.schema
    assert table(ours) == table(theirs)
    assert ours.where("key IS NULL AND offset < 50").groupBy("partition").count().collect()
    limits = {"startingTimestamp": T0_MS + 100, "endingOffsets": '{"mixed": {"0": 77, "1": -1, "2": 80}}'}
    assert table(read(spark, "parley", bootstrap, subscribe="mixed", **limits)) == table(
        read(spark, "kafka", bootstrap, subscribe="mixed", **limits)
    )


@pytest.mark.parametrize("kind", ["kafka", "parley"])
def test_written_rows_are_read_back(spark: SparkSession, kafka_broker: KafkaBroker, kind: str) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    source = kafka_broker.create_topic(f"written-{kind}", partitions=3)
    produce(bootstrap, f"first-{kind}", 200)
    rows = read(spark, kind, bootstrap, subscribe=f"first-{kind}")
    for _ in range(2):
        options = {"kafka.bootstrap.servers": bootstrap, "topic": source}
        rows.write.format(kind).options(**options).mode("append").save()
    whole = records(rows)
    assert records(read(spark, kind, bootstrap, subscribe=source)) == whole + whole


@pytest.mark.parametrize("kind", [pytest.param("kafka", marks=pytest.mark.soak), "parley"])
def test_a_stream_goes_on_from_its_checkpoint(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, kind: str
) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"{name}-{kind}", partitions=2) for name in ("from", "to"))
    for first in (0, 300):
        produce(bootstrap, source, 300, first=first, partitions=2)
        rows = stream(spark, kind, bootstrap, subscribe=source, maxOffsetsPerTrigger=200)
        finish(copy_stream(rows, kind, bootstrap, target, tmp_path).trigger(availableNow=True).start())
    assert records(read(spark, "kafka", bootstrap, subscribe=target)) == records(
        read(spark, "kafka", bootstrap, subscribe=source)
    )


def test_a_query_changes_from_our_format_to_theirs_and_back(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """Both use the same checkpoint: no record is read twice or skipped."""
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"changed-{name}", partitions=2) for name in ("from", "to"))
    for number, kind in enumerate(("parley", "kafka", "parley")):
        produce(bootstrap, source, 100, first=100 * number, partitions=2)
        rows = stream(spark, kind, bootstrap, subscribe=source)
        finish(copy_stream(rows, kind, bootstrap, target, tmp_path).trigger(availableNow=True).start())
    assert records(read(spark, "parley", bootstrap, subscribe=target)) == records(
        read(spark, "parley", bootstrap, subscribe=source)
    )


def test_real_time_mode(spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """From JVM to JVM: records flow while a batch is open."""
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"real-time-{name}") for name in ("from", "to"))
    writer = copy_stream(stream(spark, "kafka", bootstrap, subscribe=source), "kafka", bootstrap, target, tmp_path)
    query = writer.outputMode("update").trigger(realTime="10 seconds").start()
    try:
        produce(bootstrap, source, 200)
        whole = records(read(spark, "parley", bootstrap, subscribe=source))
        while (found := records(read(spark, "parley", bootstrap, subscribe=target))) != whole:
            assert not found - whole
            assert query.exception() is None
    finally:
        query.stop()


def test_keys_go_to_the_same_partitions(spark: SparkSession, kafka_broker: KafkaBroker) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    rows = spark.range(500).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    where = []
    for kind in ("kafka", "parley"):
        topic = kafka_broker.create_topic(f"keys-{kind}", partitions=5)
        options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        rows.write.format(kind).options(**options).mode("append").save()
        found = read(spark, "parley", bootstrap, subscribe=topic).select("key", "partition").toArrow().to_pylist()
        where.append({row["key"]: row["partition"] for row in found})
    assert where[0] == where[1]
    assert len(where[0]) == 500
