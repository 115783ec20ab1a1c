"""What the documentation shows to type works, and prints what it shows.

Every block marked ``console`` of a page is typed in order, in one folder: lines behind ``$`` are commands, the lines
below them must appear in the output, ``...`` standing for anything. ``parley start`` runs until the page ends. Ports
are replaced, so that pages can be tried at the same time. Blocks marked ``python`` are programs, unless a test of the
page's own runs them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.running import BrokerProcess, free_port

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OWN_TESTS = {"embedding.md": "test_embedding.py", "coordination.md": "test_coordination.py"}
"""Pages whose programs other tests run."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT, _METRICS_PORT = "9092", "9464"
_SHELL = """\
parley() {
  case "$1 $*" in
    "version "*|"docs "*|"dump-log "*|*" --help"|*--bootstrap-server*) command parley "$@" ;;
    *) command parley "$@" --bootstrap-server "127.0.0.1:$PARLEY_PORT" ;;
  esac
}
set -o pipefail
"""


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(page.read_text()) if found == kind]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a block, each with the lines it is said to print."""
    command, shown = "", list[str]()
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], []
        elif command.endswith("\\"):
            command += "\n" + line
        else:
            shown.append(line)
    assert command, f"a block without a command:\n{text}"
    yield command, shown


class Terminal:
    """Types the commands of a page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.metrics_port = free_port(), free_port()
        self.broker: BrokerProcess | None = None
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "PARLEY_PORT": str(self.port)}

    def type(self, command: str) -> str:
        """What the command prints. It must end with exit code 0."""
        if shlex.split(command) == ["parley", "start"]:
            return self._start()
        typed = command.replace(_PORT, str(self.port)).replace(_METRICS_PORT, str(self.metrics_port))
        done = subprocess.run(
            ["bash", "-c", _SHELL + typed], cwd=self.folder, env=self._environment, text=True, timeout=120,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"$ {typed}\n{done.stdout}"
        return self._as_shown(done.stdout)

    def _start(self) -> str:
        assert self.broker is None, "a page starts one broker"
        # What `parley start` does by itself, but for the ports.
        settings = {
            "log.dirs": str(self.folder / "parley-data"),
            "metrics.listener": f"127.0.0.1:{self.metrics_port}",
        }
        self.broker = BrokerProcess(self.folder, settings, port=self.port)
        self.broker.start()
        return self._as_shown("\n".join(self.broker.summary))

    def _as_shown(self, text: str) -> str:
        return text.replace(str(self.port), _PORT).replace(str(self.metrics_port), _METRICS_PORT)

    def close(self) -> None:
        if self.broker is not None:
            self.broker.stop()


def check(command: str, printed: str, shown: list[str]) -> None:
    """The lines shown were printed, in this order."""
    lines = iter(printed.splitlines())
    for expected in filter(str.strip, shown):
        pattern = re.escape(expected.rstrip()).replace(r"\.\.\.", ".*")
        found = any(re.fullmatch(pattern, line.rstrip()) for line in lines)
        assert found, f"$ {command}\nshould print\n{expected}\nand printed\n{printed}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.name)
def test_commands(page: Path, tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    try:
        for block in blocks(page, "console"):
            for command, shown in commands(block):
                check(command, terminal.type(command), shown)
    finally:
        terminal.close()


_PROGRAMS = [
    pytest.param(text, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name not in OWN_TESTS
    for number, text in enumerate(blocks(page, "python"), 1)
]


@pytest.mark.parametrize("text", _PROGRAMS)
def test_programs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, path.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_tests_of_other_pages_are_there() -> None:
    for page, test in OWN_TESTS.items():
        assert (ROOT / "docs" / page).exists()
        assert (Path(__file__).parent / test).exists(), f"nobody runs the programs of {page}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
