"""What holds for all tests."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that does other things besides.
settings.register_profile("parley", deadline=None)
settings.load_profile("parley")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parley's own tests")
    group.addoption("--chaos-rounds", type=int, default=5, help="how often the chaos test hurts the cluster")
    group.addoption(
        "--store",
        default="local",
        choices=["local", "consul", "etcd", "zookeeper", "all"],
        help="the coordination store under the tests of clusters of processes; the suite has a choice of them on each",
    )
    group.addoption("--chaos-seed", type=int, default=1, help="what decides how")


def pytest_collection_finish() -> None:
    """What thousands of tests and their modules consist of stays to the end: the collector need not look at it."""
    gc.collect()
    gc.freeze()
