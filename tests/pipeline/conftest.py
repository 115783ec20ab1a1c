"""One Spark session for all tests of a process; the tests of only one process at a time use Spark on a machine.

Rules: a test that needs Spark or Java is marked ``spark`` (and so left out of ``make test-fast``); such tests take
turns with a machine-wide lock, because Spark's JVM, its Python workers and the broker fill two cores. ``make test``
runs these tests in a single process, so that none waits; otherwise a test waits for the previous one. A test marked
``spark(java=False)`` needs only the Python package, and does not wait.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.fast_folder import COMMON_FOLDER
from tests.support.java_archives import small_spark
from tests.support.preloaded import preloaded_spark_python
from tests.system import peers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTS_SPARK = re.compile(r"^(from|import) pyspark\b", re.MULTILINE)
_LOCK = COMMON_FOLDER / "parley-tests-spark.lock"

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": small_spark(),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""The settings of the session: few resources, few log lines, no compilation of code for queries that run once."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files that need Spark if it is not installed or its tests are not selected, as in
    `make test-fast`."""
    if "not spark" not in config.option.markexpr or importlib.util.find_spec("pyspark") is not None:
        return None
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and _IMPORTS_SPARK.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("spark")
    if marker is None or not marker.kwargs.get("java", True):
        yield
        return
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield a Spark session in this process, with Spark's own Kafka connector and ours. Tests that use it are marked
    ``spark``.

    Its Python workers fork from a preloaded process. Those of other sessions, such as the one in
    ``test_a_driver_killed_in_an_epoch``, start as a user's.
    """
    from parley.pipeline.spark.session import spark_session

    jars = ",".join(str(jar) for jar in sorted((peers.CACHE / f"spark-kafka-{peers.SPARK}").glob("*.jar")))
    local = {
        "spark.jars": jars,
        "spark.pyspark.python": preloaded_spark_python(),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = spark_session("tests", master="local[2,4]", settings={**SETTINGS, **local})
    del os.environ["PYSPARK_PYTHON"]  # it is for this session only
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
