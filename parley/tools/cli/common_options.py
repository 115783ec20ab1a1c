"""Options that several commands have, by Kafka's names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from parley.tools.cli.invocation import CommandError

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

BootstrapServer = Annotated[
    str,
    typer.Option(
        "--bootstrap-server", "--broker-list", help="Brokers to connect to first: host:port, several by commas."
    ),
]
OnlyBootstrapServer = Annotated[
    str, typer.Option("--bootstrap-server", help="Brokers to connect to first: host:port, several by commas.")
]
"""For commands whose --broker-list names brokers by id."""
CommandConfig = Annotated[
    Path | None, typer.Option("--command-config", help="Properties file for the client of this command.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what the client library logs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]


def one_action(**actions: object) -> str:
    """The one action that was asked for; :class:`CommandError` for none or several."""
    flags = {name: f"--{name.replace('_', '-')}" for name in actions}
    chosen = [name for name, asked in actions.items() if asked]
    if len(chosen) != 1:
        given = f", not {' and '.join(flags[name] for name in chosen)} together" if chosen else ""
        raise CommandError(f"Name exactly one of {', '.join(flags.values())}{given}.")
    return chosen[0]


def required(value: T | None, option: str, action: str) -> T:
    """The value of an option that an action cannot do without."""
    if not value:
        raise CommandError(f"--{action.replace('_', '-')} needs {option}.")
    return value


def broker_ids(text: str, option: str) -> list[int]:
    """The broker ids in ``0,1,2``. Raises :class:`CommandError`."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise CommandError(f"{option} takes broker ids as in 0,1,2, not '{text}'.") from error


def client_properties(path: Path | None) -> dict[str, str]:
    """The settings of a client's properties file; none where no file is named."""
    if path is None:
        return {}
    from parley.broker.config.properties import read_properties

    try:
        return read_properties(path)
    except OSError as error:
        raise CommandError(f"The file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CommandError(f"The file {path} is no properties file: {error}.") from error


def warn_ignored(names: Iterable[str], kind: str = "client settings") -> None:
    """Tell of settings that have no effect here, in one line; of none nothing is told."""
    shown = ", ".join(sorted(names))
    if shown:
        print(f"Warning: these {kind} have no effect here: {shown}.", file=sys.stderr)
