"""A broker is cut off from the other brokers, from clients and from the store, and keeps running without noticing.

Other brokers take over when its session has expired, and it does no harm when it returns.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from parley.tools.fault_proxy import FaultProxy
from tests.support.stores.etcd import etcd_servers
from tests.system.clusters import IMPATIENT, SOAK_RATE, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.test_cluster import cut_off_controller, cut_off_leader, freeze_leader, kill_leader, others_take_over

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cut off")]

ROUNDS = 10


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), proxied=True)
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_servers())
        for number, broker in cluster.brokers.items():
            link = cluster.store_links[number] = stack.enter_context(FaultProxy("127.0.0.1", etcd.nodes[0].port))
            broker.overrides["coordination.url"] = f"etcd://127.0.0.1:{link.port}/cut-off"
        stack.enter_context(cluster.running())
        stack.enter_context(watched(*cluster.brokers.values()))
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    processes.heal()
    return processes


@pytest.mark.parametrize("hurt", [cut_off_leader, pytest.param(cut_off_controller, marks=pytest.mark.soak)])
def test_others_take_over(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], hurt: Callable[[ClusterOfProcesses, str], int]
) -> None:
    number = others_take_over(cluster, new_name(), hurt)
    assert cluster.brokers[number].alive


@pytest.mark.soak
def test_again_and_again(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--chaos-seed")
    rng = random.Random(seed)
    done = [f"seed {seed}"]
    with losing_nothing(cluster, new_name(), done=done, client=IMPATIENT, rate=SOAK_RATE) as running:
        for _ in range(ROUNDS):
            running.wait_for_acknowledged(rng.randrange(100, 500))
            hurt = rng.choice((cut_off_leader, cut_off_controller, cut_off_leader, kill_leader, freeze_leader))
            done.append(f"{hurt.__name__} {hurt(cluster, running.topic)}")
            running.wait_for_acknowledged(rng.choice((1, 1000)))
            cluster.heal()
