"""``make quickstart`` tells its story, and tells it truthfully."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools import quickstart


def test_the_story(tmp_path: Path) -> None:
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"line {number}\n" for number in range(300)))
    command = [sys.executable, "-m", "tools.quickstart", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    commands = [line for line in done.stdout.splitlines() if line.startswith("$ ")]
    assert [" ".join(command.split()[1:3]) for command in commands] == [
        "parley start",
        "parley topics",
        "parley produce",
        "parley topics",
        "kill -9",
        "parley topics",
        "parley consume",
    ]
    assert "Nothing is missing, doubled or out of order." in done.stdout


def sending(acknowledged: int, sent: int) -> quickstart._Sending:
    made = quickstart._Sending("", [])
    made.sent = [b"%d" % number for number in range(sent)]
    made.acknowledged_at = [float(number) for number in range(acknowledged)]
    return made


def test_what_went_wrong_is_said(capsys) -> None:
    lines = [b"a", b"b"]
    assert quickstart._report(lines, lines, sending(2, 2), 1.0) == 0
    assert "Nothing is missing" in capsys.readouterr().out
    for received in ([b"a"], [b"b", b"a"], [b"a", b"b", b"b"]):
        assert quickstart._report(lines, received, sending(2, 2), 1.0) == 1
        said = capsys.readouterr()
        assert "The lines differ from line" in said.err
        assert "Nothing is missing" not in said.out
    assert quickstart._report(lines, lines, sending(1, 2), 1.0) == 1
    assert "1 lines were not acknowledged (no answer)." in capsys.readouterr().err
