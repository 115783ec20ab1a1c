"""Runs the conformance kit on a Consul server, which is restarted and wiped. A proxy disconnects its clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.consensus.conformance import ConformanceSuite
from tests.support.stores.consul import ConsulServers, OwnConsulHarness, consul_servers

_running: list[ConsulServers] = []


@pytest.fixture(scope="module", autouse=True)
def _server() -> Iterator[None]:
    with consul_servers() as servers:
        _running.append(servers)
        yield
        _running.clear()


@pytest.mark.system
class TestConsul(ConformanceSuite):
    harness = staticmethod(lambda: OwnConsulHarness(_running[0]))
    slow_marks = (pytest.mark.slow,)
