"""One Spark for all tests of a process, and never two at work on a machine.

Rules: a test that needs Spark or Java is marked ``spark`` (and so left out of ``make test-fast``); it takes its turn
by a lock of this machine, because Spark's Java, its Python workers and the broker fill two cores. ``make test`` runs
these tests in one process beside the others, so that none waits; elsewhere a test waits for the one before. A test
marked ``spark(java=False)`` needs the Python package only, and waits for nobody.
"""

from __future__ import annotations

import fcntl
import importlib.util
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.java_archives import small_spark
from tests.system import peers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_IMPORTS_SPARK = re.compile(r"^(from|import) pyspark\b", re.MULTILINE)
_LOCK = Path(tempfile.gettempdir()) / "parley-tests-spark.lock"

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": small_spark(),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Small and quiet."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where Spark is not installed, as for `make test-fast`, files that import it can be left out, not imported."""
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
    """Spark in this process, with its own Kafka connector beside ours; tests that use it are marked ``spark``."""
    from parley.pipeline.spark.session import spark_session

    jars = ",".join(str(jar) for jar in sorted((peers.CACHE / f"spark-kafka-{peers.SPARK}").glob("*.jar")))
    local = {"spark.jars": jars, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    session = spark_session("tests", master="local[2,4]", settings={**SETTINGS, **local})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
