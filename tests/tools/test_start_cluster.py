"""``parley start --brokers``: the settings of each broker, and the life cycle of the processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from parley.protocol.client import Client
from parley.protocol.messages.metadata import DescribeClusterRequest
from parley.storage.log_directory import LogDirectory
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.ports import free_or_any
from parley.tools.cli.start_cluster import Given, labeled, plans, refuse_ports_in_use
from tests.support.ports import free_port
from tests.tools.conftest import Parley


def test_each_broker_has_its_own_port_and_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = [plan.settings for plan in plans(Given({"num.partitions": "5"}), 3)]
    assert [each["broker.id"] for each in found] == ["1", "2", "3"]
    assert [each["listeners"] for each in found] == [f"PLAINTEXT://127.0.0.1:{9092 + n}" for n in range(3)]
    assert [each["log.dirs"] for each in found] == [f"{tmp_path}/parley-data/broker-{n}" for n in (1, 2, 3)]
    assert {each["coordination.url"] for each in found} == {f"local://{tmp_path}/parley-data/coordination"}
    assert {each["num.partitions"] for each in found} == {"5"}
    assert {each["default.replication.factor"] for each in found} == {"3"}
    assert {each["broker.host.label"] for each in found} == {socket.gethostname()}
    assert len({each["metrics.listener"] for each in found}) == 3 or "127.0.0.1:0" in found[0]["metrics.listener"]


def test_ids_and_ports_start_at_those_of_the_file() -> None:
    given = {
        "node.id": "7",
        "listeners": "PLAINTEXT://:9092,INSIDE://10.0.0.1:19092",
        "advertised.listeners": "PLAINTEXT://example:9092,INSIDE://10.0.0.1:19092",
        "log.dirs": "/a, /b",
        "coordination.url": "etcd://somewhere",
        "broker.host.label": "rack-unit-7",
    }
    first, second = (plan.settings for plan in plans(Given(given, file=Path("server.properties")), 2))
    assert (first["broker.id"], second["broker.id"]) == ("7", "8")
    assert "node.id" not in second
    assert second["listeners"] == "PLAINTEXT://:9093,INSIDE://10.0.0.1:19093"
    assert second["advertised.listeners"] == "PLAINTEXT://example:9093,INSIDE://10.0.0.1:19093"
    assert second["log.dirs"] == "/a/broker-8,/b/broker-8"
    assert second["coordination.url"] == "etcd://somewhere"
    assert second["broker.host.label"] == "rack-unit-7"
    assert "default.replication.factor" not in second  # a file says everything


def test_ports() -> None:
    assert [plan.settings["listeners"][-5:] for plan in plans(Given({}), 2, port=29092)] == ["29092", "29093"]
    free = [plan.settings["listeners"] for plan in plans(Given({"listeners": "PLAINTEXT://127.0.0.1:0"}), 2)]
    assert free == ["PLAINTEXT://127.0.0.1:0"] * 2


def test_a_bootstrap_port_is_the_same_for_all_brokers() -> None:
    given = Given({"listeners": "USERS://127.0.0.1:9092,INSIDE://10.0.0.1:19092"})
    found = [plan.settings["bootstrap.listeners"] for plan in plans(given, 3, bootstrap_port=9000)]
    assert found == ["USERS://127.0.0.1:9000"] * 3
    port = free_port()
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(CommandError, match=f"127.0.0.1:{port} is in use.* --bootstrap-port {port + 10000}"),
    ):
        refuse_ports_in_use(plans(Given({"listeners": "PLAINTEXT://127.0.0.1:0"}), 2, bootstrap_port=port))


def test_ports_in_use_are_reported_once_for_the_whole_cluster(tmp_path: Path) -> None:
    """The brokers' own reports would each suggest another address, as if a single broker were started."""
    ports = [free_port(), free_port()]  # which no other program takes once they are free again
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(("A", "B"), ports, strict=True))
        given = plans(Given({"listeners": listeners, "log.dirs": str(tmp_path)}), 1)
        with pytest.raises(
            CommandError, match=r"are in use. Is another broker running\? .* --port \d+ \(`make"
        ) as refused:
            refuse_ports_in_use(given)
        assert str(refused.value).startswith(f"127.0.0.1:{ports[0]}, 127.0.0.1:{ports[1]} are in use.")
        folder = LogDirectory(tmp_path / "broker-1")
        folder.open("cluster", 1, Random(1))
        with pytest.raises(CommandError, match=rf"and a broker runs in {tmp_path}\. .*log.dirs={tmp_path}-2 \(`make"):
            refuse_ports_in_use(given)
        folder.close()
    refuse_ports_in_use(given)


