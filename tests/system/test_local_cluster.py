"""``make cluster``: three brokers and the server of their store stop in order and find all data again."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from parley.configuration.properties import read_properties
from parley.protocol.security.librdkafka import librdkafka_settings
from parley.tools.local_cluster import main
from parley.tools.store_servers import KINDS, StoreServerError, store_server
from tests.support.kafka_tools import output_of_tool

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 120


@contextmanager
def running(store: str, folder: Path, *options: str) -> Iterator[tuple[list[str], str]]:
    """Run the cluster until Ctrl-C. Yields its output until it was ready, and its folder."""
    words = [
        *options,
        "--folder",
        str(folder),
        "--port",
        "0",
        "--override",
        "metrics.listener=",
        "--override",
        "logging.level=error",
    ]
    command = [sys.executable, "-m", "parley.tools.local_cluster", store, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line.rstrip("\n"))
            if "bootstrap.servers=" in line:
                break
        assert "bootstrap.servers=" in said[-1], said
        yield said, said[-1].partition("bootstrap.servers=")[2]
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("store", ["local", *(pytest.param(each, marks=pytest.mark.soak) for each in KINDS)])
def test_a_cluster_is_found_again_with_all_it_had(store: str, tmp_path: Path) -> None:
    with running(store, tmp_path) as (said, bootstrap):
        command = next(line for line in said if line.startswith("$ parley start ") and "--brokers 3" in line)
        assert f"--override coordination.url={store}://" in command
        assert said[-6].startswith("Brokers 1, 2, 3 of cluster "), said
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        producer.produce("kept", b"a record")
        assert producer.flush(60) == 0
    if store != "local":  # nothing of the server is left: another one has the folder
        with (
            store_server(store, tmp_path / "store"),
            pytest.raises(StoreServerError, match="already"),
            store_server(store, tmp_path / "store"),
        ):
            pass
    with running(store, tmp_path) as (_, bootstrap):
        client = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        with Consumer(client) as consumer:
            consumer.subscribe(["kept"])
            message = consumer.poll(60)
            while message is not None and message.error() is not None:  # the topic is not known yet
                message = consumer.poll(60)
            assert message is not None
            assert message.value() == b"a record"


@pytest.mark.soak  # the secured quickstart is the shorter test
@pytest.mark.parametrize("store", ["local", *KINDS])
def test_a_secured_cluster_prints_the_properties_for_clients(store: str, tmp_path: Path) -> None:
    with running(store, tmp_path, "--secure") as (said, bootstrap):
        printed = next(line for line in said if "--command-config" in line)
        properties = Path(printed.rpartition("--command-config ")[2].rstrip(":"))
        assert {"  security.protocol=SASL_SSL", "  sasl.mechanism=SCRAM-SHA-512"} <= set(said)
        secrets = read_properties(tmp_path / "security" / "secrets.properties")
        assert not any(secret in line for line in said for secret in secrets.values())
        settings = {"bootstrap.servers": bootstrap, **librdkafka_settings(read_properties(properties))}
        producer = Producer({**settings, "acks": "all"})
        producer.produce("kept", b"a record")
        assert producer.flush(60) == 0
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        with pytest.raises(KafkaException):
            admin.list_topics(timeout=3)
    open_to_others = [path for path in [tmp_path, *(tmp_path / "security").rglob("*")] if path.stat().st_mode & 0o077]
    assert open_to_others == []
    if store == "local":  # the users exist, and the certificates are new
        with running(store, tmp_path, "--secure") as (_, bootstrap):
            to = ("--bootstrap-server", bootstrap, "--command-config", str(properties))
            assert "kept" in output_of_tool("org.apache.kafka.tools.TopicCommand", *to, "--list").splitlines()


def test_an_error_about_a_failed_server_contains_its_last_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho 'no disk today' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PARLEY_ETCD", str(broken))
    assert main(["etcd", "--folder", str(tmp_path / "data")]) == 1
    told = capsys.readouterr().err
    assert "Error: the server of etcd ended with code 3" in told
    assert "no disk today" in told


def test_an_error_about_a_missing_server_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PARLEY_ETCD", raising=False)
    assert main(["etcd", "--folder", str(tmp_path / "data")]) == 1
    assert "run `make peers`, or set PARLEY_ETCD to its executable" in capsys.readouterr().err


def lines_of(words: list[str]) -> list[str]:
    """Return the command lines that a dry run of make prints."""
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return printed.replace("\\\n", "").splitlines()


@pytest.mark.parametrize("store", ["local", *KINDS])
def test_make_starts_it(store: str) -> None:
    for target, module in (
        ("cluster", f"parley.tools.local_cluster {store}"),
        ("quickstart", f"parley.tools.quickstart --store {store}"),
    ):
        words = ["make", "--dry-run", "--directory", str(ROOT), target, f"STORE={store}"]
        lines = lines_of(words)
        typed = [" ".join(shlex.split(line)) for line in lines]
        python = ".venv/bin/python -m"
        at = typed.index(f"exec {python} {module}")
        assert typed[at - 1] == f"{python} tests.system.peers {store}"
        assert f"exec {python} {module} --secure" in secured(*words)


def test_make_starts_it_at_other_ports_and_in_another_folder() -> None:
    words = ["make", "--dry-run", "--directory", str(ROOT), "cluster", "PORT=19092", "FOLDER=/tmp/a b"]
    lines = lines_of(words)
    (started,) = (shlex.split(line) for line in lines if line.startswith("exec "))
    assert started[-5:] == ["local", "--port", "19092", "--folder", "/tmp/a b"]


def secured(*words: str) -> list[str]:
    """Return the commands that ``make`` runs with ``SECURE=1``."""
    lines = lines_of([*words, "SECURE=1"])
    return [" ".join(shlex.split(line)) for line in lines]
