"""Every block of docs/embedding.md runs unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PROGRAMS = [text for kind, text in BLOCKS if kind == "python" and not text.startswith("# test_")]
TESTS = [text for kind, text in BLOCKS if kind == "python" and text.startswith("# test_")]
INI = [text for kind, text in BLOCKS if kind == "ini"]

PRINTED = {
    "AIOKafkaConsumer(": [r"b'hello'"],
    " Consumer(": [r"b'hello'"],
    "data_dir=folder": [r"second 127\.0\.0\.1:\d+"],
    "Cluster(brokers=3)": [],
}
"""The last line that a program prints, by what the program is known by; nothing for one that prints nothing."""


def _run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=280)


def test_the_page_has_every_kind_of_block() -> None:
    assert PROGRAMS
    assert TESTS
    assert len(INI) == 1
    assert {kind for kind, _ in BLOCKS} == {"python", "ini", "sh"}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(program: str, tmp_path: Path) -> None:
    (printed,) = [printed for part, printed in PRINTED.items() if part in program]
    (tmp_path / "program.py").write_text(program)
    result = _run("program.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    last = result.stdout.splitlines()[-1:]
    assert len(last) == len(printed)
    assert all(map(re.fullmatch, printed, last)), result.stdout
    if ".kill(" not in program:
        assert "FAIL" not in result.stderr, "clients are closed before their broker"


@pytest.mark.slow
@pytest.mark.parametrize("text", TESTS)
def test_a_test_passes(text: str, tmp_path: Path) -> None:
    name = text.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text(INI[0])
    plugin = () if _is_installed() else ("-p", "parley.tools.pytest_plugin")
    result = _run("-m", "pytest", "-q", *plugin, name, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "1 passed" in result.stdout


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(point.value == "parley.tools.pytest_plugin" for point in entry_points(group="pytest11"))
