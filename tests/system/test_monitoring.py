"""A real Prometheus watches a cluster of processes: every panel has data, and alerts fire during their fault.

Only the waits and windows of the alerts are shortened (``quick_rules``). Faults that cannot be staged in seconds are in
``tests/deploy/test_monitoring_rules.py``, with synthetic series.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from parley.broker.docs.monitoring.alerts import ALERTS, rules_file
from parley.broker.docs.monitoring.dashboards import DASHBOARDS
from parley.broker.docs.monitoring.page import KAFKA_0_9
from parley.tools.checker.trial import create
from parley.tools.ending_with_parent import ending_with_parent
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_command
from tests.support.stores.of_tools import store_server
from tests.system.clusters import POLL_S, ClusterOfProcesses
from tests.system.conftest import watched

pytestmark = [pytest.mark.soak, pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.xdist_group("monitoring")]

WAIT_S = 300
SCRAPE = "3s"
"""The scrape interval and timeout. On a busy machine a scrape takes a second."""
WINDOW = "40s"
"""The window of rates and increases. Some scrapes may fail in it."""
SMALL_DISK = "48m"
FILLING_RECORDS = 4000
"""20 MB: more than the full disk has left for one partition of four, less than the disk holds without its filler."""
STORE_ERRORS = "parley_store_errors_total"
"""A series for each kind of error, starting with the first one."""
LONE_TOPIC = "lone"
"""A topic with one replica, on broker 3."""
SETTINGS = {
    "coordination.session.timeout.ms": "6000",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "connection.failed.authentication.delay.ms": "0",
    "log.segment.delete.delay.ms": "1000",
    "log.segment.bytes": "1048576",
    "log.flush.interval.messages": "1000",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="right";'
    ),
}


def quick_rules() -> str:
    """Return the alerts' rules, with short waits and windows."""
    return re.sub(r"\[(5m|10m|15m|1h)\]", f"[{WINDOW}]", re.sub(r"for: \w+", "for: 0s", rules_file()))


