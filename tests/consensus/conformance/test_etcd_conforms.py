"""Runs the conformance kit on an etcd server, which is stopped, restarted and wiped.

A proxy disconnects its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.consensus.conformance import ConformanceSuite
from tests.support.stores.etcd import EtcdServers, OwnEtcdHarness, etcd_servers

_running: list[EtcdServers] = []


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with etcd_servers() as servers:
        _running.append(servers)
        yield
        _running.clear()


@pytest.mark.system
class TestEtcd(ConformanceSuite):
    harness = staticmethod(lambda: OwnEtcdHarness(_running[0]))
    slow_marks = (pytest.mark.slow,)
