"""``parley load`` on Spark, as a user runs it; it is killed while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as pa_dataset
import pytest

from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.mirror.clusters import create, produce, rows
from tests.support.java_archives import small_spark

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

RECORDS = 5000
PER_FILE = 250


def command(bootstrap: str, folder: Path, *more: str) -> list[str]:
    settings = ("spark.driver.memory=1g", "spark.ui.enabled=false", f"spark.driver.extraJavaOptions={small_spark()}")
    spark = ("--master", "local[2,4]", *(word for one in settings for word in ("--conf", one)))
    where = ("--bootstrap-server", bootstrap, "--topic", "many", "--output", str(folder))
    size = ("--max-records-per-file", str(PER_FILE))
    return [sys.executable, "-m", "parley", "load", *where, *size, *spark, *more]


def test_killed_in_the_middle_it_loads_every_row_once(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    create(bootstrap, "many", 2)
    for partition in range(2):
        produce(bootstrap, "many", rows(RECORDS), partition)
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(command(bootstrap, tmp_path / "table"), stderr=log, start_new_session=True)
        manifests = tmp_path / "table" / "_parley" / "manifests"
        while running.poll() is None and not (manifests.is_dir() and list(manifests.glob("*.json"))):
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert len(list(manifests.glob("*.json"))) < RECORDS // PER_FILE, "it was done before it could be killed"
    done = subprocess.run(command(bootstrap, tmp_path / "table"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = pa_dataset.dataset(tmp_path / "table", format="parquet").to_table()
    found = sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert found == [(partition, offset) for partition in range(2) for offset in range(RECORDS)]