class Prometheus:
    """A Prometheus server for this test, and its query results."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        folder.mkdir()
        (folder / "alerts.yml").write_text(quick_rules())
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {
                        "scrape_interval": SCRAPE,
                        "scrape_timeout": SCRAPE,
                        "evaluation_interval": "1s",
                    },
                    "rule_files": ["alerts.yml"],
                    "scrape_configs": [
                        {
                            "job_name": "parley",
                            "static_configs": [{"targets": targets, "labels": {"cluster": "main"}}],
                        }
                    ],
                }
            )
        )
        self._folder = folder
        self._url = f"http://127.0.0.1:{free_port()}"

    @contextmanager
    def running(self) -> Iterator[Prometheus]:
        command = [
            "prometheus",
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={self._url.removeprefix('http://')}",
        ]
        with (self._folder / "server.log").open("wb") as log:
            process = subprocess.Popen(ending_with_parent(command), stdout=log, stderr=log)
        try:
            until(self._is_ready, lambda: (self._folder / "server.log").read_text()[-2000:])
            yield self
        finally:
            process.terminate()
            process.wait()

    def _is_ready(self) -> bool:
        try:
            return bool(urlopen(f"{self._url}/-/ready", timeout=WAIT_S).status == 200)
        except URLError:
            return False

    def query(self, expr: str) -> list[Any]:
        """Return the current series of an expression."""
        expr = expr.replace("$__rate_interval", WINDOW)
        expr = re.sub(r"\$\w+", ".*", expr)
        expr = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", expr)
        with urlopen(f"{self._url}/api/v1/query?{urlencode({'query': expr})}", timeout=WAIT_S) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found

    def firing(self) -> set[str]:
        """Return the alerts that fire."""
        with urlopen(f"{self._url}/api/v1/alerts", timeout=WAIT_S) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def until_firing(self, *names: str) -> None:
        assert set(names) <= {alert.name for alert in ALERTS}
        seen: set[str] = set()  # an alert about a moment may end before the next one begins

        def all_seen() -> bool:
            seen.update(self.firing())
            return set(names) <= seen

        until(all_seen, lambda: f"of {names} fire only {seen}")

    def until_calm(self, *names: str) -> None:
        until(lambda: not set(names) & self.firing(), lambda: f"{set(names) & self.firing()} go on")


def until(holds: Callable[[], bool], what: Callable[[], str]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < give_up, what()
        time.sleep(POLL_S)


class Traffic:
    """Clients of every kind, until ``close``."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._ended = threading.Event()
        self.consumes = threading.Event()
        self.consumes.set()
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._transact, self._consume)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._run(
            "consume", "--topic", "orders", "--share", "--group", "workers", "--bootstrap-server", self._bootstrap
        )
        worker = self._folder / "worker.properties"
        port = free_port()
        told = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "connect-cluster",
            **{f"{what}.storage.topic": f"connect-{what}s" for what in ("config", "offset", "status")},
            **{f"{what}.storage.replication.factor": "3" for what in ("config", "offset", "status")},
            "offset.flush.interval.ms": "500",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "listeners": f"http://127.0.0.1:{port}",
        }
        worker.write_text("".join(f"{key}={value}\n" for key, value in told.items()))
        self._run("connect", "distributed", str(worker))
        sink = {"connector.class": "FileStreamSink", "file": str(self._folder / "sink"), "topics": "orders"}

        def is_created() -> bool:
            url = f"http://127.0.0.1:{port}/connectors/copy/config"
            request = Request(url, json.dumps(sink).encode(), {"Content-Type": "application/json"}, method="PUT")
            try:
                return bool(urlopen(request, timeout=WAIT_S).status in (200, 201))
            except OSError:
                return False

        until(is_created, lambda: (self._folder / "connect.log").read_text()[-2000:])

    def close(self) -> None:
        self._ended.set()
        for process in self._processes:
            process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()

    def _run(self, *words: str) -> None:
        with (self._folder / f"{words[0]}.log").open("wb") as log:
            command = ending_with_parent(preloaded_command(*words), signal.SIGKILL)
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 20, "client.id": "shop"})
        while not self._ended.wait(0.05):
            for number in range(20):
                producer.produce("orders", b"x" * 100, str(number).encode())
            producer.poll(0)
        producer.purge()

    def _transact(self) -> None:
        while not self._ended.is_set():
            producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": "t"})
            try:
                producer.init_transactions(30)
                while not self._ended.wait(0.2):
                    producer.begin_transaction()
                    producer.produce("orders", b"in a transaction")
                    producer.commit_transaction(30)
            except KafkaException:  # brokers are down at times
                self._ended.wait(1)

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "audit",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe(["orders"])
        while not self._ended.is_set():
            self.consumes.wait(0.5)
            if self.consumes.is_set():
                consumer.consume(1000, 0.2)
        consumer.close()


class Watched:
    """The cluster, its store and its Prometheus."""

    def __init__(self, cluster: ClusterOfProcesses, prometheus: Prometheus, traffic: Traffic, store_pid: int) -> None:
        self.cluster = cluster
        self.prometheus = prometheus
        self.traffic = traffic
        self.store_pid = store_pid


def pid_of_store(folder: Path) -> int:
    """Return the process whose command line names the folder's data."""
    (pid,) = [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdecimal() and f"--data-dir={folder}/data".encode() in _command_line(each)
        and b"etcd" in _command_line(each).split(b"\0")[0]
    ]  # fmt: skip
    return pid


