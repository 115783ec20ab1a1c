"""Runs the conformance kit on a ZooKeeper server, which is stopped, restarted and wiped.

A proxy disconnects its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.consensus.conformance import ConformanceSuite
from tests.support.stores.zookeeper import OwnZookeeperHarness, ZookeeperServers, zookeeper_servers

_running: list[ZookeeperServers] = []


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with zookeeper_servers() as servers:
        _running.append(servers)
        yield
        _running.clear()


@pytest.mark.system
class TestZookeeper(ConformanceSuite):
    harness = staticmethod(lambda: OwnZookeeperHarness(_running[0]))
    slow_marks = (pytest.mark.slow,)
