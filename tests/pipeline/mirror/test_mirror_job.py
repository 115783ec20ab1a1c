"""``parley mirror`` on Spark, as a user runs it, killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.mirror.clusters import as_rows, create, produce, read, rows
from tests.support.java_archives import small_spark

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS = 20_000


def command(a: str, b: str, *more: str) -> list[str]:
    settings = ("spark.driver.memory=1g", "spark.ui.enabled=false", f"spark.driver.extraJavaOptions={small_spark()}")
    spark = ("--master", "local[2,4]", *(word for one in settings for word in ("--conf", one)))
    clusters = ("--source", a, "--target", b, "--source-alias", "A", "--topics", "orders")
    return [sys.executable, "-m", "parley", "mirror", *clusters, *spark, *more]


def test_killed_in_the_middle_it_copies_every_row_once(a: str, b: str, tmp_path: Path) -> None:
    create(a, "orders", 2)
    for partition in range(2):
        produce(a, "orders", rows(RECORDS), partition)
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command(a, b), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        assert running.stdout is not None
        for line in running.stdout:
            if "records copied" in line:
                break
        # More than one round of records, so that some are on their way when it dies.
        for partition in range(2):
            produce(a, "orders", rows(RECORDS, RECORDS), partition)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    for partition in range(2):
        produce(a, "orders", rows(1000, 2 * RECORDS), partition)
    done = subprocess.run(command(a, b, "--once"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for partition in range(2):
        assert as_rows(read(b, "A.orders", partition)) == rows(2 * RECORDS + 1000)