def _command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """Mount a separate file system, if this user may."""
    path.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(path)]
    is_mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitoring")
    with ExitStack() as stack:
        url = stack.enter_context(store_server("etcd", folder / "store"))
        cluster = ClusterOfProcesses(folder, overrides={**SETTINGS, "coordination.url": url})
        for broker in cluster.brokers.values():
            logins = f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"
            broker.overrides["listeners"] = f"PLAINTEXT://{broker.bootstrap_servers},{logins}"
            broker.overrides["metrics.listener"] = f"127.0.0.1:{free_port()}"
        last = cluster.brokers[3]
        stack.enter_context(small_disk(last.folder / "small"))
        last.overrides["log.dirs"] = f"{last.data},{last.folder / 'small'}"
        stack.enter_context(cluster.running())
        stack.enter_context(watched(*cluster.brokers.values()))
        cluster.create_topic("orders", 6)
        cluster.create_topic("filling", 4)
        create(cluster.admin, NewTopic(LONE_TOPIC, 1, replica_assignment=[[3]]))
        traffic = Traffic(cluster.bootstrap_servers, folder)
        stack.callback(traffic.close)
        traffic.start()
        targets = [broker.overrides["metrics.listener"] for broker in cluster.brokers.values()]
        prometheus = stack.enter_context(Prometheus(folder / "prometheus", targets).running())
        sound = (
            f"count_over_time(parley_store_session_expirations_total[{WINDOW}]) >= 2"  # an increase needs two samples
        )
        until(lambda: len(prometheus.query(sound)) == len(targets), lambda: "a broker was not scraped twice")
        yield Watched(cluster, prometheus, traffic, pid_of_store(folder / "store"))


def queries_of_panels() -> list[str]:
    return [query.expr for each in DASHBOARDS for panel in each.panels for query in panel.queries]


def test_every_panel_and_every_row_of_kafkas_table_has_data(everything: Watched) -> None:
    queries = queries_of_panels() + [query for _, _, query in KAFKA_0_9]
    empty = [query for query in queries if STORE_ERRORS not in query]  # there was no error yet
    _limit(everything, "producer_byte_rate=1000000000")  # quotas have no series before there is one

    def all_have_data() -> bool:
        empty[:] = [query for query in empty if not everything.prometheus.query(query)]
        return not empty

    until(all_have_data, lambda: "\n".join(["these queries return nothing:", *empty]))


def test_alerts_about_clients(everything: Watched) -> None:
    cluster, prometheus, traffic = everything.cluster, everything.prometheus, everything.traffic
    traffic.consumes.clear()
    _limit(everything, "producer_byte_rate=2000")
    address = cluster.brokers[1].overrides["listeners"].rpartition("//")[2]
    guessing = threading.Thread(target=lambda: _guess(address, prometheus))
    guessing.start()
    prometheus.until_firing("ParleyAuthenticationFailures")
    guessing.join()
    scanning = threading.Thread(target=lambda: _scan(cluster.brokers[2].port, prometheus))
    scanning.start()
    prometheus.until_firing("ParleyProtocolErrors")
    scanning.join()
    prometheus.until_firing("ParleyThrottling")
    _limit(everything, "producer_byte_rate=1000000000")
    prometheus.until_firing("ParleyGroupLagGrowing")
    traffic.consumes.set()
    names = ("ParleyAuthenticationFailures", "ParleyProtocolErrors", "ParleyThrottling", "ParleyGroupLagGrowing")
    prometheus.until_calm(*names)


