"""The worked example: DuckDB reads the rows that plain Python computes, although the driver is killed."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parley import Broker, read_topic
from parley.pipeline.demo import changes, orders
from parley.tools.orders_example import (
    ORDERS,
    REVENUE,
    WINDOW_MINUTES,
    Row,
    close_windows,
    events,
    expected,
    load_table,
    main,
    produce,
    read_with_duckdb,
    revenue,
)
from parley.tools.orders_picture import picture
from tests.pipeline.standalone_spark import SETTINGS, standalone_spark
from tests.support.java_archives import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_picture_in_the_docs_is_that_of_the_example() -> None:
    docs = Path(__file__).parents[2] / "docs" / "example-orders.svg"
    assert docs.read_text() == picture(expected(events(1000)))


@pytest.mark.spark
@pytest.mark.slow
def test_the_job_writes_the_windows_of_plain_python(spark: SparkSession, tmp_path: Path) -> None:
    """The job runs in the tests' Spark session. It ends, and starts again before the windows are closed."""
    wanted = events(300)
    with Broker({"num.partitions": "3"}) as broker:
        bootstrap = broker.bootstrap_servers

        def run_to_the_end() -> None:
            read = changes.values(spark, bootstrap, ORDERS, 100, orders.SCHEMA)
            writer = orders.revenue(read, f"{WINDOW_MINUTES} minutes").writeStream.format("parley")
            writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", REVENUE)
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("append")
            assert writer.trigger(availableNow=True).start().awaitTermination(300), "the query does not end"

        produce(bootstrap, wanted)
        run_to_the_end()
        close_windows(bootstrap, wanted)  # not earlier: records after this one would be too late for the watermark
        run_to_the_end()
        found = [json.loads(value) for value in read_topic(bootstrap, REVENUE).column("value").to_pylist()]
    assert sorted(map(_row, found)) == expected(wanted)


def _row(value: dict[str, str]) -> Row:
    window = datetime.fromisoformat(value["window"])
    return window, value["country"], Decimal(value["revenue"]), int(value["bookings"])


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_example_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", small_spark())  # it is started three times
    assert main(["--events", "300", "--plot", str(tmp_path / "revenue.svg")]) == 0
    assert "all agree with plain Python" in capfd.readouterr().out
    assert (tmp_path / "revenue.svg").read_text() == picture(expected(events(300)))


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_the_example_on_two_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wanted = events(1500, seed=7)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    settings = "".join(f"{key} {value}\n" for key, value in SETTINGS.items())
    (tmp_path / "spark-defaults.conf").write_text(settings)
    with (
        standalone_spark(tmp_path, monkeypatch, workers=2, cores=1) as master,
        Broker({"num.partitions": "3"}) as broker,
    ):
        revenue(broker.bootstrap_servers, tmp_path, wanted, master)
        load_table(broker.bootstrap_servers, tmp_path / "table", master)
        assert read_with_duckdb(tmp_path / "table") == expected(wanted)
