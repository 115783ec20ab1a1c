"""``parley start``: configuration, failures and shutdown."""

from __future__ import annotations

import asyncio
import errno
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from parley.broker.config import ConfigError, Problem
from parley.broker.membership.joining import DuplicateBrokerId
from parley.broker.metrics.health import Health
from parley.broker.security.tls.server import server_tls
from parley.broker.startup.cluster_joining import COORDINATION
from parley.consensus.errors import BadConfig, DamagedStore, EmptyStore, Unavailable, UsedByOlderVersion
from parley.storage.log_directory import LogDirectory
from parley.storage.resource_exhaustion import MEMORY
from parley.tools.cli import start, start_failures
from parley.tools.cli.invocation import DISK_FAILED, FAILED, STARVED, CommandError
from tests.support.preloaded import preloaded_command
from tests.tools.conftest import Parley


def test_without_a_file_it_runs_a_single_local_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = start.configuration(None, [])
    assert config.data_dirs == (str(tmp_path / "parley-data"),)
    (listener,) = config.bound
    assert (listener.host, listener.port) == ("127.0.0.1", 9092)
    assert config.offsets_topic_replication_factor == 1
    assert config.metrics_address is not None
    assert config.metrics_address[0] == "127.0.0.1"
    assert not config.warnings


def test_overrides_replace_settings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(f"broker.id=7\nlog.dirs={tmp_path}\nnum.partitions=2\n")
    config = start.configuration(path, ["num.partitions=5", "listeners=PLAINTEXT://:1234"])
    assert (config.broker_id, config.num_partitions) == (7, 5)
    assert config.bound[0].port == 1234
    assert config.offsets_topic_replication_factor == 3  # a file says everything


def test_every_problem_has_its_line(parley: Parley, tmp_path: Path) -> None:
    words = ("--override", "num.partitions=0", "--override", "log.retention.hours=soon")
    typed = parley(
        "start", *words, "--override", "metrics.listener="
    )  # the preset port may be taken, which is reported
    assert typed.code == 1
    lines = typed.err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("Error: ") for line in lines)
    assert any("num.partitions=0" in line for line in lines)
    assert any("log.retention.hours=soon" in line for line in lines)


@pytest.mark.parametrize("words", [("--override", "nonsense"), ("no-such-file",), ("--nonsense",)])
def test_wrong_usage(parley: Parley, words: tuple[str, ...]) -> None:
    typed = parley("start", *words)
    assert typed.code == 1
    assert "Traceback" not in typed.err


