"""What holds for all tests: how many examples are tried, and what only ``make soak`` runs."""

from __future__ import annotations

import gc

import pytest
from hypothesis import settings

# How long an example takes says nothing on a machine that does other things besides.
settings.register_profile("parley", deadline=None, max_examples=30)
settings.register_profile("soak", deadline=None, max_examples=120)
settings.load_profile("parley")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parley's own tests")
    group.addoption("--chaos-rounds", type=int, default=15, help="how often the chaos test hurts the cluster")
    group.addoption(
        "--store",
        default="local",
        choices=["local", "consul", "etcd", "zookeeper", "all"],
        help="the coordination store under the tests of clusters of processes; the suite has a choice of them on each",
    )
    group.addoption("--chaos-seed", type=int, default=1, help="what decides how")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long tests only if they are asked for with ``-m soak``."""
    if "soak" in config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


def pytest_collection_finish() -> None:
    """Exempt the thousands of collected tests and their modules from garbage collection: they live to the end."""
    gc.collect()
    gc.freeze()
