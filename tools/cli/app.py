"""The frame of a command's options: typer with plain help that shows examples, and Kafka's odd option forms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from tools.cli.running import with_values

_HELP_WIDTH = 110


class App(typer.Typer):
    """One command, or a family of them.

    ``help`` says what it does; ``examples`` are shown below its options, each a command line and what it is for.
    ``optional_values`` are options whose value may be left out, with what that means; ``many_values`` are options
    that take every value up to the next option.
    """

    def __init__(
        self,
        help: str,
        *,
        examples: Sequence[tuple[str, str]] = (),
        optional_values: Mapping[str, str] | None = None,
        many_values: Sequence[str] = (),
    ) -> None:
        self._help = help
        self._examples = examples
        self._optional_values = dict(optional_values or {})
        self._many_values = frozenset(many_values)
        super().__init__(
            help=help,
            epilog=example_text(examples),
            add_completion=False,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def prepared(self, arguments: Sequence[str]) -> list[str]:
        """The arguments as the option parser wants them."""
        return with_values(arguments, self._optional_values, self._many_values)

    def invoke(self, name: str, arguments: Sequence[str]) -> None:
        """Run with these arguments; ends with SystemExit, as the option parser does."""
        self(args=self.prepared(arguments), prog_name=name, terminal_width=_width())

    def only_command(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorates the function of an application that has one command: it has the application's help."""
        return self.command(help=self._help, epilog=example_text(self._examples))


def example_text(examples: Sequence[tuple[str, str]]) -> str | None:
    """Examples as they stand at the end of a help text; \\b keeps the lines as they are."""
    if not examples:
        return None
    lines = [f"  {line}\n      {meaning}" for line, meaning in examples]
    return "Examples:\n\n\b\n" + "\n".join(lines)


def _width() -> int:
    """The columns a help text may have, on the terminal there is now."""
    columns = os.environ.get("COLUMNS", "")
    return min(int(columns), _HELP_WIDTH) if columns.isdecimal() and int(columns) > 0 else _HELP_WIDTH
