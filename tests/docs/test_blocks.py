"""The commands in the documentation work, and print the output that the pages show.

The test runs all blocks of a page that are marked ``console``, in order, in one folder. A line after ``$`` is a
command; the lines below it are its complete output. In them, ``...`` stands for any text within a line, and a line that
is only ``...`` stands for any lines. ``parley start`` runs until the page ends. Ports are replaced, so that several
pages can be tested at the same time. Blocks marked ``python`` are programs, which run here unless the page has its own
test; ``KINDS`` says what happens to all other blocks.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, parse_properties
from tests.support.ports import free_port
from tests.support.preloaded import preloaded_path
from tests.system.running import BrokerProcess

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OWN_TESTS = {
    "embedding.md": "test_embedding.py",
    "coordination.md": "test_coordination.py",
    "connect.md": "../pipeline/connect/test_page.py",
    "migrate-from-kafka.md": "test_migrating.py",
    "pipeline.md": "../pipeline/test_page.py",
    "security.md": "test_security.py",
}
"""Pages whose programs other tests run."""

TYPED_IN_OWN_TESTS = {"migrate-from-kafka.md": "test_migrating.py", "procedures.md": "test_procedures.py"}
"""Pages whose ``console`` blocks need more than one broker."""

KINDS = {
    "console": "typed",
    "python": "run",
    "properties": "a broker's configuration without warnings",
    "bash": "typed in order by a test of the page's own: test_security.py",
    "sh": "targets of the Makefile, or what a test named beside it types",
    "shell": "the suite run in other ways, servers built by hand: typed by contributors; only on their page",
    "ini": "settings of other programs",
    "toml": "settings of other programs",
    "text": "shown, not typed; only on pages made from code",
    "json": "shapes of output; only on pages made from code",
}
TYPED_ELSEWHERE = {
    "pip install": "test_installing.py",
    "parley acls": "../tools/test_acls.py",
    "parley configs": "../tools/test_scram_users.py",
    "parley console": "../tools/console/test_in_a_browser.py",
    "parley delegation-tokens": "../tools/test_delegation_tokens.py",
    "parley registry": "../pipeline/registry/test_topic.py",
    "parley connect": "../pipeline/connect/test_page.py",
    "parley security": "../tools/test_security_check.py",
    "parley load": "../pipeline/load/test_load_command.py",
    "parley mirror": "../pipeline/mirror/test_mirror_job.py",
    "python -m parley.pipeline.spark.shipping": "../pipeline/test_shipping.py",
    "python -m parley.tools.orders_example": "../pipeline/test_example_orders.py",
    "docker build ": "../deploy/test_image.py",
    "docker run ": "../deploy/test_image.py",
    "helm ": "../deploy/test_chart.py",
    "promtool check": "../deploy/test_monitoring_rules.py",
    "curl -s": "../pipeline/connect/test_page.py",
    "etcdctl ": "../consensus/test_etcd_secured.py",
    "consul acl": "../consensus/test_consul_servers.py",
}
"""What ``sh`` blocks may begin with besides ``make``, and the test that does it."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT, _METRICS_PORT = "9092", "9464"
_SHELL = """\
parley() {
  case "$1 $*" in
    "version "*|"docs "*|"profile "*|*" --profile "*) command parley "$@" ;;
    "doctor "*.properties*|"support-bundle "*.properties*|"dump-log "*) command parley "$@" ;;
    *" --help"|*--bootstrap-server*) command parley "$@" ;;
    *) command parley "$@" --bootstrap-server "127.0.0.1:$PARLEY_PORT" ;;
  esac
}
set -o pipefail
"""


