"""``parley doctor`` on brokers in separate processes, and on Apache Kafka: it finds each fault by its name.

``tests/tools/doctor`` covers what a single process can stage, in every run. These tests take longer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parley.consensus.conformance.proxy import Tap
from parley.tools.fault_proxy import FaultProxy
from tests.support.kafka import Kafka4, MissingPeer, kafka_libs
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_command
from tests.system.clusters import POLL_S, ClusterOfProcesses
from tests.system.conftest import watched
from tests.system.running import BrokerProcess
from tests.system.test_damage import flip
from tests.tools.doctor.test_cluster import create_with, leave_open, produce, texts

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.xdist_group("doctor")]

TINY = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
SMALL = {
    **TINY,
    "auto.leader.rebalance.enable": "false",
    "replica.high.watermark.checkpoint.interval.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "offsets.topic.replication.factor": "1",
}
AHEAD_S = 600

Found = dict[str, list[dict[str, Any]]]


def doctor(*words: str) -> Found:
    """Run the command. Returns the findings by name, and the reasons for what was not examined as ``not-examined``."""
    done = subprocess.run(
        preloaded_command("doctor", *words, "--output", "json"),
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    data = json.loads(done.stdout)
    assert done.returncode == data["exitCode"], done.stderr
    found: Found = {"not-examined": [{"text": f"{each['part']}: {each['reason']}"} for each in data["notExamined"]]}
    for each in data["findings"]:
        found.setdefault(each["name"], []).append(each)
    return found


@contextmanager
def started(broker: BrokerProcess) -> Iterator[None]:
    """Run the broker inside the context."""
    with watched(broker):
        broker.start()
        try:
            yield
        finally:
            broker.kill()


def until_found(name: str, text: str, *words: str) -> Found:
    """Examine repeatedly until the finding appears: brokers learn of some faults with a delay."""
    while True:
        found = doctor(*words)
        if re.search(text, texts(found, name)):
            return found
        time.sleep(POLL_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    """Three brokers in two racks. The second runs an older release, and the third has a wrong clock."""
    made = ClusterOfProcesses(tmp_path_factory.mktemp("doctor"), overrides=SMALL)
    for number, broker in made.brokers.items():
        broker.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
        broker.overrides["broker.rack"] = "b" if number == 3 else "a"
        broker.overrides["log.dirs"] = f"{broker.data},{broker.folder / 'second'}"
    made.brokers[3].program = ["tests.system.skewed", str(AHEAD_S)]
    made.brokers[2].program = ["tests.system.older"]
    with made.running(), watched(*made.brokers.values()):
        yield made


def test_racks_clocks_and_releases(cluster: ClusterOfProcesses) -> None:
    create_with(cluster.bootstrap_servers, "one-rack", *([[1, 2]] * 12))
    found = until_found(
        "one-rack", "all replicas of 12 partitions are in rack a", "--bootstrap-server", cluster.bootstrap_servers
    )
    (clock,) = found["clock-off"]
    assert re.search(r"the clock of broker 3 is (599|60\d) s ahead of this machine's", clock["text"])
    assert "different releases" in texts(found, "versions-mixed")
    assert "broker 2" in texts(found, "versions-mixed")


def test_damaged_records_and_a_log_that_cannot_be_compacted(cluster: ClusterOfProcesses) -> None:
    create_with(
        cluster.bootstrap_servers,
        "compacted",
        [1],
        cleanup_policy="compact",
        segment_bytes="1048576",
        min_cleanable_dirty_ratio="0.01",
    )
    produce(cluster.bootstrap_servers, "compacted", [os.urandom(400_000) for _ in range(8)], key=b"k")
    broker = cluster.brokers[1]
    assert broker.stop() == 0
    folder = next(path for each in (broker.data, broker.folder / "second") for path in each.glob("compacted-0"))
    flip(sorted(folder.glob("*.log"))[0])
    broker.start()
    subprocess.run(
        preloaded_command("log-dirs", "--verify", "--bootstrap-server", broker.bootstrap_servers),
        check=False, capture_output=True,
    )  # fmt: skip
    words = ("--bootstrap-server", cluster.bootstrap_servers)
    found = until_found("uncleanable-log", "broker 1 cannot compact 1 log", *words)
    assert "broker 1 has damaged records in 1 replica" in texts(found, "log-damaged")


def test_a_limit_of_files(cluster: ClusterOfProcesses) -> None:
    pid = cluster.brokers[1].pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        found = doctor("--bootstrap-server", cluster.bootstrap_servers)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert "broker 1 may open 512 files" in texts(found, "descriptor-limit-low")


def test_a_log_directory_goes_offline(cluster: ClusterOfProcesses) -> None:
    """The directory fails because the broker constantly writes checkpoints into it."""
    broker = cluster.brokers[2]
    second = broker.folder / "second"
    create_with(cluster.bootstrap_servers, "spread", *([[2]] * 4))
    second.rename(broker.folder / "gone")
    words = ("--bootstrap-server", cluster.bootstrap_servers)
    try:
        until_found("log-directory-offline", "log directory .*second of broker 2 is offline", *words)
    finally:
        broker.kill()
        (broker.folder / "gone").rename(second)
        broker.start()


# --- The store ---


class Slow(Tap):
    """Delays every part of a response."""

    def to_client(self, data: bytes) -> bytes:
        time.sleep(0.6)
        return data


def file_of(folder: Path, **settings: str) -> str:
    path = folder / "doctor.properties"
    path.write_text("".join(f"{key.replace('__', '.')}={value}\n" for key, value in settings.items()))
    return str(path)


def test_the_store_is_slow_and_then_away(tmp_path: Path) -> None:
    """The broker reaches etcd over one link, and the doctor over another."""
    etcd = pytest.importorskip("tests.support.stores.etcd")
    with etcd.etcd_servers(1) as servers:
        (node,) = servers.nodes
        with FaultProxy("127.0.0.1", node.port) as link, FaultProxy("127.0.0.1", node.port, Slow) as slow:
            url = f"etcd://127.0.0.1:{link.port}/doctor"
            broker = BrokerProcess(
                tmp_path, {**TINY, "coordination.url": url, "broker.id": "1", "coordination.session.timeout.ms": "2000"}
            )
            with started(broker):
                slowly = file_of(tmp_path, coordination__url=f"etcd://127.0.0.1:{slow.port}/doctor")
                words = ("--bootstrap-server", broker.bootstrap_servers, "--interval", "0", "--config")
                found = doctor(*words, slowly)
                assert "s for a read" in texts(found, "store-slow")
                direct = file_of(tmp_path, coordination__url=url)
                assert not {"store-slow", "store-away"} & doctor(*words, direct).keys()
                link.cut()
                assert "does not respond" in texts(doctor(*words, direct), "store-away")
                link.restore()


def test_another_broker_has_the_id(cluster: ClusterOfProcesses, tmp_path: Path) -> None:
    store = cluster.brokers[1].overrides["coordination.url"]
    port = free_port()
    path = file_of(
        tmp_path, coordination__url=store, broker__id="1", log__dirs=str(tmp_path / "data"),
        listeners=f"PLAINTEXT://127.0.0.1:{port}",
    )  # fmt: skip
    found = doctor(path)
    assert f"broker.id 1 is used by another broker, at {cluster.brokers[1].bootstrap_servers}" in texts(
        found, "duplicate-broker-id"
    )
    path = file_of(
        tmp_path, coordination__url=store, broker__id="1",
        log__dirs=cluster.brokers[1].overrides["log.dirs"], listeners=f"PLAINTEXT://127.0.0.1:{port}",
    )  # fmt: skip
    assert f"is locked by process {cluster.brokers[1].pid} (" in texts(doctor(path), "log-directory-locked")


class BrokerOnSmallDisk(BrokerProcess):
    """A broker whose data is on a file system of 64 MiB, which only it and its children see."""

    preloaded = False

    def command(self) -> list[str]:
        self.data.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size=64m tmpfs {self.data} && exec "$@"'
        return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh", *super().command()]

    @property
    def data_of_broker(self) -> Path:
        """Return the data folder as the broker sees it."""
        return Path(f"/proc/{self.pid}/root{self.data}")


def may_mount() -> bool:
    words = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a file system in a namespace")
def test_a_disk_fills_up(tmp_path: Path) -> None:
    broker = BrokerOnSmallDisk(tmp_path, {**TINY, "broker.id": "1"})
    with started(broker):
        words = ("--bootstrap-server", broker.bootstrap_servers)
        assert not {"disk-full", "disk-nearly-full"} & doctor(*words).keys()
        with (broker.data_of_broker / "ballast").open("wb") as ballast:
            for left, name in ((4 << 20, "disk-nearly-full"), (100 << 10, "disk-full")):
                volume = os.statvfs(broker.data_of_broker)
                ballast.write(bytes(volume.f_bavail * volume.f_frsize - left))
                ballast.flush()
                found = doctor(*words)
                assert f"the disk of {broker.data} on broker 1 has" in texts(found, name)
                path = file_of(tmp_path, log__dirs=str(broker.data_of_broker), listeners="PLAINTEXT://127.0.0.1:0")
                assert f"the disk of {broker.data_of_broker} has" in texts(doctor(path), name)


# --- Apache Kafka ---


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka4]:
    try:
        kafka_libs()
    except MissingPeer as missing:
        pytest.skip(str(missing))
    running = Kafka4(
        tmp_path_factory.mktemp("kafka"),
        {"transaction.partition.verification.enable": "false", "transaction.max.timeout.ms": "1000"},
    )
    yield running
    running.close()


def test_apache_kafka(kafka: Kafka4) -> None:
    """What Apache Kafka does not report is listed as not examined, and does not change the exit code."""
    create_with(kafka.bootstrap_servers, "hung", [1])
    leave_open(kafka.bootstrap_servers, "hung")
    found = doctor("--bootstrap-server", kafka.bootstrap_servers, "--interval", "0")
    assert "a transaction hangs in hung-0" in texts(found, "hanging-transaction")
    reasons = texts(found, "not-examined")
    assert "metrics: Apache Kafka has them in JMX, which is not read" in reasons
    assert "coordination store: Apache Kafka has none" in reasons
    assert "certificates: this client does not use TLS" in reasons
    assert (
        "checks that require Parley's brokers: broker-unwell, hosts-shared, hosts-too-few, client-throttled" in reasons
    )
    assert len(found["not-examined"]) == 4
