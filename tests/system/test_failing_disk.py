"""Brokers with two log directories, one of which fails: the partitions in the other one continue.

The failures are ones that any user can cause: a removed directory, a checkpoint that links to a full device, and files
that must not grow.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.clusters import IMPATIENT, ClusterOfProcesses, losing_nothing
from tests.system.conftest import watched
from tests.system.running import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("failing disk")]

FILE_BYTES_MAX = 64 << 10
WAIT_SECONDS = 60


def directories(broker: BrokerProcess) -> list[Path]:
    return [broker.folder / "one", broker.folder / "two"]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    folder = tmp_path_factory.mktemp("failing-disk")
    cluster = ClusterOfProcesses(folder, overrides={"replica.high.watermark.checkpoint.interval.ms": "200"})
    for broker in cluster.brokers.values():
        broker.overrides["log.dirs"] = ",".join(map(str, directories(broker)))
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    """Return the cluster, with all brokers running at the beginning of each test."""
    processes.heal()
    return processes


def partitions_in(directory: Path, topic: str) -> set[int]:
    return {int(each.name.rpartition("-")[2]) for each in directory.glob(f"{topic}-[0-9]*")}


def taken_away(broker: BrokerProcess, directory: Path) -> str:
    directory.rename(directory.with_name("gone"))
    return "No such file or directory"


def full(broker: BrokerProcess, directory: Path) -> str:
    while True:
        try:
            (directory / "replication-offset-checkpoint.tmp").symlink_to("/dev/full")
        except FileExistsError:  # just now one is being written
            continue
        return "No space left on device"


def given_back(directory: Path) -> None:
    if directory.with_name("gone").exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.with_name("gone").rename(directory)
    (directory / "replication-offset-checkpoint.tmp").unlink(missing_ok=True)


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def wait_until_logged(broker: BrokerProcess, text: str, start: int) -> None:
    """Wait for a text in the log from byte ``start`` on. A thread writes the log with a short delay."""
    wait_for(lambda: text in broker.log(start), lambda: f"nothing of {text!r} in the log")


def isrs(cluster: ClusterOfProcesses, topic: str) -> dict[int, set[int]]:
    return {each.id: set(each.isrs) for each in cluster.metadata(topic).topics[topic].partitions.values()}


@pytest.mark.parametrize("fail", [taken_away, pytest.param(full, marks=pytest.mark.soak)])
def test_only_its_partitions_go_offline(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], fail: Callable[[BrokerProcess, Path], str]
) -> None:
    with losing_nothing(cluster, new_name("d"), client=IMPATIENT) as running:
        running.wait_for_acknowledged(60)
        number = cluster.leader(running.topic)
        broker = cluster.brokers[number]
        failing = next(each for each in directories(broker) if 0 in partitions_in(each, running.topic))
        lost = partitions_in(failing, running.topic)
        assert 0 < len(lost) < 3, "both directories have some"
        start = broker.log_size()
        error = fail(broker, failing)
        wait_for(
            lambda: {p for p, isr in isrs(cluster, running.topic).items() if number not in isr} == lost,
            lambda: f"not in the ISRs of {lost} alone: {isrs(cluster, running.topic)}",
        )
        for said in (f"{failing} is offline", error, "then restart the broker"):
            wait_until_logged(broker, said, start)
        running.wait_for_acknowledged(100)
        assert broker.alive
        broker.kill()
        given_back(failing)
        cluster.heal()
        running.wait_for_acknowledged(60)


def test_a_log_that_may_not_grow(cluster: ClusterOfProcesses, new_name: Callable[..., str]) -> None:
    """Appends fail, not only checkpoints, as on a full disk or with an exhausted quota."""
    with losing_nothing(cluster, new_name("d"), client=IMPATIENT, record_bytes=1000) as running:
        running.wait_for_acknowledged(60)
        number = cluster.leader(running.topic)
        broker = cluster.brokers[number]
        start = broker.log_size()
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
        wait_for(
            lambda: all(number not in isr for isr in isrs(cluster, running.topic).values()),
            lambda: f"in an ISR still: {isrs(cluster, running.topic)}",
        )
        running.wait_for_acknowledged(100)
        wait_until_logged(broker, "File too large", start)
        broker.kill()
        cluster.heal()
        running.wait_for_acknowledged(60)
