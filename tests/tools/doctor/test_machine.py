"""``parley doctor FILE`` on this machine: real ports, folders, locks, stores and certificates."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.tools.cli.json_shapes import SHAPES, differences
from parley.tools.doctor.gathering_http import clock_ahead
from tests.support.certificates import Authority
from tests.support.ports import free_port
from tests.tools.conftest import Parley

Doctor = Callable[..., dict[str, Any]]
"""Examines a file with these settings. Returns the findings by name."""


@pytest.fixture
def doctor(parley: Parley, tmp_path: Path) -> Doctor:
    def examine(**settings: str) -> dict[str, Any]:
        given = {
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "log.dirs": str(tmp_path / "data"),
            "broker.id": "1",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        path = tmp_path / "broker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        typed = parley("doctor", str(path), "--output", "json")
        data = json.loads(typed.out)
        assert differences(data, SHAPES["doctor"][1]) == []
        assert typed.code == data["exitCode"]
        return {each["name"]: each for each in data["findings"] if each["name"] not in OF_ANY_MACHINE}

    return examine


OF_ANY_MACHINE = ("disk-full", "disk-nearly-full", "inodes-used-up", "descriptor-limit-low")
"""Findings that the test machine itself may cause."""


def test_a_broker_that_would_start(doctor: Doctor) -> None:
    assert doctor() == {}


def test_a_file_that_is_not_there(parley: Parley, tmp_path: Path) -> None:
    typed = parley("doctor", str(tmp_path / "none.properties"))
    assert (typed.code, typed.out) == (3, "")
    assert "none.properties cannot be read" in typed.err


def test_wrong_usage(parley: Parley) -> None:
    assert parley("doctor", "--nonsense").code == 1
    assert "Name a broker's properties file" in parley("doctor", "b", "--bootstrap-server", "a:1").err
    assert "--bootstrap-server 127.0.0.1:1" in parley("doctor", "127.0.0.1:1").err
    silent = parley("doctor", "--bootstrap-server", f"127.0.0.1:{free_port()}", "--time-limit", "1")
    assert silent.err.endswith("on its machine: parley doctor broker.properties\n")


def test_settings(doctor: Doctor) -> None:
    found = doctor(log__retention__hour="3", metadata__log__dir="/x")
    assert "did you mean log.retention.hours?" in found["config-unknown-key"]["text"]
    assert found["config-without-effect"]["severity"] == "note"
    found = doctor(min__insync__replicas="0", inter__broker__listener__name="NONE")
    assert found["config-invalid"]["severity"] == "error"
    found = doctor(log__cleaner__dedupe__buffer__size="1", listeners="PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:1")
    assert "listeners" in found["config-invalid"]["text"]


@contextmanager
def listening(port: int) -> Iterator[int]:
    """Run another process that listens on the port. Yields its process id."""
    program = f"import socket; s = socket.create_server(('127.0.0.1', {port})); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_port_that_is_taken(doctor: Doctor) -> None:
    port = free_port()
    with listening(port) as pid:
        found = doctor(listeners=f"PLAINTEXT://127.0.0.1:{port}")
        assert f"port {port} of PLAINTEXT is taken by process {pid} (" in found["port-taken"]["text"]
        assert found["port-taken"]["next"] == [f"stop it (kill {pid}), or give PLAINTEXT another port in listeners"]
    assert doctor(listeners=f"PLAINTEXT://127.0.0.1:{port}") == {}


@pytest.mark.slow
def test_the_broker_of_this_file_runs(parley: Parley, tmp_path: Path) -> None:
    """Its log directory is relative to the broker's working directory, and its command line overrides a setting."""
    path, port = tmp_path / "own.properties", free_port()
    path.write_text(f"listeners=PLAINTEXT://127.0.0.1:{port}\nbroker.id=1\nlog.dirs=wrong\n")
    words = ["-m", "parley", "start", path.name, "--override", "log.dirs=data"]
    words += ["--override", "metrics.listener=127.0.0.1:0"]
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            assert "is ready" in broker.stdout.readline()
            typed = parley("doctor", str(path), "--output", "json")
            running = parley("doctor", "--bootstrap-server", f"127.0.0.1:{port}", "--interval", "0", "--output", "json")
        finally:
            broker.kill()
    missing = [each["part"] for each in json.loads(running.out)["notExamined"]]
    assert "metrics" not in missing, "the port of its process is found"
    data = json.loads(typed.out)
    assert f"broker 1 runs as process {broker.pid}" in data["subject"]
    assert [each["name"] for each in data["findings"] if each["name"] not in OF_ANY_MACHINE] == []


