"""Three brokers on a real store: no acknowledged record is lost when a broker or the store fails.

Consul runs with its default minimum TTL of 10 s. Brokers that fail are replaced long before that.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from tests.support.stores.consul import consul_servers
from tests.support.stores.etcd import etcd_servers
from tests.support.stores.servers import Servers
from tests.support.stores.zookeeper import zookeeper_servers
from tests.system.clusters import IMPATIENT, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched

STORES: dict[str, Callable[[], AbstractContextManager[Servers]]] = {
    "consul": partial(consul_servers, ttl_ms_min=10_000),
    "etcd": etcd_servers,
    "zookeeper": zookeeper_servers,
}
pytestmark = pytest.mark.slow
AWAY_SECONDS = {"Consul": 20, "etcd": 8, "ZooKeeper": 8}
"""How long the store is stopped: until all brokers' sessions have expired. They last 2 s, or 10 s with Consul's
defaults."""


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with STORES[request.param]() as servers:
        yield servers


@pytest.fixture(scope="module")
def processes(store: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    url = store.url.partition("?")[0]
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), overrides={"coordination.url": url})
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    """Return the cluster, with all brokers running at the beginning of each test."""
    processes.heal()
    return processes


QUICK = {("consul", "controller", "killed"), ("zookeeper", "leader", "frozen")}
"""On etcd, the next test kills a leader."""


@pytest.mark.parametrize(
    ("store", "who", "how"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.soak)
        for each in itertools.product(STORES, ("controller", "leader"), ("killed", "frozen"))
    ],
    indirect=["store"],
    scope="module",
)
def test_nothing_is_lost_with_a_broker(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], who: str, how: str
) -> None:
    with losing_nothing(cluster, new_name(), client=IMPATIENT) as trial:
        trial.wait_for_acknowledged(60)
        number = cluster.leader(trial.topic) if who == "leader" else cluster.controller()
        broker = cluster.brokers[number]
        if how == "frozen":
            broker.freeze()
        else:
            broker.kill()
        trial.wait_for_acknowledged(200)
        if how == "frozen":
            broker.resume()
        cluster.start_all()
        trial.wait_for_acknowledged(60)


@pytest.mark.parametrize(
    "store",
    [*(pytest.param(each, marks=pytest.mark.soak) for each in ("consul", "zookeeper")), "etcd"],
    indirect=True,
    scope="module",
)
def test_data_flows_while_the_store_is_away(
    store: Servers, cluster: ClusterOfProcesses, new_name: Callable[..., str]
) -> None:
    """The outage is long enough for every session to expire. Leaders continue, and everything recovers with
    the store."""
    with losing_nothing(cluster, new_name(), client=IMPATIENT) as trial:
        trial.wait_for_acknowledged(60)
        store.kill()
        end = time.monotonic() + AWAY_SECONDS[store.product]
        while time.monotonic() < end:
            trial.wait_for_acknowledged(20)
        store.start()
        trial.wait_for_acknowledged(60)
        cluster.create_topic(new_name())
        cluster.wait_until_in_sync()
        cluster.brokers[cluster.leader(trial.topic)].kill()
        trial.wait_for_acknowledged(200)
