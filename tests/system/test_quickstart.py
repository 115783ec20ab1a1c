"""``make quickstart``: its steps, and its report of lost or reordered lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parley.tools import quickstart
from parley.tools.secured_demo.intruders import Attempt, NotRefused, refuse, show_private
from parley.tools.store_servers import KINDS


def run(folder: Path, *words: str) -> str:
    """Run the quickstart to its end with these options. Returns its output."""
    source = folder / "lines.txt"
    source.write_text("".join(f"line {number}\n" for number in range(300)))
    command = [sys.executable, "-m", "parley.tools.quickstart", *words, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "No line is missing, duplicated or out of order." in done.stdout
    return done.stdout


def test_steps_are_those_of_kafkas_quickstart_and_a_running_store_gets_its_own_path(tmp_path: Path) -> None:
    given = f"local://{tmp_path}/store"
    output = run(tmp_path, "--coordination-url", given)
    commands = [line for line in output.splitlines() if line.startswith("$ ")]
    assert [" ".join(command.split()[1:3]) for command in commands] == [
        "parley start",
        "parley topics",
        "parley produce",
        "parley topics",
        "kill -9",
        "parley topics",
        "parley consume",
    ]
    (kept,) = (tmp_path / "store").iterdir()
    assert f"until you delete it: {given}/{kept.name}\n" in output


@pytest.mark.slow
@pytest.mark.parametrize("store", ["local", *(pytest.param(each, marks=pytest.mark.soak) for each in KINDS)])
def test_unauthorized_clients_are_refused(store: str, tmp_path: Path) -> None:
    """The program itself ends with an error if an unauthorized client is let in."""
    output = run(tmp_path, "--secure", "--store", store)
    refused, _, admitted = output.partition("is admitted")
    doors = [line.removeprefix("# ").rstrip(":") for line in refused.splitlines() if line.startswith("# ")]
    at_the_store = (
        ["Another user of this machine, at the embedded store"]
        if store == "local"
        else ["At the store, without TLS", "At the store, without an account"]
    )
    assert doors == [
        "Without TLS",
        "Without a login",
        "With a guessed password",
        "As a user that does not exist: same response",
        "With a certificate of another authority, although the password is right",
        "A client that trusts another authority sends these brokers no password",
        *at_the_store,
        "alice sees no topic's name",
        "alice may not write",
        "alice may not read",
        "alice may not grant rights",
        "alice poses as broker 2: fetches as a follower, and requests the controller's metadata",
    ]
    commands = [line for line in admitted.splitlines() if line.startswith("$ ")]
    assert [" ".join(command.split()[1:3]) for command in commands] == [
        "parley acls",
        "parley acls",
        "parley produce",
        "parley topics",
        "kill -9",
        "parley topics",
        "parley consume",
    ]


@pytest.mark.soak
@pytest.mark.parametrize("store", KINDS)
def test_another_store_differs_in_one_setting(store: str, tmp_path: Path) -> None:
    def settings(output: str) -> set[str]:
        start = next(line for line in output.splitlines() if line.startswith("$ parley start"))
        return {word for word in start.split() if "=" in word and not word.startswith("log.dirs=")}

    there = settings(run(tmp_path, "--store", store))
    (url,) = [word for word in there if word.startswith("coordination.url=")]
    assert url.startswith(f"coordination.url={store}://127.0.0.1:")
    assert there - {url} == {"listeners=PLAINTEXT://127.0.0.1:0", "metrics.listener=", "logging.level=error"}


def test_a_stranger_that_is_let_in_ends_the_program(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o755)
    with pytest.raises(NotRefused, match="chmod 700"):
        show_private(tmp_path / "store")
    with pytest.raises(NotRefused, match="did not refuse this"):
        refuse([Attempt("A stranger", ["version"], "refused")])


def sending(acknowledged: int, sent: int) -> quickstart._Sending:
    made = quickstart._Sending("", [])
    made.sent = [b"%d" % number for number in range(sent)]
    made.acknowledged_at = [float(number) for number in range(acknowledged)]
    return made


def test_report_names_lost_and_reordered_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [b"a", b"b"]
    assert quickstart._report(lines, lines, sending(2, 2), 1.0) == 0
    assert "No line is missing" in capsys.readouterr().out
    for received in ([b"a"], [b"b", b"a"], [b"a", b"b", b"b"]):
        assert quickstart._report(lines, received, sending(2, 2), 1.0) == 1
        said = capsys.readouterr()
        assert "The lines differ from line" in said.err
        assert "No line is missing" not in said.out
    assert quickstart._report(lines, lines, sending(1, 2), 1.0) == 1
    assert "1 line not acknowledged (no response)." in capsys.readouterr().err
