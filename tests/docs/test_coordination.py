"""The examples of docs/coordination.md work unchanged, and the backend in them passes the whole conformance kit."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from parley.consensus.conformance.runner import all_checks

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "coordination.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
FILES = {text.splitlines()[0].removeprefix("# "): text for kind, text in BLOCKS if text.startswith("# ")}
PROGRAMS = [text for kind, text in BLOCKS if kind == "python" and not text.startswith("# ")]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a directory with the files that the page shows."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def _run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=280)


def test_the_page_shows_a_program_a_backend_and_its_harness() -> None:
    assert len(PROGRAMS) == 1
    assert FILES.keys() == {"directory_store.py", "directory_config.py", "test_directory_store.py"}
    (entry_point,) = (tomllib.loads(text) for kind, text in BLOCKS if kind == "toml")
    target = entry_point["project"]["entry-points"]["parley.coordination"]["directory"]
    assert "class " + target.partition(":")[2] in FILES["directory_store.py"]


def test_the_configuration_that_is_shown_gives_the_backend_its_options() -> None:
    module: dict[str, Any] = {}
    exec(FILES["directory_config.py"], module)  # the page's own text
    config = module["CONFIG"]
    assert [key.name for key in config.keys] == ["directory.password"]
    assert config.options({"directory.password": "p"}) == {"password": "p"}
    assert config.options({}) == {}


def test_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[0])
    result = _run("program.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "visits b'1'",
        "epoch 1",
        "fenced",
        "members ['1']",
        "keys ['data/color', 'data/state', 'data/visits']",
    ]


@pytest.mark.slow
def test_the_backend_that_is_shown_can_be_run_by_name(package: Path) -> None:
    command = ["-m", "parley.consensus.conformance", "test_directory_store:DirectoryHarness"]
    result = _run(*command, "--check", "kv-exact", "--check", "election-stale-leader-fenced", cwd=package)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed, 0 failed" in result.stdout


LONG = (
    "election-hundred-kills",
    "history-linearizable",
    "kv-concurrent-increments",
    "kv-paging",
    "model-agreement",
    "session-cut-off",
    "session-killed-process",
    "session-leaks-nothing",
    "session-many",
    "session-renewed",
    "session-stopped-process",
    "store-wall-clock",
    "watch-burst",
    "watch-loses-nothing",
    "watch-order",
    "watch-slow-consumer",
)
"""Checks that take most of the time: they wait, or start processes. The page's backend passes them in ``make soak``."""
TEST = "test_directory_store.py::TestDirectoryStore::test_property"


@pytest.mark.slow
@pytest.mark.parametrize("left_out", [LONG, pytest.param((), marks=pytest.mark.soak)], ids=["quick", "all"])
def test_the_backend_that_is_shown_conforms(package: Path, left_out: tuple[str, ...]) -> None:
    words = [word for name in left_out for word in ("--deselect", f"{TEST}[{name}]")]
    result = _run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_directory_store.py", *words, cwd=package)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(all_checks()) - len(left_out)} passed" in result.stdout


def test_every_part_of_the_kit_is_described() -> None:
    described = set(re.findall(r"`(\w+)-`", PAGE))
    assert described == {check.name.partition("-")[0] for check in all_checks()}