def test_an_invalid_properties_file(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("a=\\u12")
    with pytest.raises(CommandError, match="not a properties file"):
        start.configuration(tmp_path / "bad", [])


def start_words(folder: Path, *overrides: str) -> list[str]:
    settings = (f"log.dirs={folder}", "listeners=PLAINTEXT://127.0.0.1:0", *overrides)
    return ["start", *(word for setting in settings for word in ("--override", setting))]


@contextmanager
def started(folder: Path, *overrides: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Run a broker in its own process. Yields the process, and its output until it was ready."""
    command = [sys.executable, "-m", "parley", *start_words(folder, *overrides)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "bootstrap.servers=" in line:
                break
        yield process, lines
    finally:
        process.kill()
        process.communicate()


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_prints_its_address_and_stops_at_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path / "data") as (process, lines):
        matches = [re.search(r"bootstrap\.servers=(127\.0\.0\.1:\d+)$", line) for line in lines]
        (address,) = [match[1] for match in matches if match]
        assert any(str(tmp_path / "data") in line for line in lines)
        assert any(re.search(r"http://127\.0\.0\.1:\d+/metrics$", line) for line in lines)
        assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=60).brokers
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err


@pytest.mark.system
def test_a_second_interrupt_ends_it_at_once(tmp_path: Path) -> None:
    with started(tmp_path / "data") as (process, _):
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        # Equal signals are not queued: the second is sent once the first has been handled.
        assert process.stderr is not None
        for line in process.stderr:
            if "Ctrl-C again" in line:
                process.send_signal(signal.SIGINT)
                break
        process.communicate(timeout=60)
        # It may have stopped already. If the signal ends Python during its shutdown, a shell reports 130.
        assert process.returncode in (0, 130, -signal.SIGINT)


@pytest.mark.system
def test_each_reason_for_not_starting_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _fails(
            tmp_path / "a", f"listeners=PLAINTEXT://127.0.0.1:{port}", reason=f"127.0.0.1:{port}", advice="--override"
        )
    (tmp_path / "file").write_text("")
    _fails(tmp_path / "file", reason="file", advice="log.dirs")
    _fails(tmp_path / "b", "coordination.url=nonsense://u:secret@x", reason="nonsense", advice="coordination.url")
    _fails(tmp_path / "b", "zookeeper.connect=zk:x", reason="zk:x", advice="zookeeper.connect")
    _fails(
        tmp_path / "b", "listeners=PLAINTEXT://192.0.2.1:9092", reason="192.0.2.1", advice="does not have this address"
    )
    _fails(tmp_path / "b", "listeners=PLAINTEXT://no.invalid:1", reason="no.invalid:1", advice="--override listeners=")
    _fails(tmp_path / "b", "metrics.listener=no.invalid:1", reason="no.invalid:1", advice="--override metrics.listener")
    _fails(tmp_path / "b", "replica.selector.class=no.Such", reason="No module", advice="replica.selector.class=")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        _fails(tmp_path / "b", f"metrics.listener={address}", reason=address, advice="metrics.listener=")
    with started(tmp_path / "data"):
        _fails(tmp_path / "data", reason="data", advice="log.dirs")


def _fails(folder: Path, *overrides: str, reason: str, advice: str) -> None:
    command = preloaded_command(*start_words(folder, *overrides))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert "broker stopped" not in done.stderr, "it never ran"
    *_, error = done.stderr.splitlines()
    assert error.startswith("Error: The broker did not start")
    assert "secret" not in error
    assert reason in error
    assert advice in error


@pytest.mark.parametrize(
    ("error", "advised"),
    [
        (OSError(errno.EADDRINUSE, "cannot listen on h:9093: x"), "listeners=INSIDE://:9092,SECURE://h:19093"),
        (OSError(errno.EACCES, "cannot listen on :::9092: x"), "listeners=INSIDE://:19092,SECURE://h:9093"),
        (OSError(errno.EADDRNOTAVAIL, "cannot listen on h:9093: x"), "listeners=INSIDE://:9092,SECURE://127.0.0.1:9093"),
        (socket.gaierror(-2, "cannot listen on h:9093: x"), "listeners=INSIDE://:9092,SECURE://127.0.0.1:9093"),
        (OSError(errno.EADDRINUSE, "cannot listen on ::1:60000 for metrics.listener"), "metrics.listener=[::1]:50000"),
        (socket.gaierror(-2, "cannot listen on ::1:60000 for metrics.listener"), "metrics.listener=127.0.0.1:60000"),
    ],
)  # fmt: skip
def test_the_advised_address_keeps_the_protocol_and_the_other_listeners(error: OSError, advised: str) -> None:
    settings = (
        "listeners=INSIDE://:9092,SECURE://h:9093",
        "listener.security.protocol.map=INSIDE:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "inter.broker.listener.name=INSIDE",
        "sasl.enabled.mechanisms=PLAIN",
        "metrics.listener=[::1]:60000",
    )
    told = start_failures.why_not_started(error, start.configuration(None, settings))
    assert told.endswith(f": --override {advised}")
    assert f"the key {advised.partition('=')[0]}" in told


def test_a_secret_is_hidden_unless_it_is_an_ordinary_word_of_a_safe_text(tmp_path: Path) -> None:
    store = tmp_path / "store.p12"
    store.write_bytes(b"0\x80 hunter2")

    def told(password: str, text: str = "") -> str:
        settings = (
            f"listeners=SSL://127.0.0.1:0,security.inter.broker.protocol=SSL,ssl.keystore.location={store},"
            f"ssl.keystore.password={password}"
        ).split(",")
        config = start.configuration(None, settings)
        with pytest.raises(ConfigError) as refused:
            server_tls(config.bound[0], config)
        error = ConfigError([Problem("a.key", text, "another")]) if text else refused.value
        return start_failures.why_not_started(error, config)

    assert "the password is wrong, or it is not a PKCS #12 file" in told("wrong")
    assert "a.key=[hidden] is" in told("wrong", "wrong")
    assert "hunter2" not in told("hunter2", "hunter2")
    assert "store" in told("hunter2")
    named = told(store.name)  # not an ordinary word
    assert store.name not in named


def test_an_address_in_use_with_a_folder_in_use_is_one_advice(tmp_path: Path) -> None:
    """With another address alone, the next start would find the folder in use."""
    error = OSError(errno.EADDRINUSE, "cannot listen on h:9093: x")
    config = start.configuration(None, ("listeners=PLAINTEXT://h:9093", f"log.dirs={tmp_path}"))
    folder = LogDirectory(tmp_path)
    folder.open("cluster", 1, Random(1))
    told = start_failures.why_not_started(error, config)
    folder.close()
    assert f"Another broker runs in {tmp_path}. Stop it, or " in told
    assert told.endswith(f"--override listeners=PLAINTEXT://h:19093 --override log.dirs={tmp_path}-2")
    assert "log.dirs" not in start_failures.why_not_started(error, config)


@pytest.mark.parametrize(
    ("settings", "labels"),
    [
        (["listeners=PLAINTEXT://127.0.0.1:9092"], []),
        (["listeners=PLAINTEXT://[::1]:9092"], []),
        (["listeners=PLAINTEXT://localhost:9092"], []),
        (["listeners=PLAINTEXT://10.0.0.1:9092"], ["warning"]),
        (["listeners=PLAINTEXT://:9092"], ["listens", "warning"]),
        (["listeners=PLAINTEXT://0.0.0.0:9092", "advertised.listeners=PLAINTEXT://h:9092"], ["listens", "warning"]),
        (
            [
                "listeners=PLAINTEXT://:9092",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users=User:ANONYMOUS",
            ],
            ["listens"],
        ),
        (["bootstrap.listeners=PLAINTEXT://:9000"], ["listens", "warning"]),
    ],
)
def test_a_listener_that_is_open_to_other_machines_is_reported(settings: list[str], labels: list[str]) -> None:
    notes = start.notes_on_listeners(start.configuration(None, settings), "h:9092")
    assert [label for label, _ in notes] == labels
    assert all("clients connect to h:9092" in text for label, text in notes if label == "listens")


def test_an_unexpected_error_is_one_line_too(caplog: pytest.LogCaptureFixture) -> None:
    reason = start_failures.why_not_started(KeyError("x"), start.configuration(None, []))
    assert reason.startswith("KeyError('x'). This is a bug in Parley")
    assert "the start failed" in caplog.text


@pytest.mark.parametrize(
    ("has_failed", "online", "code"), [(False, ["d0"], 0), (True, ["d0"], FAILED), (True, [], DISK_FAILED)]
)
def test_the_exit_code_says_whether_a_restart_may_help(has_failed: bool, online: list[str], code: int) -> None:
    health = Health()
    health.trouble(COORDINATION, "no longer a member of the cluster: the store was wiped", fatal=True)
    logs = SimpleNamespace(online=lambda: online)
    server: Any = SimpleNamespace(failed=asyncio.Event(), parts=SimpleNamespace(logs=logs), health=health, starved="")
    if has_failed:
        server.failed.set()
    reason, found = start_failures.why_it_ended(server)
    assert found == code
    assert (reason is None) == (code == 0)
    assert code != FAILED or reason == "the broker is no longer a member of the cluster: the store was wiped."
    if has_failed:
        server.starved = "the broker has been short of memory for 9.0 s. Give it more."
        reason, found = start_failures.why_it_ended(server)
        assert found == STARVED
        assert reason is not None
        assert reason.startswith(server.starved)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.EMFILE, "Too many open files", "/data/x"), "out of file descriptors. Raise the limit"),
        (MemoryError(), "out of memory. Give the process more memory"),
    ],
)
def test_a_start_without_descriptors_or_memory_does_not_blame_the_disk(error: Exception, advice: str) -> None:
    reason = start_failures.why_not_started(error, start.configuration(None, []))
    assert advice in reason
    assert "log.dirs" not in reason
    assert start_failures.exit_code_of(error) == STARVED
    assert start_failures.exit_code_of(OSError(errno.EACCES, "Permission denied")) == FAILED


def test_a_limit_of_open_files_that_is_too_low_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 31))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    assert start.run(start.configuration(None, [])) == STARVED
    text = capsys.readouterr().err
    assert "the limit of open files is 31, and a broker needs at least 64" in text
    assert "ulimit -n" in text


def test_a_shortage_that_no_caller_sees_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    others: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", others.append)
    for error in (MemoryError(), ValueError(), None):
        raised: Any = SimpleNamespace(exc_value=error)
        start._on_unraisable(raised)
    assert isinstance(MEMORY.lost_work, MemoryError)
    assert len(others) == 2


@pytest.mark.parametrize(
    ("error", "said", "unsaid"),
    [
        (Unavailable("refused"), "coordination.url=etcd://db1/k does not respond: refused.", "Correct"),
        (EmptyStore("it is empty"), "is not the store of this broker's data: it is empty.", "Correct coordination.url"),
        (UsedByOlderVersion("stop all brokers"), "cannot be used yet: stop all brokers.", "Correct"),
        (DamagedStore("store.db is damaged"), "cannot be read: store.db is damaged.", "is not the store"),
        (BadConfig("no such store"), "cannot be used: no such store. Correct coordination.url", "leave it out"),
        (DuplicateBrokerId("broker.id 1 is used"), "broker.id 1 is used.", "coordination.url"),
    ],
)
def test_a_store_that_is_down_is_no_reason_to_change_its_address(error: Exception, said: str, unsaid: str) -> None:
    """With another store, the broker would form a new cluster."""
    reason = start_failures.why_not_started(error, start.configuration(None, ["coordination.url=etcd://db1/k"]))
    assert said in reason
    assert unsaid not in reason
