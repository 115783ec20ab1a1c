"""``format("parley")`` through Spark's interfaces: SQL, filters, progress, and Spark Connect sessions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pyarrow.dataset as pa_dataset
import pyspark
import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from parley import Broker, read_topic
from parley.pipeline.client.cluster import TopicPartition
from parley.pipeline.format.progress import Lag, lag_of
from parley.pipeline.spark.java import java_home
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.sparking import T0_MS, copy_stream, finish, produce, stream, table
from tests.support.java_archives import small_spark
from tests.support.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.system, pytest.mark.timeout(600)]

CONNECT_CLIENT = """
import sys
from pyspark.sql import SparkSession

bootstrap, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
cluster = {"kafka.bootstrap.servers": bootstrap}
rows = spark.read.format("parley").options(**cluster, subscribe="connect-in").load()
rows.where("partition = 1").select("value").write.format("parley").options(
    **cluster, topic="connect-out"
).mode("append").save()
reader = spark.readStream.format("parley").options(**cluster, subscribe="connect-in", startingOffsets="earliest")
query = reader.load().where("partition = 0").select("value").writeStream.format("parley").options(
    **cluster, topic="connect-out", checkpointLocation=checkpoint
).trigger(availableNow=True).start()
query.awaitTermination()
print(type(spark).__module__, spark.read.format("parley").options(**cluster, subscribe="connect-out").load().count())
"""


def sent_bytes(metrics: str, topic: str) -> int:
    with urllib.request.urlopen(metrics) as page:
        text = page.read().decode()
    found = re.search(rf'^parley_topic_out_bytes_total{{[^}}]*topic="{topic}"[^}}]*}} (\S+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_sql_reads_topics_and_narrows_the_fetched_offsets(spark: SparkSession) -> None:
    with Broker({"metrics.listener": (where := f"127.0.0.1:{free_port()}"), "num.partitions": "2"}) as broker:
        produce(broker.bootstrap_servers, "filtered", 4000, partitions=2, batch_size=4096)
        found, sent = [], [0]
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            for pushes in ("true", "false"):
                options = f"'kafka.bootstrap.servers' '{broker.bootstrap_servers}', subscribe 'filtered'"
                options = f"OPTIONS ({options}, pushFilters '{pushes}')"
                spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW log_{pushes} USING parley {options}")
                times = f"timestamp_millis({T0_MS + 3901}) AND timestamp_millis({T0_MS + 3989})"
                query = spark.sql(
                    f"SELECT * FROM log_{pushes} WHERE timestamp BETWEEN {times} AND partition = 1 AND offset >= 1900"
                )
                found.append(table(query))
                sent.append(sent_bytes(f"http://{where}/metrics", "filtered"))
                plan = query._jdf.queryExecution().executedPlan().toString()
                checked = plan.split("Filter", 1)[1].split("\n")[0]
                assert ("offset" in checked, "timestamp" in checked) == (pushes == "false", True)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        assert found[0] == found[1]
        assert len(found[0]) == 45
        assert 0 < sent[1] < (sent[2] - sent[1]) / 5


def test_a_table_is_refused_with_the_statement_that_works(spark: SparkSession, kafka_broker: KafkaBroker) -> None:
    produce(kafka_broker.bootstrap_servers, "tabled", 3)
    options = f"'kafka.bootstrap.servers' '{kafka_broker.bootstrap_servers}', subscribe 'tabled'"
    with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING parley OPTIONS ({options})")
    columns = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"
    spark.sql(f"CREATE TABLE named ({columns}, timestampType int) USING parley OPTIONS ({options})")
    try:
        with pytest.raises(AnalysisException, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM named").collect()
        given = options.replace("' '", "' = '").replace("subscribe ", "'subscribe' = ")
        assert spark.sql(f"SELECT * FROM named WITH ({given})").count() == 3
    finally:
        spark.sql("DROP TABLE named")


def test_progress_tells_how_far_a_query_is_behind(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    produce(kafka_broker.bootstrap_servers, "behind", 30)
    rows = stream(spark, "parley", kafka_broker.bootstrap_servers, subscribe="behind", maxOffsetsPerTrigger=20)
    copying = copy_stream(rows, "parley", kafka_broker.bootstrap_servers, "behind-copy", tmp_path / "checkpoint")
    query = copying.trigger(availableNow=True).start()
    finish(query)
    place = TopicPartition("behind", 0)
    lags = [lag_of(one) for one in query.recentProgress]
    assert lags == [Lag(query.id, number, {place: left}) for number, left in ((0, 10), (1, 0))]


@pytest.mark.soak
def test_a_session_of_spark_connect(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """The client is a separate process; PySpark starts the server from its own jar."""
    bootstrap = kafka_broker.bootstrap_servers
    kafka_broker.create_topic("connect-in", partitions=2)
    produce(bootstrap, "connect-in", 50, partitions=2)
    told = run([sys.executable, "-c", CONNECT_CLIENT, bootstrap, str(tmp_path / "checkpoint")], tmp_path)
    assert told.split() == ["pyspark.sql.connect.session", "50"]


@pytest.mark.soak
def test_a_declarative_pipeline(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """The pipeline of docs/pipeline.md, which also uses a Spark Connect session."""
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    program = re.findall(r"^```python\n(# transformations/orders.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(program)
    spec = textwrap.dedent(re.findall(r"^( {4}name: shop\n(?: {4}.*\n)+)", page, re.MULTILINE)[0])
    spec = spec.replace("/data/pipeline", f"{tmp_path}/state").replace("host:9092", kafka_broker.bootstrap_servers)
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}) as producer:
        for number in range(30):
            producer.produce("orders", key=("DE", "FR")[number % 2], value=str(number * 10))
    program_path = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    run([program_path, "run"], tmp_path)
    large = read_topic(kafka_broker.bootstrap_servers, "large-orders")
    assert sorted(int(value) for value in large.column("value").to_pylist()) == [n * 10 for n in range(11, 30)]
    found = pa_dataset.dataset(tmp_path / "spark-warehouse" / "revenue", format="parquet").to_table().to_pylist()
    assert sorted(list(row.values()) for row in found) == [["DE", 2100], ["FR", 2250]]


def run(command: list[str], folder: Path) -> str:
    """Run a program that uses Spark Connect on this machine, and return its output."""
    environment = {
        **os.environ,
        "SPARK_REMOTE": "local[2]",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java_home()),
        "JAVA_TOOL_OPTIONS": small_spark(),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
