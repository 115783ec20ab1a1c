"""The start and the end of Spark, tested without Spark."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parley.pipeline.spark.session import _java_ends_if_interrupted, _quietly, stopped_at_the_end, wait_for_executors

pytest.importorskip("pyspark")

from pyspark import java_gateway

from parley.pipeline.spark.session import SparkFailed

JAVA = "spark.driver.extraJavaOptions"
LONG = [sys.executable, "-c", "import time; time.sleep(600)"]


def start_and_raise(error: BaseException, started: list[Any]) -> None:
    with _java_ends_if_interrupted():
        started.append(java_gateway.Popen(LONG))
        raise error


def test_who_is_interrupted_while_spark_starts_leaves_no_java_behind() -> None:
    started: list[Any] = []
    before = java_gateway.Popen
    with pytest.raises(KeyboardInterrupt):
        start_and_raise(KeyboardInterrupt(), started)
    assert started[0].poll() is not None
    assert java_gateway.Popen is before


def test_a_java_whose_spark_failed_is_there_for_the_next_one() -> None:
    started: list[Any] = []
    with pytest.raises(ValueError, match="no such master"):
        start_and_raise(ValueError("no such master"), started)
    assert started[0].poll() is None
    started[0].kill()
    started[0].wait()


def test_quiet_spark_gets_a_logging_configuration_unless_the_user_sets_one() -> None:
    (option,) = _quietly({}, {}).values()
    assert Path(option.strip('"').partition("=")[2]).is_file()
    assert _quietly({JAVA: "-Xss4m"}, {})[JAVA].startswith('-Xss4m "-Dlog4j2.configurationFile=')
    own = {JAVA: "-Dlog4j2.configurationFile=mine.xml"}
    assert _quietly(own, {}) == own
    assert _quietly({}, {"SPARK_CONF_DIR": "/etc/spark"}) == {}


class Spark:
    """The part of a session that ``stop`` uses; ``java`` is the response of its JVM."""

    def __init__(self, java: Any) -> None:
        self.stops = 0
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=java))

    def stop(self) -> None:
        self.stops += 1
        self.sparkContext._jsc.sc()


def gone() -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def test_an_ended_spark_is_distinguished_from_unwritable_files() -> None:
    dead: Any = Spark(gone)
    with pytest.raises(SparkFailed, match="Spark has ended"), stopped_at_the_end(dead):
        gone()
    alive: Any = Spark(lambda: SimpleNamespace(isStopped=lambda: False))
    with pytest.raises(PermissionError), stopped_at_the_end(alive):
        raise PermissionError(13, "Permission denied")
    assert (dead.stops, alive.stops) == (1, 1)


class Cluster:
    """Executors with two cores that register at these times, and a clock that only `sleep` advances."""

    def __init__(self, *times: float) -> None:
        self.now = 0.0
        self._times = times

    def look(self) -> tuple[int, int]:
        executors = sum(one <= self.now for one in self._times)
        return executors, max(2, 2 * executors)  # like Spark's defaultParallelism

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("times", "cores_max", "waited"),
    [
        ((1.0, 2.5), sys.maxsize, 4.5),  # until none comes any more
        ((1.0, 2.5), 4, 2.5),  # all that there can be
        ((5.0,), sys.maxsize, 7.0),  # without an executor, the minimum of two does not count
        ((), sys.maxsize, 30.0),
        (tuple(range(100)), sys.maxsize, 30.0),
    ],
)
def test_executors_are_waited_for(times: tuple[float, ...], cores_max: int, waited: float) -> None:
    cluster = Cluster(*times)
    wait_for_executors(cluster.look, cores_max, now=lambda: cluster.now, sleep=cluster.sleep)
    assert cluster.now == pytest.approx(waited, abs=0.25)
