"""``parley connect standalone`` as its user sees it: its files, its output, and that it resumes after a restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parley import Broker
from parley.tools.cli import main
from tests.pipeline.connect.driving import WAIT_S, until
from tests.support.http import HTTP
from tests.support.preloaded import preloaded_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


@pytest.fixture
def worker(connect_broker: Broker, tmp_path: Path) -> Path:
    """Return a worker's properties file, in a folder with the files of two connectors."""
    (tmp_path / "source.properties").write_text(
        f"name=in\nconnector.class=FileStreamSource\nfile={tmp_path}/in.txt\ntopic={tmp_path.name}\n"
    )
    sink = {"connector.class": "FileStreamSink", "file": f"{tmp_path}/out.txt", "topics": tmp_path.name}
    (tmp_path / "sink.json").write_text(json.dumps({"name": "out", "config": sink, "initial_state": "RUNNING"}))
    (tmp_path / "flat.json").write_text(json.dumps({"name": "out", **sink}))
    properties = tmp_path / "worker.properties"
    properties.write_text(
        f"bootstrap.servers={connect_broker.bootstrap_servers}\n"
        "key.converter=org.apache.kafka.connect.storage.StringConverter\n"
        "value.converter=org.apache.kafka.connect.json.JsonConverter\n"
        f"offset.storage.file.filename={tmp_path}/offsets\n"
        "offset.flush.interval.ms=100\nlisteners=http://127.0.0.1:0\n"
    )
    return properties


def started(*words: object) -> tuple[subprocess.Popen[str], str]:
    """Start a worker. Returns its process and URL when it is ready."""
    return ready(preloaded_command("connect", "standalone", *map(str, words)))


def ready(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("Connect is ready: "), line
    return process, line.split()[-1]


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return a function that starts a worker in this process, which must fail. The function returns the
    error message."""

    def said(*words: object) -> str:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["connect", "standalone", *map(str, words)])
        out, err = capfd.readouterr()
        assert (ended.value.code, out) == (1, "")
        assert "Traceback" not in err
        return err

    return said


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def ends() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list of processes, which are killed after the test if they are still running."""
    begun: list[subprocess.Popen[str]] = []
    yield begun
    for one in begun:
        one.kill()
        one.wait()


def test_files_through_a_topic(worker: Path, ends: list[subprocess.Popen[str]]) -> None:
    """After a restart, the worker resumes. The sink's file then has Kafka's other format, a flat object."""
    folder = worker.parent
    (folder / "in.txt").write_text("a\nb\n")
    process, url = started(worker, folder / "source.properties", folder / "sink.json")
    ends.append(process)
    until(lambda: lines(folder / "out.txt"), lambda found: found == ["a", "b"])
    assert sorted(HTTP.get(f"{url}connectors").json()) == ["in", "out"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0
    with (folder / "in.txt").open("a") as file:
        file.write("c\n")
    ends.append(started(worker, folder / "source.properties", folder / "flat.json")[0])
    until(lambda: lines(folder / "out.txt"), lambda found: found == ["a", "b", "c"])


def test_killed_it_loses_nothing(worker: Path, ends: list[subprocess.Popen[str]]) -> None:
    folder = worker.parent
    expected = [str(number) for number in range(3000)]
    (folder / "in.txt").write_text("".join(f"{one}\n" for one in expected))
    ends.append(started(worker, folder / "source.properties", folder / "sink.json")[0])
    until(lambda: len(lines(folder / "out.txt")), lambda count: count > 0)
    ends[0].kill()
    ends[0].wait()
    ends.append(started(worker, folder / "source.properties", folder / "sink.json")[0])
    until(lambda: set(lines(folder / "out.txt")), lambda found: found >= set(expected))


def test_a_supervised_worker_is_started_again(worker: Path, ends: list[subprocess.Popen[str]]) -> None:
    folder = worker.parent
    (folder / "in.txt").write_text("a\n")
    words = map(str, [worker, folder / "source.properties", folder / "sink.json", "--supervise"])
    supervisor, _ = ready([sys.executable, "-m", "parley", "connect", "standalone", *words])
    ends.append(supervisor)
    until(lambda: lines(folder / "out.txt"), lambda found: "a" in found)
    listed = ["ps", "-o", "pid=", "--ppid", f"{supervisor.pid}"]
    (child,) = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(child), signal.SIGKILL)
    assert supervisor.stdout is not None
    assert supervisor.stdout.readline().startswith("Connect is ready: ")
    with (folder / "in.txt").open("a") as file:
        file.write("b\n")
    until(lambda: lines(folder / "out.txt"), lambda found: "b" in found)
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(WAIT_S) == 0


def test_a_worker_that_cannot_start_names_the_reason(worker: Path, refused: Callable[..., str]) -> None:
    folder = worker.parent
    assert "cannot be read" in refused(folder / "absent.properties")
    assert 'Missing required configuration "key.converter"' in refused(folder / "source.properties")
    (folder / "bad.properties").write_text("name=bad\nconnector.class=FileStreamSink\ntasks.max=none\n")
    said = refused(worker, folder / "bad.properties")
    assert "bad.properties" in said
    assert "Invalid value none for configuration tasks.max" in said
    assert "needs name and connector.class" in refused(worker, worker)
    nobody = ["--override", "bootstrap.servers=127.0.0.1:1"]
    assert "Are the brokers running?" in refused(worker, folder / "sink.json", *nobody)
