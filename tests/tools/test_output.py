"""The forms of ``--output``: JSON and YAML have the same content, tables are aligned, colors are for terminals."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from parley import Broker
from parley.tools.cli import COMMANDS, colors
from parley.tools.cli.json_shapes import SHAPES
from parley.tools.cli.output import Format, formatted, table_lines
from parley.tools.cli.parsers import parsers
from tests.tools.conftest import Parley

BY_LINE = {"consume", "dump-log", "mirror", "tail"}
"""Commands that print an object per line while they run: their option is ``--json``."""
READERS = {
    "topics --list": (),
    "topics --describe": ("--topic", "{topic}"),
    "groups --list": (),
    "configs --describe": ("--topic", "{topic}", "--all"),
    "offsets": ("--topic", "{topic}"),
    "reassign --list": (),
    "acls --list": (),
    "transactions list": (),
    "cluster list-endpoints": (),
    "features describe": (),
    "log-dirs --describe": ("--topic-list", "{topic}"),
    "metadata": ("--topic", "{topic}"),
    "coordination migrate": ("--status",),
    "balance --plan": ("--interval", "0"),
    "profile list": (),
    "version": (),
}


@pytest.mark.parametrize("name", READERS)
def test_json_and_yaml_agree_and_the_table_holds_the_names(
    parley: Parley, broker: Broker, topic: str, name: str
) -> None:
    at = () if name in ("version", "profile list") else ("--bootstrap-server", broker.bootstrap_servers)
    words = [*name.split(), *at, *(word.format(topic=topic) for word in READERS[name])]
    as_json, as_yaml, table = (parley(*words, "--output", form.value) for form in Format)
    if name == "acls --list":  # this broker has no authorizer
        assert {each.code for each in (as_json, as_yaml, table)} == {1}
        return
    assert (as_json.code, as_yaml.code, table.code) == (0, 0, 0)
    data = json.loads(as_json.out)
    assert yaml.safe_load(as_yaml.out) == data
    assert parley(*words, "--json").out == as_json.out
    assert "\x1b" not in table.out
    if "--topic" in words:
        assert topic in table.out


def test_every_documented_command_has_the_option() -> None:
    found = {name: {opt for each in command.params for opt in each.opts} for name, command in parsers()}
    for name in SHAPES:
        command = name.split(" --")[0]
        family = command.split()[0]
        wanted = "--json" if family in BY_LINE else "--output"
        assert wanted in found[command], name
    only_json = {name for name, options in found.items() if "--json" in options}
    assert only_json <= BY_LINE


def test_commands_that_take_servers_take_profiles() -> None:
    for name, command in parsers():
        options = {opt for each in command.params for opt in each.opts}
        if "--bootstrap-server" in options and not name.startswith("profile"):
            assert "--profile" in options, name
        assert name == "start" or "--color" in options


def test_parsers_know_every_command() -> None:
    assert {name.split()[0] for name, _ in parsers()} == set(COMMANDS) - {"start"}


NESTED = [
    {"group": "a", "state": "Stable", "members": [{"id": "m1", "partitions": {"t": [0, 1]}}], "lag": 7},
    {"group": "longer", "state": None, "members": [], "lag": 123},
]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (["a", "b"], ["a", "b"]),
        ([], []),
        (None, ["-"]),
        ({"clusterId": "x", "is": True}, ["CLUSTER-ID  x", "IS          yes"]),
        (
            NESTED,
            [
                "GROUP   STATE   LAG",
                "a       Stable    7",
                "longer  -       123",
                "",
                "MEMBERS",
                "GROUP  ID  PARTITIONS",
                "a      m1  t(0,1)",
            ],
        ),
        ({"a": "two\nlines"}, ["A  two lines"]),
        (
            [{"id": 1, "parts": [{"n": "x", "inner": [{"y": 2.5}]}]}],
            ["ID", " 1", "", "PARTS", "ID  N", " 1  x", "", "INNER", "ID    Y", " 1  2.5"],
        ),
        ({"of": {"a": {"n": 1}, "b": {"n": 2}}}, ["", "OF", "NAME  N", "a     1", "b     2"]),
    ],
)
def test_tables(data: Any, lines: list[str]) -> None:
    assert table_lines(data) == lines


def test_yaml_has_no_end_mark_and_no_types_of_python() -> None:
    assert formatted(Format.JSON, Format.YAML) == "json"
    assert formatted({"a": [], "b": ("x",)}, Format.YAML) == "a: []\nb:\n- x"


@pytest.fixture
def _automatic() -> Any:
    yield
    colors.choose(colors.When.AUTO)


@pytest.mark.usefixtures("_automatic")
def test_colors_are_for_terminals(parley: Parley, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[1m" in parley("version", "--output", "table", "--color", "always").out
    assert "\x1b" not in parley("version", "--output", "table", "--color", "never").out
    terminal = type("Terminal", (), {"isatty": lambda self: True})()
    colors.choose(colors.When.AUTO)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colors.is_colored(terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colors.is_colored(terminal)
    colors.choose(colors.When.ALWAYS)
    assert colors.is_colored(terminal)
