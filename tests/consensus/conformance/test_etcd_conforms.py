"""The kit on a real etcd: stopped, restarted and wiped for real, its clients cut off by a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from consensus.conformance import ConformanceSuite
from consensus.conformance.__main__ import main
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


@pytest.mark.system
def test_the_kit_runs_on_somebody_s_server_and_leaves_nothing_there(capfd: pytest.CaptureFixture[str]) -> None:
    (servers,) = _running
    servers.etcdctl("put", "/mine", "1")
    names = ["kv-exact", "watch-outlives-disconnection", "store-restarted", "store-wiped-is-refused"]
    arguments = [word for name in names for word in ("--check", name)]
    assert main([servers.url, *arguments]) == 0
    assert "4 passed" in capfd.readouterr().out
    assert servers.etcdctl("get", "--prefix", "", "--keys-only").split() == ["/mine"]
