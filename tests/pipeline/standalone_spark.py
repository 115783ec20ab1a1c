"""A standalone Spark cluster on loopback: a master and its workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from parley.pipeline.spark.java import java_home
from tests.support.java_archives import small_spark
from tests.support.kafka import JavaServer
from tests.support.ports import free_port

__all__ = ["SETTINGS", "standalone_spark"]

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": small_spark(),
    "spark.executor.extraJavaOptions": small_spark(),
}
"""Settings that keep an application small."""
_DEPLOY = "org.apache.spark.deploy"


@contextmanager
def standalone_spark(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, workers: int = 1, cores: int = 2
) -> Iterator[str]:
    """Run a Spark cluster whose workers have this many cores each. Yields its address. The JVMs get small heaps."""
    import pyspark

    program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    address = f"spark://127.0.0.1:{(port := free_port())}"
    environment = {
        "JAVA_HOME": str(java_home()),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": small_spark(),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    with ExitStack() as running:

        def start(kind: str, *words: str, says: str) -> None:
            server = JavaServer([program, f"{_DEPLOY}.{kind}", *where, *words], cwd=folder)
            running.callback(server.stop)
            server.wait_for(says)

        start("master.Master", "--port", str(port), says="New state: ALIVE")
        for number in range(workers):
            size = ("--cores", str(cores), "--memory", "1g", "--work-dir", str(folder / f"work{number}"))
            start("worker.Worker", *size, address, says="Successfully registered with master")
        yield address
