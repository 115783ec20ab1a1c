"""Brokers whose process runs out of file descriptors or memory: the cluster continues and loses nothing."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from parley.tools.cli.invocation import STARVED
from tests.support.stores.running import STORES, below
from tests.system.clusters import IMPATIENT, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("starved")]


@pytest.fixture(params=["local", *(pytest.param(scheme, marks=pytest.mark.soak) for scheme in STORES)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterOfProcesses]:
    """Yield a cluster with segments so short that appends constantly open files."""
    overrides = {"log.roll.ms": "1000"}
    with ExitStack() as running:
        if request.param in STORES:
            store = running.enter_context(STORES[request.param]())
            overrides["coordination.url"] = below(store, f"starved-{os.getpid()}")
        cluster = ClusterOfProcesses(tmp_path, overrides=overrides)
        running.enter_context(cluster.running())
        running.enter_context(watched(*cluster.brokers.values()))
        yield cluster


def descriptors(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def address_space(broker: BrokerProcess) -> int:
    return int(Path(f"/proc/{broker.pid}/statm").read_text().split()[0]) * resource.getpagesize()


@contextmanager
def idle_clients(broker: BrokerProcess, count: int) -> Iterator[None]:
    """Open as many idle connections as the broker's backlog allows."""
    sockets = []
    for _ in range(count):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", broker.port))
        sockets.append(client)
    try:
        yield
    finally:
        for client in sockets:
            client.close()


def test_idle_clients_take_no_descriptor_that_the_cluster_needs(
    cluster: ClusterOfProcesses, new_name: Callable[..., str]
) -> None:
    with losing_nothing(cluster, new_name("d"), client=IMPATIENT, record_bytes=1000) as running:
        running.wait_for_acknowledged(60)
        broker = cluster.brokers[cluster.controller()]
        limit = descriptors(broker) + 20
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (limit, limit))
        with idle_clients(broker, 2 * limit):
            running.wait_for_acknowledged(500)
        assert broker.alive
        assert "offline" not in broker.log()
        running.wait_for_acknowledged(100)


def no_descriptor(broker: BrokerProcess) -> None:
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (12, 12))


def no_memory(broker: BrokerProcess) -> None:
    limit = address_space(broker) - (100 << 20)  # more than the reserve and what can be opened again
    resource.prlimit(broker.pid, resource.RLIMIT_AS, (limit, limit))


@pytest.mark.parametrize(
    ("starve", "lacks"),
    [(no_descriptor, "file descriptors"), pytest.param(no_memory, "memory", marks=pytest.mark.soak)],
)
def test_a_starved_broker_hands_over_and_ends(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], starve: Callable[[BrokerProcess], None], lacks: str
) -> None:
    with losing_nothing(cluster, new_name("d"), client=IMPATIENT, record_bytes=1000) as running:
        running.wait_for_acknowledged(60)
        number = cluster.leader(running.topic)
        broker = cluster.brokers[number]
        starve(broker)
        code = broker.wait()
        assert code == STARVED
        assert any(
            text in broker.log() for text in (f"short of {lacks}", f"ran out of {lacks}", "could not shut down cleanly")
        )
        assert "offline" not in broker.log()
        running.wait_for_acknowledged(100)
        broker.start()
        running.wait_for_acknowledged(60)
