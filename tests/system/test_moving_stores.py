"""A cluster of processes moves from store to store while producers and consumers work without an error."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from parley.tools.checker import Trial
from tests.support.preloaded import preloaded_command
from tests.support.stores.running import STORES
from tests.system.clusters import IMPATIENT, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("moving stores")]

ROUNDS = 6  # in tests/broker/store_move one dies at each step; this one at any moment
MOVE_SECONDS = 120
SETTINGS = {"coordination.session.timeout.ms": "6000"}
"""Long timeouts: brokers import a client library during the move, and a machine that runs tests may be slow."""


def parley(*words: str) -> subprocess.CompletedProcess[str]:
    command = preloaded_command(*words)
    return subprocess.run(command, capture_output=True, text=True, timeout=MOVE_SECONDS, check=False)


def move(cluster: ClusterOfProcesses, url: str) -> None:
    """Move with ``parley coordination migrate``, and check that the cluster is on the new store."""
    moved = parley("coordination", "migrate", "--to", url, "--bootstrap-server", cluster.bootstrap_servers)
    assert moved.stdout == f"The cluster has moved. It uses {url}.\n", moved.stdout + moved.stderr


def state(url: str) -> str:
    shown = parley("coordination", "status", url, "--json")
    if shown.returncode:
        assert "The store does not belong to a Parley cluster" in shown.stderr, shown.stderr
        return "empty"
    told: str = json.loads(shown.stdout)["state"]
    return told


def longest_pause(trial: Trial) -> float:
    """Return the longest time without an acknowledgement to any producer, in seconds."""
    times = sorted(at for each in trial.history.producers.values() for at, _ in each.acknowledged_at)
    return max(after - before for before, after in itertools.pairwise(times))


@pytest.fixture(scope="module")
def store() -> Iterator[Callable[[str], str]]:
    """Return the URL of a server of a kind, which is started at the first use."""
    with ExitStack() as running:
        yield functools.cache(lambda kind: running.enter_context(STORES[kind]()))


@pytest.mark.soak
def test_a_cluster_goes_through_every_store(
    store: Callable[[str], str], tmp_path: Path, new_name: Callable[..., str]
) -> None:
    way = [store("zookeeper"), store("etcd"), store("consul"), f"local://{tmp_path}/store", store("zookeeper")]
    cluster = ClusterOfProcesses(tmp_path, overrides={**SETTINGS, "coordination.url": way[0]})
    with cluster.running(), watched(*cluster.brokers.values()):
        with losing_nothing(cluster, new_name(), client=IMPATIENT) as trial:
            trial.wait_for_acknowledged(60)
            for url in way[1:]:
                move(cluster, url)
                trial.wait_for_acknowledged(60)
                cluster.create_topic(new_name())
        print(f"longest pause {longest_pause(trial):.2f} s")
        cluster.brokers[1].kill()
        cluster.heal()


@pytest.mark.parametrize("away", ["frozen", pytest.param("stopped", marks=pytest.mark.soak)])
def test_a_broker_that_was_away_follows(
    store: Callable[[str], str], tmp_path: Path, new_name: Callable[..., str], away: str
) -> None:
    cluster = ClusterOfProcesses(tmp_path, overrides=SETTINGS)
    with cluster.running(), watched(*cluster.brokers.values()):
        with losing_nothing(cluster, new_name(), client=IMPATIENT) as trial:
            trial.wait_for_acknowledged(60)
            number = cluster.controller() if away == "frozen" else 1 + cluster.controller() % 3
            broker = cluster.brokers[number]
            if away == "frozen":
                broker.freeze()
            else:
                broker.kill()
            trial.wait_for_acknowledged(60)
            others = ",".join(each.bootstrap_servers for each in cluster.brokers.values() if each is not broker)
            url = f"{store('etcd')}/{away}"
            moved = parley("coordination", "migrate", "--to", url, "--bootstrap-server", others)
            assert moved.returncode == 0, moved.stdout + moved.stderr
            trial.wait_for_acknowledged(60)
            cluster.heal()
            trial.wait_for_acknowledged(60)
        members = json.loads(parley("coordination", "status", url, "--json").stdout)["members"]
        assert [each["broker"] for each in members] == [1, 2, 3]


@pytest.mark.soak
def test_a_controller_killed_at_any_moment_leaves_one_store_in_charge(
    tmp_path: Path, new_name: Callable[..., str]
) -> None:
    rng = Random(5)
    cluster = ClusterOfProcesses(tmp_path, overrides=SETTINGS)
    ends = [f"local://{tmp_path}/coordination", f"local://{tmp_path}/other"]
    with (
        cluster.running(),
        watched(*cluster.brokers.values()),
        losing_nothing(cluster, new_name(), client=IMPATIENT) as trial,
    ):
        trial.wait_for_acknowledged(60)
        for _ in range(ROUNDS):
            (here,) = [url for url in ends if state(url) == "in charge"]
            (there,) = [url for url in ends if url != here]
            logged = {broker: broker.log_size() for broker in cluster.brokers.values()}
            words = ["coordination", "migrate", "--to", there, "--bootstrap-server", cluster.bootstrap_servers]
            tool = subprocess.Popen(preloaded_command(*words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            assert tool.stdout is not None
            controller = _wait_for_begin(logged)
            trial.wait_for_acknowledged(rng.randrange(1, 12))
            controller.kill()
            tool.communicate(timeout=MOVE_SECONDS)
            trial.wait_for_acknowledged(60)
            cluster.heal()
            assert sorted(state(url) == "in charge" for url in ends) == [False, True]


def _wait_for_begin(logged: dict[BrokerProcess, int]) -> BrokerProcess:
    """Wait until a controller logs the first step after the earlier lines. Returns the id of that broker."""
    while True:
        for broker, start in logged.items():
            if "moving to another store" in broker.log(start):
                return broker
        time.sleep(0.002)