def blocks(page: Path, kind: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(page.read_text()) if found == kind]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block, each with the lines it is said to print."""
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
        own = {"PATH": preloaded_path(), "PARLEY_PORT": str(self.port), "XDG_CONFIG_HOME": f"{folder}/config"}
        self._environment = {name: value for name, value in os.environ.items() if name != "PARLEY_PROFILE"} | own

    def type(self, command: str) -> str:
        """What the command prints. It must end with exit code 0."""
        if shlex.split(command) == ["parley", "start"]:
            return self._start()
        typed = _exchanged(command, {_PORT: str(self.port), _METRICS_PORT: str(self.metrics_port)})
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
        return _exchanged(text, {str(self.port): _PORT, str(self.metrics_port): _METRICS_PORT})

    def close(self) -> None:
        if self.broker is not None:
            self.broker.stop()


def _exchanged(text: str, ports: Mapping[str, str]) -> str:
    """Replace ports, but not digits of a longer number, or of a port that has just been put in."""
    return re.sub(rf"\b({'|'.join(ports)})\b", lambda found: ports[found[0]], text)


def test_only_whole_ports_are_exchanged() -> None:
    assert _exchanged("h:9092 h:9464 t=190921", {"9092": "19464", "9464": "19092"}) == "h:19464 h:19092 t=190921"


def check(command: str, printed: str, shown: list[str]) -> None:
    """Check that the page shows exactly what the command printed. A run of blanks equals one blank."""
    lines = [" ".join(line.split()) for line in printed.splitlines() if line.strip()]
    gap = False
    for expected in (" ".join(line.split()) for line in shown if line.strip()):
        if expected == "...":
            gap = True
            continue
        found = next((at for at, line in enumerate(lines) if _matches(expected, line)), None)
        assert found is not None, f"$ {command}\nshould print\n{expected}\nand printed\n{printed}"
        assert gap or found == 0, f"$ {command}\nprinted what is not shown:\n{lines[:found]}"
        del lines[: found + 1]
        gap = False
    assert gap or not lines, f"$ {command}\nprinted what is not shown:\n{lines}"


def _matches(expected: str, line: str) -> bool:
    parts = expected.split("...")
    if len(parts) == 1:
        return line == expected
    at = len(parts[0])
    if not line.startswith(parts[0]):
        return False
    for part in parts[1:-1]:
        found = line.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(line) - len(parts[-1]) >= at and line.endswith(parts[-1])


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "console") and page.name not in TYPED_IN_OWN_TESTS],
    ids=lambda page: page.name,
)
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
    for page, test in [*OWN_TESTS.items(), *TYPED_IN_OWN_TESTS.items()]:
        assert (ROOT / "docs" / page).exists()
        assert (Path(__file__).parent / test).exists(), f"no test runs what is on {page}"


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    for page in PAGES:
        openings = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2]
        assert set(openings) <= KINDS.keys(), page.name
        assert "json" not in openings or page.name == "tools.md", page.name
        assert "text" not in openings or page.name in ("tools.md", "performance.md"), page.name
        assert "shell" not in openings or page.name == "contributing.md", page.name
        assert "bash" not in openings or page.name == "security.md", page.name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=lambda page: page.name)
def test_shell_commands_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in filter(None, "\n".join(blocks(page, "sh")).splitlines()):
        words = line.split()
        if words[0] == "make":
            assert words[1] in targets, line
            continue
        (test,) = [test for start, test in TYPED_ELSEWHERE.items() if line.startswith(start)]
        assert (Path(__file__).parent / test).exists()


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "properties")], ids=lambda page: page.name)
def test_properties_are_a_configuration(page: Path) -> None:
    for text in blocks(page, "properties"):
        assert not BrokerConfig.from_properties(parse_properties(text)).warnings


def test_the_check_of_outputs_finds_differences() -> None:
    check("c", "a 1\nb\nc\n", ["a ...", "...", "c"])
    check("c", "", [])
    for printed, shown in (("a\nb", ["a"]), ("a\nb", ["b"]), ("a", ["a", "b"]), ("a", []), ("ab", ["a...b...b"])):
        with pytest.raises(AssertionError):
            check("c", printed, shown)


def test_events_that_are_explained_are_logged() -> None:
    """Those of the level ``info``; test_log_lines.py has the others."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("## What the log says\n")[2].partition("\n## ")[0]
    source = "".join(
        path.read_text()
        for name in ("broker", "storage", "consensus")
        for path in (ROOT / "parley" / name).rglob("*.py")
    )
    events = [
        event for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for event in re.findall(r"`(.*?)`", row)
    ]
    assert len(events) > 5
    assert [event for event in events if event not in source] == []


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = _BLOCK.sub("", page.read_text())  # code contains no links
        for target in re.findall(r"\]\((?!https?://)([^)#\s]+)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
