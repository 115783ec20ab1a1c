"""``parley mirror`` on Spark: in the tests' Spark session, and as a user runs it, killed while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from parley.pipeline.mirror.job import run
from parley.pipeline.mirror.settings import from_mm2
from tests.pipeline.mirror.clusters import as_rows, create, produce, properties, read, rows
from tests.support.java_archives import small_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 20_000


def command(a: str, b: str) -> list[str]:
    settings = ("spark.driver.memory=1g", "spark.ui.enabled=false", f"spark.driver.extraJavaOptions={small_spark()}")
    spark = ("--master", "local[2,4]", *(word for one in settings for word in ("--conf", one)))
    clusters = ("--source", a, "--target", b, "--source-alias", "A", "--target-alias", "B", "--topics", "orders")
    return [sys.executable, "-m", "parley", "mirror", *clusters, *spark]


def copy_all(spark: SparkSession, a: str, b: str) -> None:
    """Mirror the topic "orders" from A to B until B has all its records."""
    settings = from_mm2(properties(a, b, topics="orders"))
    run(
        spark,
        settings,
        now_ms=lambda: int(time.time() * 1000),
        over=threading.Event(),
        on_progress=lambda _: None,
        once=True,
    )


def test_it_continues_where_it_ended(a: str, b: str, spark: SparkSession) -> None:
    create(a, "orders", 2)
    for first in (0, 500):
        for partition in range(2):
            produce(a, "orders", rows(500, first), partition)
        copy_all(spark, a, b)
    for partition in range(2):
        assert as_rows(read(b, "A.orders", partition)) == rows(1000)


@pytest.mark.soak  # test_mirror.py kills mirrors without Spark
def test_killed_in_the_middle_it_copies_every_row_once(a: str, b: str, spark: SparkSession, tmp_path: Path) -> None:
    create(a, "orders", 2)
    for partition in range(2):
        produce(a, "orders", rows(RECORDS), partition)
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command(a, b), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        assert running.stdout is not None
        for line in running.stdout:
            if "records copied" in line:
                break
        # More than one round of records, so that some are in flight when it dies.
        for partition in range(2):
            produce(a, "orders", rows(RECORDS, RECORDS), partition)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    for partition in range(2):
        produce(a, "orders", rows(1000, 2 * RECORDS), partition)
    copy_all(spark, a, b)
    for partition in range(2):
        assert as_rows(read(b, "A.orders", partition)) == rows(2 * RECORDS + 1000)
