"""Features of all commands: dispatch, help, Kafka's option forms, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from parley import Broker
from parley.tools.cli import _MEANT, COMMANDS
from parley.tools.cli.app import with_values
from parley.tools.cli.common_options import one_action, required
from parley.tools.cli.docs import TOOLS_PAGE, _parts_of, _root, help_of, tools_page
from parley.tools.cli.invocation import CommandError, pairs
from tests.tools.conftest import Parley


def test_without_a_command_the_commands_are_shown(parley: Parley) -> None:
    for words, code in (((), 1), (("--help",), 0), (("help",), 0)):
        typed = parley(*words)
        assert typed.code == code
        assert all(name in typed.out for name in COMMANDS)


def test_a_mistyped_command_is_guessed(parley: Parley) -> None:
    typed = parley("topcis")
    assert typed.code == 1
    assert typed.err == "parley: unknown command 'topcis'. Did you mean `parley topics`? `parley --help` lists all.\n"
    status = parley("status")
    assert "Did you mean `parley doctor` or `parley metadata` or `parley top`?" in status.err
    assert len(status.err.splitlines()) == 1
    assert "Did you mean" not in parley("xyz").err


def test_the_commands_that_are_suggested_exist() -> None:
    assert {each.split()[0] for meant in _MEANT.values() for each in meant} <= COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_name_the_command(name: str) -> None:
    for part in ((), *((part,) for part in _parts_of(name))):
        text = help_of(name, *part)
        examples = text.partition("Examples:")[2].splitlines()
        lines = [line for line in examples if "parley " in line]
        assert (1 if part else 2) <= len(lines) <= 5  # subcommands are tested with their command
        assert all(f"parley {name}" in line for line in lines)


@pytest.mark.slow
def test_docs_tools_page_is_up_to_date() -> None:
    assert (_root() / TOOLS_PAGE).read_text() == tools_page(), "run `parley docs`"


def test_wrong_usage_is_exit_code_1(parley: Parley) -> None:
    assert parley("topics", "--nonsense").code == 1
    assert parley("produce").code == 1


@pytest.mark.parametrize(
    ("words", "prepared"),
    [
        (["--list", "--state"], ["--list", "--state", "*"]),
        (["--state", "--list"], ["--state", "*", "--list"]),
        (["--state", "Stable,Empty", "--list"], ["--state", "Stable,Empty", "--list"]),
        (["--props", "a=1", "b=2", "--x"], ["--props", "a=1", "--props", "b=2", "--x"]),
        (["--props"], ["--props"]),
        (["--shift-by", "-5"], ["--shift-by", "-5"]),
        (["--state=Stable"], ["--state=Stable"]),
    ],
)
def test_options_as_kafka_writes_them(words: list[str], prepared: list[str]) -> None:
    assert with_values(words, {"--state": "*"}, frozenset({"--props"})) == prepared


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "--config") == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(CommandError, match="--config takes key=value"):
            pairs([wrong], "--config")


def test_one_action() -> None:
    assert one_action(create=True, delete_offsets=False) == "create"
    with pytest.raises(CommandError, match="exactly one of --create, --delete-offsets, not --create and"):
        one_action(create=True, delete_offsets=True)
    with pytest.raises(CommandError, match="exactly one"):
        one_action(create=False)


def test_required() -> None:
    assert required("x", "--topic", "create") == "x"
    with pytest.raises(CommandError, match="--reset-offsets needs --topic"):
        required("", "--topic", "reset_offsets")


def test_if_no_broker_responds_the_error_says_what_to_do(parley: Parley) -> None:
    typed = parley("topics", "--list", "--bootstrap-server", "127.0.0.1:1")
    assert typed.code == 1
    assert "no broker responds at 127.0.0.1:1" in typed.err
    assert "parley start" in typed.err


@pytest.mark.parametrize("address", ["nonsense:port", "", "a:0", "." * 70 + ":1"])
def test_an_invalid_address(parley: Parley, address: str) -> None:
    typed = parley("topics", "--list", "--bootstrap-server", address)
    assert typed.code == 1
    assert "Traceback" not in typed.err
    assert typed.err.startswith("Error: ")


def test_a_login_without_credentials_is_refused(parley: Parley, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n")
    typed = parley("topics", "--list", "--command-config", str(config))
    assert (typed.code, typed.err.startswith("Error: --command-config: ")) == (1, True)
    assert "needs sasl.jaas.config" in typed.err


def test_a_missing_properties_file(parley: Parley, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    migrate = ("zookeeper-security-migration", "--zookeeper.acl", "secure", "--zk-tls-config-file", none)
    for words in (("topics", "--list", "--command-config", none), migrate):
        typed = parley(*words)
        assert (typed.code, "cannot be read" in typed.err) == (1, True), typed.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_version(parley: Parley, name: str) -> None:
    for part in ((), *((part,) for part in _parts_of(name))):
        assert (parley(name, *part, "--version").out) == f"{version('parley-broker')}\n"


def test_ignored_settings_of_java_clients_give_one_warning(parley: Parley, broker: Broker, tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    providers = "config.providers=env\nconfig.providers.env.class=EnvVarConfigProvider\n"  # used already
    settings = "key.serializer=x\nclient.id=me\nrequest.timeout.ms=20000\nmetric.reporters=\nno.such=1\n"
    config.write_text(providers + settings)
    words = ("topics", "--list", "--bootstrap-server", broker.bootstrap_servers, "--command-config", str(config))
    typed = parley(*words)
    assert typed.code == 0
    assert (
        typed.err == "Warning: these client settings have no effect here: key.serializer, metric.reporters, no.such.\n"
    )
    config.write_text("request.timeout.ms=soon\n")
    assert "request.timeout.ms must be a number" in parley(*words).err


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["fails at the end", "fails at the first line"])
def test_a_reader_that_closes_the_output_is_no_error(parley: Parley, broker: Broker, unbuffered: str) -> None:
    parley("topics", "--create", "--topic", "seen", "--if-not-exists", "--bootstrap-server", broker.bootstrap_servers)
    command = f"{sys.executable} -m parley topics --list --bootstrap-server {broker.bootstrap_servers} | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stderr) == (0, "")
