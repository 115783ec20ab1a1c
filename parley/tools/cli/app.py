"""Command-line parsing for every command: typer, help texts with examples, and the option forms of Kafka's tools."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from parley.tools.cli import colors, profiles
from parley.tools.cli.invocation import CommandError
from parley.version import VERSION

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HELP_WIDTH = 110

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741 - the type of a command's options


class App(typer.Typer):
    """A command, or a group of subcommands.

    ``help`` describes it. ``examples`` are pairs of a command line and its purpose, shown below the options.
    ``optional_values`` maps each option whose value may be omitted to the value that is then used. ``many_values`` are
    options that take all values up to the next option. ``replaced`` maps words to the words that replace them. Without
    ``takes_profiles``, ``--bootstrap-server`` never comes from a profile.
    """

    def __init__(
        self,
        help: str,
        *,
        examples: Sequence[tuple[str, str]] = (),
        optional_values: Mapping[str, str] | None = None,
        many_values: Sequence[str] = (),
        replaced: Mapping[str, Sequence[str]] | None = None,
        takes_profiles: bool = True,
    ) -> None:
        self._help = help
        self._examples = examples
        self._optional_values = dict(optional_values or {})
        self._many_values = frozenset(many_values)
        self._replaced = dict(replaced or {})
        self._takes_profiles = takes_profiles
        super().__init__(
            help=help,
            epilog=example_text(examples),
            add_completion=False,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"]},
        )

    def prepared(self, arguments: Sequence[str]) -> list[str]:
        """Rewrite the arguments in the form that the option parser expects."""
        words = [word for each in arguments for word in self._replaced.get(each, (each,))]
        return with_values(words, self._optional_values, self._many_values)

    def invoke(self, name: str, arguments: Sequence[str]) -> None:
        """Run the command with these arguments. Never returns: raises ``SystemExit`` when the command ends, or
        ``CommandError`` if it fails.

        If the command used a profile, the message of the ``CommandError`` names the profile.
        """
        command = self.parser()
        head, part, words = _divided(command, self.prepared(arguments))
        if _prints_data(part):
            words = [spelt for word in words for spelt in (("--output", "json") if word == "--json" else (word,))]
        words, profile = profiles.applied(part, words) if self._takes_profiles else (words, None)
        try:
            command(args=[*head, *words], prog_name=name, terminal_width=_width())
        except CommandError as error:
            if profile is None:
                raise
            raise CommandError(f"{error} (The profile {profile.name} was used: {profile.path})") from error

    def parser(self) -> Any:
        """Return the option parser's command, including the options common to all commands."""
        return _with_common_options(typer.main.get_command(self), takes_profiles=self._takes_profiles)

    def only_command(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate the function of an app with a single command. The command shows the app's help text."""
        return self.command(help=self._help, epilog=example_text(self._examples))

    def only_command_with(self, options: type[O]) -> Callable[[Callable[[O], None]], Callable[[O], None]]:
        """Decorate a function like ``only_command``, but pass it all options in one dataclass."""

        def decorate(work: Callable[[O], None]) -> Callable[[O], None]:
            self.only_command()(from_options(options, work))
            return work

        return decorate


def from_options(options: type[O], work: Callable[[O], None]) -> Callable[..., None]:
    """Wrap ``work`` in a function with one keyword argument per field of the dataclass, as typer requires."""

    def command(**values: Any) -> None:
        work(options(**values))

    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one), annotation=hints[one.name])
        for one in fields(options)
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    command.__doc__ = work.__doc__
    return command


def _default(one: Field[Any]) -> Any:
    if one.default_factory is not MISSING:
        return one.default_factory()
    return inspect.Parameter.empty if one.default is MISSING else one.default


def _show_version(is_given: bool) -> None:
    if is_given:
        print(VERSION)
        raise typer.Exit


def _choose_colors(when: colors.When) -> None:
    colors.choose(when)


def _common_options(
    color: Annotated[
        colors.When,
        typer.Option(
            "--color",
            is_eager=True,
            expose_value=False,
            callback=_choose_colors,
            help="Color the output on terminals.",
        ),
    ] = colors.When.AUTO,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, expose_value=False, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Declare the options of every command; typer builds them from this function."""


def _profile_option(
    profile: Annotated[
        str | None, typer.Option("--profile", expose_value=False, help="The profile with the address and the settings.")
    ] = None,
) -> None:
    """Declare ``--profile``, which ``profiles.applied`` removes from the arguments."""


def _with_common_options(command: Any, *, takes_profiles: bool) -> Any:
    """Add the options common to all commands to a command and its subcommands."""
    for one in (command, *getattr(command, "commands", {}).values()):
        if takes_profiles and any("--bootstrap-server" in each.opts for each in one.params):
            one.params += _options_of(_profile_option)
        one.params += _options_of(_common_options)
    return command


def _options_of(declaration: Callable[..., None]) -> list[Any]:
    carrier = typer.Typer(add_completion=False)
    carrier.command()(declaration)
    return list(typer.main.get_command(carrier).params)


def _divided(command: Any, words: list[str]) -> tuple[list[str], Any, list[str]]:
    """Split a command line after its subcommand. Returns the words up to and including the subcommand, the subcommand's
    parser, and the remaining words. Without a subcommand, returns no words, ``command`` and all words."""
    parts = getattr(command, "commands", {})
    at = next((at for at, word in enumerate(words) if not word.startswith("-")), None) if parts else None
    if at is None or words[at] not in parts:
        return [], command, words
    return words[: at + 1], parts[words[at]], words[at + 1 :]


def _prints_data(command: Any) -> bool:
    """Return True if the command has the option ``OutputFormat``. ``--json`` is then short for ``--output json``."""
    return any(each.name == "output_format" for each in command.params)


def example_text(examples: Sequence[tuple[str, str]]) -> str | None:
    """Format the examples for the end of a help text; ``\\b`` stops typer from rewrapping the lines. Returns None if
    there are none."""
    if not examples:
        return None
    lines = [f"  {line}\n      {meaning}" for line, meaning in examples]
    return "Examples:\n\n\b\n" + "\n".join(lines)


def _width() -> int:
    """Return the width of a help text in columns, limited by the terminal's width."""
    columns = os.environ.get("COLUMNS", "")
    return min(int(columns), _HELP_WIDTH) if columns.isdecimal() and int(columns) > 0 else _HELP_WIDTH


def with_values(words: Sequence[str], optional: Mapping[str, str], many: frozenset[str]) -> list[str]:
    """Rewrite a command line so that every option takes exactly one value.

    In Kafka's tools, the value of some options may be omitted (``optional`` maps each option to the value to insert),
    and some options take all values up to the next option (``many``). Such an option is repeated for each value.
    """
    prepared: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in optional:
            has_value = at < len(words) and not words[at].startswith("--")
            prepared += [word, words[at] if has_value else optional[word]]
            at += has_value
        elif word in many:
            end = at
            while end < len(words) and not words[end].startswith("--"):
                end += 1
            # An option without any value is kept, so that the parser reports it.
            prepared += [part for value in words[at:end] for part in (word, value)] or [word]
            at = end
        else:
            prepared.append(word)
    return prepared