def test_secrets_are_no_arguments_of_the_brokers_processes() -> None:
    settings = {"node.id": "4", "ssl.key.password": "in the file", "ssl.keystore.password": "provided", "x.y": "1"}
    typed = {"ssl.keystore.password": "${env:MARKED}", "x.y": "1"}
    _, second = plans(Given(settings, typed, Path("/etc/server.properties")), 2)
    start, file, *overrides = second.words()
    assert (start, file) == ("start", "/etc/server.properties")
    given = dict(pair.split("=", 1) for pair in overrides[1::2])
    assert given.keys() >= {"broker.id", "listeners", "log.dirs", "coordination.url"}
    assert (given["broker.id"], given["node.id"]) == ("5", "5")
    assert given["ssl.keystore.password"] == "${env:MARKED}"
    assert given["x.y"] == "1"
    assert "ssl.key.password" not in given


@pytest.mark.parametrize(
    ("given", "brokers"),
    [({}, 0), ({}, 101), ({"broker.id": "x"}, 2), ({"listeners": "PLAINTEXT://nowhere"}, 2)],
)
def test_impossible_clusters_are_refused(given: dict[str, str], brokers: int) -> None:
    with pytest.raises(CommandError):
        plans(Given(given), brokers)


def test_a_log_line_names_its_broker() -> None:
    assert labeled("time=1 level=info", 2) == "broker.id=2 time=1 level=info"
    assert labeled('{"time": 1}', 2) == '{"broker.id": 2, "time": 1}'


@pytest.mark.parametrize(
    "words",
    [("--brokers", "0"), ("--restart",), ("--bootstrap-port", "9000"), ("--brokers", "2", "--override", "x.y=1", "f")],
)
def test_wrong_usage(parley: Parley, words: tuple[str, ...]) -> None:
    typed = parley("start", *words)
    assert typed.code == 1
    assert "Traceback" not in typed.err


def command(*overrides: str) -> list[str]:
    words = [word for setting in overrides for word in ("--override", setting)]
    return [sys.executable, "-m", "parley", "start", "--brokers", "3", *words]


FREE = ("listeners=PLAINTEXT://127.0.0.1:0", "metrics.listener=127.0.0.1:0")


