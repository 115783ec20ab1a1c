"""Three brokers whose store is a real ZooKeeper: what becomes of acknowledged records when one of them goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.stores.zookeeper import ZookeeperServers, zookeeper_servers
from tests.system.clusters import ClusterOfProcesses
from tests.system.conftest import watched
from tools.checker import Trial

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster on zookeeper")]

AWAY_SECONDS = 20


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZookeeperServers]:
    with zookeeper_servers() as servers:
        yield servers


@pytest.fixture(scope="module")
def processes(zookeeper: ZookeeperServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), overrides={"coordination.url": zookeeper.url})
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    """The cluster, whole at the beginning of each test."""
    processes.heal()
    return processes


def started_trial(cluster: ClusterOfProcesses, topic: str) -> Trial:
    trial = Trial(cluster.bootstrap_servers, topic, partitions=3, producers=2, client={"socket.timeout.ms": 3000})
    trial.create_topic(3, {"min.insync.replicas": "2"})
    return trial


@pytest.mark.parametrize("who", ["leader", "controller"])
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
def test_nothing_is_lost_with_a_broker(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], who: str, frozen: bool
) -> None:
    trial = started_trial(cluster, new_name())
    with trial:
        trial.wait_for_acknowledged(300)
        number = cluster.leader(trial.topic) if who == "leader" else cluster.controller()
        broker = cluster.brokers[number]
        if frozen:
            broker.freeze()
        else:
            broker.kill()
        trial.wait_for_acknowledged(1000)
        if frozen:
            broker.resume()
        cluster.start_all()
        trial.wait_for_acknowledged(300)
    assert not trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


def test_data_flows_while_the_store_is_away(
    zookeeper: ZookeeperServers, cluster: ClusterOfProcesses, new_name: Callable[..., str]
) -> None:
    """Long enough for every session to be lost: leaders go on, and when it is back so does everything else."""
    trial = started_trial(cluster, new_name())
    with trial:
        trial.wait_for_acknowledged(300)
        zookeeper.kill()
        end = time.monotonic() + AWAY_SECONDS
        while time.monotonic() < end:
            trial.wait_for_acknowledged(100)
        zookeeper.start()
        trial.wait_for_acknowledged(300)
        _create_topic_once_there_is_a_controller(cluster, new_name())
        cluster.wait_until_in_sync()
        cluster.brokers[cluster.leader(trial.topic)].kill()
        trial.wait_for_acknowledged(1000)
    assert not trial.errors
    verdict = trial.verdict()
    assert verdict.ok, verdict


def _create_topic_once_there_is_a_controller(cluster: ClusterOfProcesses, topic: str) -> None:
    while True:
        try:
            cluster.create_topic(topic)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_CONTROLLER:  # that one means: ask again
                raise
        else:
            return
