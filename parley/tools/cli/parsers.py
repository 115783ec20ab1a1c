"""The option parsers of all commands, for shell completion, the manual pages and tests."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any


def parser_of(name: str) -> Any:
    """Return the option parser's command for ``parley NAME``. ``start`` is not supported."""
    from parley.tools.cli import COMMANDS

    return import_module(f"parley.tools.cli.{COMMANDS[name].module}").app.parser()


def parsers() -> Iterator[tuple[str, Any]]:
    """Yield each command and each subcommand with its full name, except ``start``, which has a separate parser."""
    from parley.tools.cli import COMMANDS

    for name in COMMANDS:
        if name == "start":
            continue
        command = parser_of(name)
        yield name, command
        for part, inner in getattr(command, "commands", {}).items():
            yield f"{name} {part}", inner
