"""``parley mirror`` and ``parley load``: wrong usage is reported before Spark is started."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley import Broker
from parley.tools.cli.json_shapes import SHAPES, differences
from parley.tools.cli.load import _below
from parley.tools.cli.mirror import _Progress
from tests.tools.conftest import Parley, Typed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("mirror", "Name what to copy"),
        ("mirror --source a:1", "require each other"),
        ("mirror x.properties --source a:1 --target b:1", "Name what to copy"),
        ("mirror none.properties", "cannot be read"),
        ("mirror --source a:1 --target b:1 --topics (", "not a regular expression"),
        ("mirror --consumer.config c", "needs --producer.config"),
        ("mirror x.properties --command-config c", "--command-config needs --source and --target"),
        ("mirror --source a:1 --target b:1 --command-config none", "cannot be read"),
        ("load", "to export, or --to-topic"),
        ("load --topic t", "to export, or --to-topic"),
        ("load --topic t --output x --to-topic y --input z", "to export, or --to-topic"),
        ("load --topic t --output x --format xml", "--format must be one of"),
        ("load --topic t --output x --format json --value-format binary", "use base64 for bytes"),
        ("load --topic t --output x --bad-records hide", "fail, drop or keep"),
        ("load --topic t --output x --isolation-level none", "read_committed or read_uncommitted"),
    ],
)
def test_wrong_usage(parley: Parley, words: str, text: str) -> None:
    done = parley(*words.split())
    assert done.code == 1
    assert text in done.err
    assert "Traceback" not in done.err


def test_the_file_of_a_mirror_is_checked(parley: Parley, tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n")
    assert "no flow is enabled. For example, set A->B.enabled = true" in parley("mirror", str(path)).err
    path.write_text(path.read_text() + "A->B.enabled = true\nA.security.protocol = SASL_SSL\n")
    assert "A.security.protocol and related keys" in parley("mirror", str(path)).err


class Standing:
    """A mirror whose progress the test sets."""

    def __init__(self) -> None:
        self.records = 0

    def progress(self) -> list[object]:
        from parley.pipeline.mirror.internal_records import Progress

        return [Progress("A->B", 1, self.records, 100 * self.records, 0)]


def test_progress_is_shown_once_a_second_and_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    moments = [0.0]
    mirror = Standing()
    show = _Progress(as_json=False, clock=lambda: moments[-1])
    for moment, mirror.records in ((0.5, 10), (2.0, 20), (2.5, 30), (4.0, 30), (5.5, 30)):
        moments.append(moment)
        show(mirror)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[2:4] for line in lines] == [
        ["20 records copied, 2.0 KiB", "10/s"],
        ["30 records copied, 2.9 KiB", "5/s"],
    ]


def test_progress_as_json_has_the_documented_shape(capsys: pytest.CaptureFixture[str]) -> None:
    moments = [0.0, 2.0]
    show = _Progress(as_json=True, clock=lambda: moments.pop(0))
    mirror = Standing()
    mirror.records = 30
    show(mirror)  # type: ignore[arg-type]
    told = json.loads(capsys.readouterr().out)
    assert differences(told, SHAPES["mirror"][1]) == []
    assert (told["records"], told["recordsPerSec"], told["bytesPerSec"]) == (30, 15, 1500)


def test_settings_without_effect_give_one_warning(
    parley: Parley, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # it ends just before it would start Spark
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("parley.pipeline.spark.java._bundled", lambda: None)
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\nA->B.enabled = true\n")
    path.write_text(path.read_text() + "tasks.max = 4\noffset.lag.max = 7\nsync.topic.acls.enabled = true\nx = y\n")
    done = parley("mirror", str(path))
    (line,) = [line for line in done.err.splitlines() if line.startswith("Warning")]
    assert line == (
        "Warning: these settings have no effect here: offset.lag.max, sync.topic.acls.enabled, tasks.max, x."
    )


def test_each_of_several_topics_has_a_folder_below() -> None:
    assert _below("/data/", "t") == "/data/t"
    assert _below("s3://bucket/x?region=y", "t") == "s3://bucket/x/t?region=y"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield an address that refuses connections, with a short timeout."""
    monkeypatch.setattr("parley.pipeline.client.cluster.FIRST_CONTACT_S", 0.2)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def spark_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that Spark is installed, for tests that end before they need it."""
    monkeypatch.setattr("parley.pipeline.spark.session.check_spark", lambda: None)


@pytest.mark.slow
@pytest.mark.usefixtures("spark_is_installed")
def test_an_unreachable_cluster_is_reported_before_spark_is_started(
    parley: Parley, on_broker: Parley, nobody: str, broker: Broker
) -> None:
    where = ("--output", "/nowhere")
    assert_said(parley("load", "--bootstrap-server", nobody, "--topic", "t", *where), f"cannot connect to {nobody}")
    ends = ("--source", broker.bootstrap_servers, "--target", nobody, "--source-alias", "A", "--target-alias", "B")
    assert_said(parley("mirror", *ends, "--topics", "t"), "Cluster B cannot be mirrored: BROKER_NOT_AVAILABLE")
    missing = "Topic 'nosuch' does not exist. `parley topics --list` shows the existing topics."
    assert_said(on_broker("load", "--topic", "nosuch", *where), missing)
    assert_said(on_broker("load", "--to-topic", "nosuch", "--input", "/nowhere"), missing)


def assert_said(done: Typed, text: str) -> None:
    assert done.code == 1
    assert text in done.err
    assert "Starting Spark" not in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("load", "--topic", "t", "--output", "x"), ("mirror", "--source", "a", "--target", "b")]
)
def test_a_missing_library_is_reported(words: tuple[str, ...]) -> None:
    without = "import sys; sys.modules.update(numpy=None, pyarrow=None)"
    program = f"{without}; from parley.tools.cli import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: parley {words[0]} needs ")
    assert re.search(r", which is not installed: pip install '\S+\[spark\]'", line)


@pytest.mark.usefixtures("spark_is_installed")
def test_ctrl_c_is_no_failure_of_the_command(parley: Parley, monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("parley.tools.cli.mirror.start_spark", interrupted)
    address = broker.bootstrap_servers
    done = parley("mirror", "--source", address, "--target", address, "--topics", "t")
    assert (done.code, done.err) == (130, "Interrupted before anything was copied.\n")
