"""Our streaming queries during failures: every record arrives exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from parley import read_topic
from parley.tools.pytest_plugin import KafkaBroker, KafkaCluster
from tests.pipeline.sparking import QUERY_SECONDS, copy_stream, finish, produce, read, records, stream
from tests.pipeline.transactions import await_markers
from tests.support.preloaded import preloaded_spark_python

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(900)]

_DRIVER = """
import sys
from pathlib import Path

from parley.pipeline.spark.session import spark_session
from tests.pipeline.conftest import SETTINGS
from tests.pipeline.sparking import copy_stream, stream

bootstrap, source, target, checkpoint = sys.argv[1:]
spark = spark_session("killed", master="local[2]", settings=SETTINGS)
rows = stream(spark, "parley", bootstrap, subscribe=source, maxOffsetsPerTrigger=500)
copy_stream(rows, "parley", bootstrap, target, Path(checkpoint)).start().awaitTermination()
"""


@contextmanager
def arriving(bootstrap: str, topic: str, check: Callable[[], None]) -> Iterator[Callable[[int], None]]:
    """Wait until this many more records of the topic have arrived. ``check`` raises if no more will arrive."""
    settings = {"bootstrap.servers": bootstrap, "group.id": f"watch-{topic}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 500, "log_level": 0})
    consumer.subscribe([topic])

    seen: set[tuple[int | None, int | None]] = set()

    def wait(count: int) -> None:
        deadline, wanted = time.monotonic() + QUERY_SECONDS, len(seen) + count
        while (left := wanted - len(seen)) > 0:
            found = consumer.consume(left, 5)  # some perhaps twice, after a rebalance
            seen.update((one.partition(), one.offset()) for one in found if one.error() is None)
            check()
            assert time.monotonic() < deadline, f"{left} records of {topic} do not arrive"

    try:
        yield wait
    finally:
        consumer.close()


def assert_copied(spark: SparkSession, bootstrap: str, source: str, target: str) -> None:
    await_markers(bootstrap, target)
    committed = read(spark, "parley", bootstrap, subscribe=target, kafka_isolation_level="read_committed")
    assert records(committed) == records(read(spark, "parley", bootstrap, subscribe=source))


def test_a_query_that_is_refused_says_why_last(spark: SparkSession, tmp_path: Path) -> None:
    """PySpark prints a traceback, of which users see the last line."""
    rows = stream(spark, "parley", "localhost:9092", subscribe="t", endingOffsets="latest")
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    with pytest.raises(StreamingQueryException) as raised:
        finish(query)
    (last,) = [line for line in str(raised.value).splitlines() if "Error: " in line][-1:]
    assert last.startswith("parley.pipeline.format.options.OptionError: 'endingOffsets' is for batch queries")


@pytest.mark.parametrize("prefix", [None, "tx"], ids=["notes", "transactions"])
def test_an_epoch_that_was_written_and_not_committed(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path, prefix: str | None
) -> None:
    """Spark ended between the sink's commit and its own, so the checkpoint does not record that the epoch is done."""
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"replayed-{prefix}-{name}", partitions=2) for name in ("from", "to"))
    produce(bootstrap, source, 900, partitions=2)
    options = {"transactionalIdPrefix": prefix} if prefix else {}

    def run() -> None:
        rows = stream(spark, "parley", bootstrap, subscribe=source, maxOffsetsPerTrigger=300)
        copying = copy_stream(rows, "parley", bootstrap, target, tmp_path, **options)
        finish(copying.trigger(availableNow=True).start())

    run()
    for commit in (tmp_path / "commits").glob("*2*"):
        commit.unlink()
    run()
    assert_copied(spark, bootstrap, source, target)


def test_a_driver_killed_in_an_epoch(spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"killed-{name}", partitions=2) for name in ("from", "to"))
    produce(bootstrap, source, 4_000, partitions=2)
    command = [sys.executable, "-c", _DRIVER, bootstrap, source, target, str(tmp_path / "checkpoint")]
    log = tmp_path / "driver.log"
    environment = {**os.environ, "PYSPARK_PYTHON": preloaded_spark_python()}
    with log.open("w") as output:
        driver = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environment)

    def is_running() -> None:
        assert driver.poll() is None, log.read_text()[-4000:]

    with arriving(bootstrap, target, is_running) as wait:
        try:
            wait(1_000)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert read_topic(bootstrap, target).num_rows < 4_000
    rows = stream(spark, "parley", bootstrap, subscribe=source)
    finish(copy_stream(rows, "parley", bootstrap, target, tmp_path / "checkpoint").trigger(availableNow=True).start())
    assert_copied(spark, bootstrap, source, target)


def test_a_broker_killed_in_a_batch(spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    bootstrap = kafka_cluster.bootstrap_servers
    source, target = (kafka_cluster.create_topic(f"broker-{name}", partitions=3) for name in ("from", "to"))
    produce(bootstrap, source, 2_000, partitions=3)
    rows = stream(spark, "parley", bootstrap, subscribe=source, maxOffsetsPerTrigger=300)
    query = copy_stream(rows, "parley", bootstrap, target, tmp_path).trigger(processingTime="100 milliseconds").start()
    with running(query), arriving(bootstrap, target, lambda: unfailed(query)) as wait:
        wait(1)
        kafka_cluster.kill(kafka_cluster.brokers[0])
        wait(1_200)
        kafka_cluster.restart(kafka_cluster.brokers[0])
        wait(799)
    assert_copied(spark, bootstrap, source, target)


@contextmanager
def running(query: StreamingQuery) -> Iterator[None]:
    """Run the query inside the context, and stop it at the end."""
    try:
        yield
    finally:
        query.stop()


def unfailed(query: StreamingQuery) -> None:
    """Raise the query's error if it has failed."""
    if (failure := query.exception()) is not None:
        raise failure


def test_a_query_reads_added_partitions_and_fails_on_deleted_records(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """Partitions are added, and read. Records are deleted before they were read, and the query fails with an error that
    says so."""
    bootstrap = kafka_broker.bootstrap_servers
    source, target = (kafka_broker.create_topic(f"changing-{name}") for name in ("from", "to"))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    produce(bootstrap, source, 100)
    rows = stream(spark, "parley", bootstrap, subscribe=source)

    def start() -> StreamingQuery:
        writer = copy_stream(rows, "parley", bootstrap, target, tmp_path)
        started: StreamingQuery = writer.trigger(processingTime="100 milliseconds").start()
        return started

    query = start()
    with running(query), arriving(bootstrap, target, lambda: unfailed(query)) as wait:
        wait(100)
        admin.create_partitions([NewPartitions(source, 3)])[source].result()
        produce(bootstrap, source, 90, first=100, partitions=3)
        wait(90)
        query.processAllAvailable()  # the checkpoint records what was written, so it is not requested again
    assert_copied(spark, bootstrap, source, target)

    produce(bootstrap, source, 30, first=190, partitions=3)
    end = TopicPartition(source, 2, 35)
    admin.delete_records([end])[TopicPartition(source, 2)].result()
    with pytest.raises(StreamingQueryException, match=rf"{source}-2 has offsets 35 to 40, not 30.*'failOnDataLoss'"):
        finish(start())
    rows = stream(spark, "parley", bootstrap, subscribe=source, failOnDataLoss="false")
    finish(copy_stream(rows, "parley", bootstrap, target, tmp_path).trigger(availableNow=True).start())
    assert read_topic(bootstrap, target).num_rows == 215
