"""How many cores and slots a worker takes of a Spark, and what is said of tasks that wait."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from parley.pipeline.connect.spark_share import CLUSTER_HOSTS, bounded, hosts_wanted, why_tasks_wait

CLUSTER = "spark://a:7077"
ADDRESS = ("10.0.0.1", 4711)


def context(master: str, conf: Mapping[str, str] = {}, executors: int = 0) -> Any:
    """As much of a SparkContext as is asked; the driver counts as an executor in Spark's own status."""
    status = SimpleNamespace(size=lambda: executors + 1)
    java = SimpleNamespace(sc=lambda: SimpleNamespace(getExecutorMemoryStatus=lambda: status))
    return SimpleNamespace(master=master, defaultParallelism=7, getConf=lambda: conf, _jsc=java)


@pytest.mark.parametrize(
    ("master", "given", "hosts", "cores"),
    [
        (CLUSTER, {}, None, f"{CLUSTER_HOSTS}"),
        (CLUSTER, {}, 5, "5"),
        (CLUSTER, {"spark.task.cpus": "3"}, 2, "6"),
        (CLUSTER, {"spark.cores.max": "9"}, 2, "9"),
        ("local[4]", {}, 2, None),
        ("yarn", {}, 2, None),
        (None, {}, None, None),
    ],
)
def test_the_cores_of_a_standalone_cluster_are_bounded(
    master: str | None, given: dict[str, str], hosts: int | None, cores: str | None
) -> None:
    assert bounded(given, master, hosts).get("spark.cores.max") == cores


@pytest.mark.parametrize(
    ("master", "conf", "hosts", "wanted"),
    [
        (CLUSTER, {}, None, CLUSTER_HOSTS),
        (CLUSTER, {"spark.cores.max": "6", "spark.task.cpus": "2"}, None, 3),
        (CLUSTER, {"spark.cores.max": "1", "spark.task.cpus": "2"}, None, 1),
        (CLUSTER, {"spark.cores.max": "6"}, 4, 4),
        ("yarn", {}, None, CLUSTER_HOSTS),
        ("local[*,4]", {}, None, 7),
        ("local[*,4]", {}, 2, 2),
    ],
)
def test_a_worker_wants_its_share_however_many_executors_have_come(
    master: str, conf: dict[str, str], hosts: int | None, wanted: int
) -> None:
    assert hosts_wanted(context(master, conf), hosts) == wanted


def test_what_tasks_wait_for() -> None:
    none = why_tasks_wait(context(CLUSTER, {"spark.cores.max": "2"}), ADDRESS, None)
    assert "no executor yet" in none
    assert "asks for 2 cores" in none
    for one in (context(CLUSTER, executors=1), context("local[2]"), None):
        assert "has connected to 10.0.0.1:4711" in why_tasks_wait(one, ADDRESS, None)
    failed = why_tasks_wait(
        context(CLUSTER), ADDRESS, RuntimeError("Job aborted\nModuleNotFoundError: no parley\n\tat")
    )
    assert failed.endswith("again: no parley")
    assert why_tasks_wait(None, ADDRESS, RuntimeError("Job aborted\n\tat")).endswith("again: Job aborted")