def test_addresses(doctor: Doctor) -> None:
    port = free_port()
    with listening(port):  # on another address
        found = doctor(listeners=f"PLAINTEXT://192.0.2.1:{port}")
    assert "192.0.2.1" in found["address-not-here"]["text"]
    found = doctor(advertised__listeners="PLAINTEXT://no-such-host.invalid:9092")
    assert "cannot resolve no-such-host.invalid" in found["advertised-unresolvable"]["text"]
    found = doctor(listeners=f"PLAINTEXT://0.0.0.0:{free_port()}", advertised__listeners="PLAINTEXT://localhost:9092")
    assert "their clients connect to themselves" in found["advertised-localhost"]["text"]


def test_a_log_directory_that_is_a_file(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    assert "it is not a folder" in doctor()["log-directory-unusable"]["text"]


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """Return the folder of a broker that has stopped. Partition 0 of its topic t contains three batches."""
    with Broker(broker_id=1, data_dir=tmp_path / "data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(3):
            producer.produce("t", os.urandom(1000), partition=0)
            assert producer.flush(60) == 0
    return tmp_path / "data"


@pytest.mark.slow
def test_folders_of_others(doctor: Doctor, tmp_path: Path, used: Path) -> None:
    with Broker(broker_id=2, data_dir=str(tmp_path / "other")):
        pass
    both = {"log.dirs": f"{tmp_path / 'data'},{tmp_path / 'other'}"}
    found = doctor(**both)
    assert f"{tmp_path / 'other'} belongs to cluster" in found["wrong-cluster-id"]["text"]
    assert "belongs to broker 2" in found["wrong-broker-id"]["text"]
    assert f"{tmp_path / 'other'} belongs to the store" in found["wrong-store"]["text"]
    (tmp_path / "other" / "meta.properties").write_text("version=7\n")
    assert "unknown version 7" in doctor(**both)["identity-malformed"]["text"]


@pytest.mark.slow
def test_a_segment_that_is_damaged(doctor: Doctor, tmp_path: Path, used: Path) -> None:
    assert "log-damaged" not in doctor()
    path = next((used / "t-0").glob("*.log"))
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes([whole[500] ^ 0xFF]) + whole[501:])
    found = doctor()["log-damaged"]
    assert f"{path} is damaged at byte 0" in found["text"]
    (used / "log-start-offset-checkpoint").write_text("0\n1\nt 0 1\n")
    assert "log-damaged" not in doctor(), "the damaged record was deleted"
    path.write_bytes(whole[:-10])
    assert "ends in a broken batch, as after a crash" in doctor()["log-damaged"]["text"]


@pytest.mark.slow
def test_missing_logs_and_records_are_found(doctor: Doctor, tmp_path: Path, used: Path) -> None:
    store = {"coordination__url": f"local://{tmp_path / 'store'}"}
    shutil.copytree(used / "coordination", tmp_path / "store")
    assert doctor(**store) == {}
    path = next((used / "t-0").glob("*.log"))
    size = path.stat().st_size
    path.write_bytes(b"")
    assert f"{path} lacks records: the file has 0 of {size:,} bytes" in doctor(**store)["log-damaged"]["text"]
    shutil.rmtree(used / "t-0")
    assert "the log is missing, it had records up to 2" in doctor(**store)["log-damaged"]["text"]
    shutil.rmtree(used)
    assert "broker 1 had 1 log directory" in doctor(**store)["log-directory-missing"]["text"]


@pytest.mark.slow
def test_segments_that_are_missing(doctor: Doctor, tmp_path: Path) -> None:
    with Broker(broker_id=1, data_dir=tmp_path / "data", log_segment_bytes=1 << 20) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for _ in range(5):
            producer.produce("t", os.urandom(700_000), partition=0)
            assert producer.flush(60) == 0
    paths = sorted((tmp_path / "data" / "t-0").glob("*.log"))
    paths[0].unlink()
    assert f"{paths[0].parent} lacks records: offsets 0 to 0 are missing" in doctor()["log-damaged"]["text"]
    paths[2].unlink()
    assert "offsets 2 to 2 are missing" in doctor()["log-damaged"]["text"]


@pytest.mark.slow
def test_the_store_was_rolled_back(doctor: Doctor, tmp_path: Path) -> None:
    used = tmp_path / "data"
    with Broker(broker_id=1, data_dir=used) as broker:
        pass
    shutil.copytree(used / "coordination", tmp_path / "dump")
    with Broker(broker_id=1, data_dir=used) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"", partition=0)
        assert producer.flush(60) == 0
    assert doctor() == {}
    shutil.rmtree(used / "coordination")
    (tmp_path / "dump").rename(used / "coordination")
    assert "it lacks changes that this broker has seen" in doctor()["store-set-back"]["text"]
    with Broker(broker_id=1, data_dir=used):
        pass
    found = doctor()
    assert "store-set-back" not in found
    assert f"{used} contains 1 stray log" in found["stray-logs"]["text"]


