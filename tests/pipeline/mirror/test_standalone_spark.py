"""``--master``: a mirror on a Spark of several processes, a master and a worker on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.pipeline.java import java_home
from parley.tools.cli.json_shapes import SHAPES, differences
from tests.pipeline.mirror.clusters import as_rows, create, produce, read, rows
from tests.support.kafka import JavaServer
from tests.support.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

DEPLOY = "org.apache.spark.deploy"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a Spark with one worker."""
    import pyspark

    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    address = f"spark://127.0.0.1:{(port := free_port())}"
    environment = {
        "JAVA_HOME": str(java_home()),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    size = ("--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"))
    leading = JavaServer([program, f"{DEPLOY}.master.Master", *where, "--port", str(port)], cwd=tmp_path)
    try:
        leading.wait_for("New state: ALIVE")
        working = JavaServer([program, f"{DEPLOY}.worker.Worker", *where, *size, address], cwd=tmp_path)
        try:
            working.wait_for("Successfully registered with master")
            yield address
        finally:
            working.stop()
    finally:
        leading.stop()


def test_a_mirror_runs_on_any_spark(a: str, b: str, master: str) -> None:
    create(a, "orders", 3)
    for partition in range(3):
        produce(a, "orders", rows(500), partition)
    settings = (
        "spark.driver.memory=1g",
        "spark.executor.memory=512m",
        "spark.ui.enabled=false",
        "spark.driver.host=127.0.0.1",
        f"spark.driver.extraJavaOptions={QUICK}",
        f"spark.executor.extraJavaOptions={QUICK}",
    )
    words = ["mirror", "--source", a, "--target", b, "--source-alias", "A", "--topics", "orders", "--once", "--json"]
    words += ["--master", master, *(word for one in settings for word in ("--conf", one))]
    done = subprocess.run([sys.executable, "-m", "parley", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [problem for one in told for problem in differences(one, SHAPES["mirror"][1])] == []
    assert (told[-1]["flow"], told[-1]["records"], told[-1]["lag"]) == ("A->target", 1500, 0)
    for partition in range(3):
        assert as_rows(read(b, "A.orders", partition)) == rows(500)
