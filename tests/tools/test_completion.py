"""Shell completion: what can follow a command line, and that bash, zsh and fish insert it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from parley import Broker
from parley.tools.cli import COMMANDS, profiles
from parley.tools.cli.completing import candidates
from parley.version import VERSION
from tests.tools.conftest import Parley

BIN = Path(sys.executable).parent


def _values(*words: str) -> list[str]:
    return [each.value for each in candidates(words)]


@pytest.fixture(autouse=True)
def _no_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("PARLEY_PROFILE", raising=False)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ((), list(COMMANDS)),
        (("topi",), ["topics"]),
        (("nonsense", ""), []),
        (("topics", "--li"), ["--list"]),
        (("topics", "--list", "--li"), []),
        (("topics", "--create", "--config", "a=b", "--conf"), ["--config"]),  # repeatable
        (("topics", "--outp"), ["--output"]),
        (("topics", "--js"), ["--json"]),
        (("topics", "--output", ""), ["json", "yaml", "table"]),
        (
            (
                "topics",
                "--output=y",
            ),
            ["--output=yaml"],
        ),
        (("topics", "--output", "=", "y"), ["yaml"]),  # as bash divides it
        (("topics", "--output", "="), ["json", "yaml", "table"]),
        (("topics", "--command-config", ""), []),  # a file: the shell completes it
        (("profile", "us"), ["use"]),
        (("profile", "use", "--no"), ["--none"]),
        (("start", "--po"), ["--port"]),
        (("start", "--port", ""), []),
        (("start", ""), []),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("completion", "bash", ""), ["--color", "--version", "--help"]),
    ],
)
def test_candidates(words: Sequence[str], values: list[str]) -> None:
    assert _values(*words) == values


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_completes_its_options(name: str) -> None:
    assert "--help" in _values(name, "-")


def test_names_come_from_the_cluster(broker: Broker, topic: str) -> None:
    at = ("--bootstrap-server", broker.bootstrap_servers)
    assert _values("topics", *at, "--describe", "--topic", topic[:-1]).count(topic) == 1
    assert _values("topics", *at, "--describe", f"--topic={topic}") == [f"--topic={topic}"]
    assert _values("topics", *at, "--create", "--topic", topic[:-1]) == []  # a new name
    assert topic in _values("tail", *at, "other", "")
    assert _values("topics", "--bootstrap-server", "127.0.0.1:1", "--describe", "--topic", "") == []


def test_names_of_groups(parley: Parley, broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce(topic, b"value")
    producer.flush()
    at = ("--bootstrap-server", broker.bootstrap_servers)
    limits = ("--from-beginning", "--max-messages", "1")
    for group in (f"of-{topic}", f"of-{topic} $(ls)"):
        assert parley("consume", *at, "--topic", topic, "--group", group, *limits).code == 0
    # A name with characters that a shell interprets is never offered.
    assert _values("groups", *at, "--describe", "--group", f"of-{topic}") == [f"of-{topic}"]


def test_names_come_from_the_cluster_of_the_profile(broker: Broker, topic: str) -> None:
    profiles.store("here", {"bootstrap.servers": broker.bootstrap_servers}, replace=False)
    assert topic in _values("topics", "--profile", "here", "--delete", "--topic", "")
    assert _values("topics", "--profile", "") == ["here"]
    assert _values("profile", "use", "")[0] == "here"


class Terminal:
    """An interactive shell on its own pseudo-terminal."""

    def __init__(self, shell: Sequence[str]) -> None:
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "TERM": "xterm", "PS1": "ready> ", "NO_COLOR": "1"}
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execvpe(shell[0], list(shell), environment)
        self._shown = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the shell shows this text, after the text of the previous call."""
        while text not in self._shown:
            part = os.read(self._terminal, 4096)  # raises OSError if the shell has ended
            self._shown += part.decode(errors="replace")
        self._shown = self._shown.partition(text)[2]

    def close(self) -> None:
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("shell", [("bash", "--norc", "-i"), ("zsh", "-f", "-i")], ids=["bash", "zsh"])
def test_a_shell_inserts_the_candidates(shell: tuple[str, ...]) -> None:
    """The tab key completes a command, an option and a value; the command that results prints YAML."""
    if shutil.which(shell[0]) is None:
        pytest.skip(f"{shell[0]} is not installed")
    terminal = Terminal(shell)
    try:
        terminal.wait_for("ready> ")
        begin = "autoload -U compinit; compinit -D -u; " if shell[0] == "zsh" else ""
        terminal.type(f"{begin}source <(parley completion {shell[0]}); echo don''e\r")
        terminal.wait_for("done\r\n")
        terminal.wait_for("ready> ")
        for typed, inserted in (("parley versi", "on"), ("--outp", "ut"), ("ya", "ml")):
            terminal.type(f"{typed}\t")
            terminal.wait_for(typed)
            terminal.wait_for(inserted)
        terminal.type("\r")
        terminal.wait_for(f"parley: {VERSION}")  # YAML: the text form has no colon
    finally:
        terminal.close()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("parley versi", "version\tshow versions, and which modules are compiled"),
        ("parley version --outp", "--output\tPrint this instead of text; --json stands for --output json."),
        ("parley version --output ya", "yaml"),
        ("parley start parley-no-such-file", ""),
    ],
)
def test_fish_offers_the_candidates(typed: str, offered: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    program = f"parley completion fish | source; complete -C '{typed}'"
    done = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == offered, done.stderr