def test_a_slow_response_does_not_make_a_clock_differ() -> None:
    date = format_datetime(datetime.fromtimestamp(1_000_000, UTC), usegmt=True)
    assert clock_ahead(date, 1_000_000.2, 1_000_000.9) == 0
    assert clock_ahead(date, 999_990.0, 1_000_005.0) == 0
    assert clock_ahead(date, 999_990.0, 999_991.0) == 9
    assert clock_ahead(date, 1_000_011.0, 1_000_020.0) == -10
    assert clock_ahead("", 0, 0) is None


def test_the_store_does_not_respond(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    found = doctor(coordination__url=f"consul://127.0.0.1:{free_port()}/parley?token-file={tmp_path / 'token'}")
    assert "does not respond" in found["store-away"]["text"]
    assert "secret" not in json.dumps(found)


def test_the_store_was_emptied(doctor: Doctor, tmp_path: Path, used: Path) -> None:
    shutil.rmtree(used / "coordination")
    assert "hold data of a cluster" in doctor()["store-empty"]["text"]


def test_certificates(doctor: Doctor, tmp_path: Path) -> None:
    path = tmp_path / "broker.pem"
    settings = {"listeners": f"SSL://127.0.0.1:{free_port()}", "security.inter.broker.protocol": "SSL",
                "ssl.keystore.type": "PEM", "ssl.keystore.location": str(path)}  # fmt: skip
    assert "key-store-unreadable" in doctor(**settings)
    authority = Authority()
    now = datetime.now(UTC)
    for name, expires in (
        ("certificate-expired", now - timedelta(days=1)),
        ("certificate-expiring", now + timedelta(5)),
    ):
        issued = authority.issue("localhost", expires=expires)
        issued.write_pem(path)
        assert list(doctor(**settings)) == [name]


def test_the_whole_examination_has_a_limit(tmp_path: Path, parley: Parley) -> None:
    """The store accepts the connection, and then does not respond."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "broker.properties"
        path.write_text(
            f"coordination.url=etcd://127.0.0.1:{silent.getsockname()[1]}/x\nbroker.id=1\n"
            f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\n"
        )
        typed = parley("doctor", str(path), "--time-limit", "1", "--output", "yaml")
    assert typed.code in (1, 2, 3)
    assert "coordination.url: not done within the 1 s of --time-limit" in typed.out
    assert "part: coordination store" in typed.out