def _guess(address: str, prometheus: Prometheus) -> None:
    """Log in with a wrong password until the alert fires. Returning destroys the producer, whose thread would otherwise
    continue to log in."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "guess",
            "reconnect.backoff.ms": 50,
            "log_level": 0,
        }
    )
    while "ParleyAuthenticationFailures" not in prometheus.firing():
        producer.poll(0.1)


def _scan(port: int, prometheus: Prometheus) -> None:
    while "ParleyProtocolErrors" not in prometheus.firing():
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(1)


def _limit(everything: Watched, quota: str) -> None:
    run(everything, "configs", "--alter", "--add-config", quota, "--entity-type", "clients", "--entity-name", "shop")


def run(everything: Watched, *words: str) -> None:
    """Type a command of ``parley``."""
    command = preloaded_command(*words, "--bootstrap-server", everything.cluster.bootstrap_servers)
    subprocess.run(command, check=True, capture_output=True)


def test_alerts_about_the_store_and_the_controller(everything: Watched) -> None:
    cluster, prometheus = everything.cluster, everything.prometheus
    controller = cluster.brokers[cluster.controller()]
    os.kill(everything.store_pid, signal.SIGSTOP)
    try:
        prometheus.until_firing("ParleyStoreAway", "ParleyStoreSessionLost")
        errors = [query for query in queries_of_panels() if STORE_ERRORS in query]
        until(lambda: all(map(prometheus.query, errors)), lambda: f"{errors} return nothing")
        health = _health(next(each for each in cluster.brokers.values() if each is not controller))
        assert health["status"] == "degraded"
        assert "the coordination store has not responded for" in health["problems"]["coordination store"]
        controller.kill()
        prometheus.until_firing("ParleyBrokerDown", "ParleyNoController")
    finally:
        os.kill(everything.store_pid, signal.SIGCONT)
    cluster.heal()
    prometheus.until_calm("ParleyStoreAway", "ParleyStoreSessionLost", "ParleyBrokerDown", "ParleyNoController")
    assert _health(controller)["status"] == "ready"


def _health(broker: Any) -> Any:
    with urlopen(f"http://{broker.overrides['metrics.listener']}/healthz", timeout=WAIT_S) as answer:
        return json.load(answer)


def test_alerts_about_brokers_that_are_gone(everything: Watched) -> None:
    cluster, prometheus = everything.cluster, everything.prometheus
    for number in (2, 3):
        cluster.brokers[number].kill()
    names = ("ParleyBrokerDown", "ParleyUnderReplicated", "ParleyUnderMinIsr", "ParleyOfflinePartitions")
    prometheus.until_firing(*names)
    cluster.heal()
    prometheus.until_calm(*names)


def test_an_alert_about_an_unclean_election(everything: Watched) -> None:
    cluster, prometheus = everything.cluster, everything.prometheus
    topic = NewTopic("risky", 1, replica_assignment=[[2, 3]], config={"min.insync.replicas": "1"})
    create(cluster.admin, topic)
    cluster.brokers[3].kill()
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    producer.produce("risky", b"only broker 2 has this")
    assert producer.flush(WAIT_S) == 0
    cluster.brokers[2].kill()
    cluster.brokers[3].start()
    prometheus.until_firing("ParleyOfflinePartitions")
    run(everything, "elect-leaders", "--election-type", "unclean", "--topic", "risky", "--partition", "0")
    prometheus.until_firing("ParleyUncleanElection")
    cluster.heal()
    prometheus.until_calm("ParleyUncleanElection", "ParleyOfflinePartitions")


def test_alerts_about_a_full_disk(everything: Watched) -> None:
    cluster, prometheus, admin = everything.cluster, everything.prometheus, everything.cluster.admin
    disk = cluster.brokers[3].folder / "small"
    if not disk.is_mount():
        pytest.skip("this user may not mount a file system")
    filler = disk / "filler"
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    filler.write_bytes(bytes(max(0, free - (4 << 20))))
    prometheus.until_firing("ParleyDiskNearlyFull", "ParleyDiskFilling")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 20})
    for number in range(FILLING_RECORDS):
        producer.produce("filling", os.urandom(5000), partition=number % 4)
    producer.flush(WAIT_S)
    prometheus.until_firing("ParleyLogDirectoryOffline")
    filler.unlink()  # as the procedure says: make room, restart the broker
    cluster.brokers[3].stop()
    cluster.heal()
    prometheus.until_calm("ParleyLogDirectoryOffline")
    admin.delete_topics(["filling"])["filling"].result()
    prometheus.until_calm("ParleyDiskNearlyFull")
