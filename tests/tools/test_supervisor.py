"""``--supervise``: a killed process is started again, but not a process that cannot start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.tools.cli.supervisor import _PAUSE_MAX_S, _PAUSE_S, Ended, _Signals, next_step, supervise

PROGRAM = """
import os, signal, sys
from parley.tools.cli import supervisor
supervisor._PAUSE_S = 0.05
child = supervisor.supervise()
if "unready" not in sys.argv:
    child.report_ready()
print("up", os.getpid(), flush=True)
if "fails" in sys.argv:
    sys.exit(7)
signal.pause()
"""
"""A child that becomes ready and waits to be killed, unless its arguments say otherwise."""
LIMIT_S = 120


@pytest.mark.parametrize(
    ("exit_code", "was_ready", "is_stopping", "any_ready", "pause_s", "step"),
    [
        (0, True, False, True, 0.0, None),
        (-9, True, True, True, 0.0, None),
        (1, True, True, True, 0.0, None),
        (1, False, False, False, 0.0, None),  # it cannot start
        (-9, False, False, False, 0.0, _PAUSE_S),
        (1, True, False, True, 0.0, _PAUSE_S),
        (1, False, False, True, _PAUSE_S, 2 * _PAUSE_S),
        (1, False, False, True, _PAUSE_MAX_S, _PAUSE_MAX_S),
        (-11, True, False, True, _PAUSE_MAX_S, _PAUSE_S),
    ],
)
def test_the_next_step_after_a_process_has_ended(
    exit_code: int, was_ready: bool, is_stopping: bool, any_ready: bool, pause_s: float, step: float | None
) -> None:
    assert next_step(Ended(exit_code, was_ready, is_stopping, any_ready, pause_s)) == step


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    """Yield a list of supervisors, which are killed after the test together with their children."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for one in found:
        one.kill()
        one.communicate()


def start(begun: list[subprocess.Popen[str]], *words: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    begun.append(process)
    return process


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of the next child that reports that it is ready."""
    assert process.stdout is not None
    return int(process.stdout.readline().split()[1])


def test_no_child_is_started_after_a_signal_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal arrives before the first fork. A child that has exited gets no signal."""

    def gone(child: int, number: int) -> None:
        raise ProcessLookupError

    signals = _Signals()
    try:
        monkeypatch.setattr(os, "kill", gone)
        signals.child = 1
        signal.raise_signal(signal.SIGTERM)
        assert signals.is_stopping
        monkeypatch.setattr("parley.tools.cli.supervisor._Signals", lambda: signals)
        monkeypatch.setattr(os, "fork", lambda: pytest.fail("a child is started"))
        with pytest.raises(SystemExit) as ended:
            supervise()
        assert ended.value.code == 0
    finally:
        signals.restore()


@pytest.mark.slow
def test_a_child_that_is_killed_is_started_again(begun: list[subprocess.Popen[str]]) -> None:
    process = start(begun)
    children = []
    for _ in range(3):
        children.append(child_of(process))
        os.kill(children[-1], signal.SIGKILL)
    children.append(child_of(process))
    assert len(set(children)) == 4
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert said.count("was killed by signal 9 and is restarted") == 3


@pytest.mark.slow
def test_a_child_that_cannot_start_is_not_started_again(begun: list[subprocess.Popen[str]]) -> None:
    process = start(begun, "unready", "fails")
    said, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said.count("up")) == (7, 1)


@pytest.mark.slow
def test_a_child_that_fails_later_is_started_again(begun: list[subprocess.Popen[str]]) -> None:
    process = start(begun, "fails")
    assert child_of(process) != child_of(process)


@pytest.mark.slow
def test_a_child_ends_when_its_supervisor_is_killed(begun: list[subprocess.Popen[str]]) -> None:
    process = start(begun)
    child = child_of(process)
    process.kill()
    give_up = time.monotonic() + LIMIT_S
    while is_running(child):
        assert time.monotonic() < give_up
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return False if the process has ended, whether or not its parent has noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
