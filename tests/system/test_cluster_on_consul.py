"""Three brokers whose store is a real Consul, with its TTL of at least 10 s: who goes is replaced long before that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.stores.consul import ConsulServers, consul_servers
from tests.system.clusters import ClusterOfProcesses
from tests.system.conftest import watched
from tools.checker import Trial

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster on consul")]

AWAY_SECONDS = 20


@pytest.fixture(scope="module")
def consul() -> Iterator[ConsulServers]:
    with consul_servers(ttl_ms_min=10_000) as servers:
        yield servers


@pytest.fixture(scope="module")
def processes(consul: ConsulServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    url = f"consul://{consul.hosts}"
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), overrides={"coordination.url": url})
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def trial(processes: ClusterOfProcesses, new_name: Callable[..., str]) -> Trial:
    """Producers, and a topic on a cluster that is whole."""
    processes.heal()
    client = {"socket.timeout.ms": 3000}
    trial = Trial(processes.bootstrap_servers, new_name(), partitions=3, producers=2, client=client)
    trial.create_topic(3, {"min.insync.replicas": "2"})
    return trial


def _nothing_lost(trial: Trial) -> None:
    assert not trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


@pytest.mark.parametrize(("who", "frozen"), [("leader", True), ("controller", False), ("controller", True)])
def test_nothing_is_lost_with_a_broker(processes: ClusterOfProcesses, trial: Trial, who: str, frozen: bool) -> None:
    with trial:
        trial.wait_for_acknowledged(300)
        number = processes.leader(trial.topic) if who == "leader" else processes.controller()
        broker = processes.brokers[number]
        if frozen:
            broker.freeze()
        else:
            broker.kill()
        trial.wait_for_acknowledged(1000)
        if frozen:
            broker.resume()
        processes.start_all()
        trial.wait_for_acknowledged(300)
    _nothing_lost(trial)


def test_data_flows_while_the_store_is_away(consul: ConsulServers, processes: ClusterOfProcesses, trial: Trial) -> None:
    """Long enough for every session to be lost: leaders go on, and when it is back so does everything else."""
    with trial:
        trial.wait_for_acknowledged(300)
        consul.kill()
        end = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < end:
            trial.wait_for_acknowledged(100)
        consul.start()
        trial.wait_for_acknowledged(300)
        processes.wait_until_in_sync()
        processes.brokers[processes.leader(trial.topic)].kill()
        trial.wait_for_acknowledged(1000)
    _nothing_lost(trial)