class Running:
    """The command, and the processes of its brokers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.bootstrap = ""

    def brokers(self) -> list[int]:
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def says(self, text: str) -> None:
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr), f"{text!r} was not said"


@contextmanager
def started(folder: Path, *words: str) -> Iterator[Running]:
    process = subprocess.Popen(
        [*command(f"log.dirs={folder}", *FREE), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running = Running(process)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"bootstrap\.servers=(\S+)$", line):
                running.bootstrap = found[1]
                break
        yield running
    finally:
        process.kill()
        process.communicate()


async def alive(bootstrap: str) -> list[int]:
    async with Client(bootstrap) as client:
        answer = await client.send(DescribeClusterRequest())
    return sorted(broker.broker_id for broker in answer.brokers)


@pytest.mark.system
def test_a_cluster_lives_through_the_death_of_a_broker_and_stops_in_order(tmp_path: Path) -> None:
    with started(tmp_path) as running:
        assert len(running.bootstrap.split(",")) == 3
        admin = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
        while sorted(admin.list_topics(timeout=30).brokers) != [1, 2, 3]:
            pass
        os.kill(running.brokers()[1], signal.SIGKILL)
        running.says("Broker 2 exited (killed by SIGKILL). The others continue. To restart it: parley start")
        # The live brokers, not the listed ones: a fenced broker stays listed for 5 s. librdkafka's describe_cluster
        # keeps asking the controller that it knows, here the dead one in one of three runs.
        while asyncio.run(alive(running.bootstrap)) != [1, 3]:
            pass
        running.process.send_signal(signal.SIGINT)
        out, err = running.process.communicate(timeout=60)
        assert running.process.returncode == 0, out + err
        assert "Traceback" not in err
        ends = [line for line in err.splitlines() if "broker stopped" in line]
        assert [line.split()[0] for line in ends] == ["broker.id=3", "broker.id=1"]


@pytest.mark.system
def test_the_end_of_the_last_broker_is_not_called_the_end_of_one_of_several(tmp_path: Path) -> None:
    with started(tmp_path, "--brokers", "2") as running:
        os.kill(running.brokers()[0], signal.SIGKILL)
        running.says("Broker 1 exited (killed by SIGKILL). The others continue.")
        os.kill(running.brokers()[0], signal.SIGKILL)
        running.says("Broker 2 exited (killed by SIGKILL). To restart it: parley start")
        running.says("Error: no broker is left")
        assert running.process.wait(60) == 1


@pytest.mark.system
def test_a_bootstrap_port_works_while_any_broker_runs(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, "--restart", "--bootstrap-port", str(port)) as running:
        assert running.bootstrap == f"127.0.0.1:{port}"

        def listed() -> list[int]:
            client = AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0})
            return sorted(client.list_topics(timeout=60).brokers)

        while listed() != [1, 2, 3]:
            pass
        os.kill(running.brokers()[1], signal.SIGKILL)
        for _ in range(10):  # the dead broker gets no connections
            assert set(listed()) >= {1, 3}
        running.says("Broker 2 serves again.")
        while listed() != [1, 2, 3]:
            pass
        producer = Producer({"bootstrap.servers": running.bootstrap, "acks": "all"})
        producer.produce("t", b"v")
        assert producer.flush(60) == 0
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


@pytest.mark.system
def test_a_broker_is_restarted_with_restart(tmp_path: Path) -> None:
    with started(tmp_path, "--restart") as running:
        os.kill(running.brokers()[0], signal.SIGKILL)
        running.says("Broker 1 exited (killed by SIGKILL). It is restarted.")
        running.says("Broker 1 serves again.")
        assert len(running.brokers()) == 3
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


@pytest.mark.system
def test_brokers_do_not_outlive_the_command(tmp_path: Path) -> None:
    with started(tmp_path) as running:
        brokers = running.brokers()
        running.process.kill()
        running.process.wait()
        for pid in brokers:
            while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
                pass


@pytest.mark.system
def test_a_broker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    (tmp_path / "broker-3").touch()
    done = subprocess.run(
        command(f"log.dirs={tmp_path}", *FREE), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert f"{tmp_path}/broker-3" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("Error: broker 3 did not start")
    assert not done.stdout


def test_data_of_a_single_broker_and_of_a_cluster_are_not_mixed(tmp_path: Path, parley: Parley) -> None:
    # Without metrics: their preset ports may be taken, which is reported.
    options = ("--override", f"log.dirs={tmp_path}", "--override", "metrics.listener=")
    (tmp_path / "meta.properties").touch()
    refused = parley("start", "--brokers", "3", *options)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        f"Error: {tmp_path} contains the data of a single broker. Start the broker with `parley start`"
    )
    (tmp_path / "meta.properties").rename(tmp_path / "other")
    (tmp_path / "broker-2").mkdir()
    (tmp_path / "broker-2" / "meta.properties").touch()
    refused = parley("start", *options)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        f"Error: {tmp_path} contains the data of a cluster. Start the cluster with `parley start --brok"
    )


@pytest.mark.parametrize("head", ["127.0.0.1", "https://127.0.0.1"])
def test_metrics_move_from_a_port_that_is_taken_and_say_so(head: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_or_any(f"{head}:{port}") == f"{head}:0"
    assert f"port {port} is taken" in capsys.readouterr().err
    free = f"{head}:{free_port()}"
    assert free_or_any(free) == free
    assert free_or_any("no.invalid:1") == "no.invalid:1"
    assert capsys.readouterr().err == ""
