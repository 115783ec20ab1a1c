"""What can follow on a command line: subcommands, options, values, and names of topics and groups.

1. A candidate consists of letters, digits, '.', '_', '-' and, after an option, '='. Shells insert candidates verbatim,
   so names from a cluster that contain any other character are omitted.
2. The cluster is queried only for the value of an option that names a topic or group, with the address and login that
   the command itself would use, and for at most ``_PATIENCE_S`` seconds. If the query fails, there are no candidates.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from parley.tools.cli import COMMANDS, profiles
from parley.tools.cli.common_options import DEFAULT_BOOTSTRAP, client_properties, security_of
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.parsers import parser_of

if TYPE_CHECKING:
    from parley.protocol.client import Client

_SAFE: Final = re.compile(r"[A-Za-z0-9._=-]+")
_PATIENCE_S: Final = 1.0
_NAMES_MAX: Final = 500
"""The maximum number of topic or group names offered. A longer list would not help the user."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that can follow, and its meaning (empty if there is none to show)."""

    value: str
    meaning: str = ""


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Return the candidates for the last of the words after ``parley``. That word may be unfinished or empty."""
    *done, unfinished = _joined(words) or [""]
    if not done:
        found: Iterable[Candidate] = (Candidate(name, command.summary) for name, command in COMMANDS.items())
    elif done[0] not in COMMANDS:
        found = ()
    elif done[0] == "start":
        found = _of_start(done[1:], unfinished)
    else:
        found = _of_command(done[0], done[1:], unfinished)
    return [each for each in found if each.value.startswith(unfinished) and _SAFE.fullmatch(each.value)]


def _joined(words: Sequence[str]) -> list[str]:
    """Rejoin words that bash splits: ``--output = js`` is an option and its unfinished value."""
    joined: list[str] = []
    for at, word in enumerate(words):
        if word == "=" and joined and joined[-1].startswith("--"):
            if at == len(words) - 1:
                joined.append("")
        else:
            joined.append(word)
    return joined


def _of_start(done: Sequence[str], unfinished: str) -> Iterator[Candidate]:
    """Yield the candidates for ``parley start``, which uses its own parser."""
    actions = import_module("parley.tools.cli.start").parser()._actions
    for action in actions:
        if done and done[-1] in action.option_strings and action.nargs != 0:
            return  # a value: a file or a number
    for action in actions:
        names = [name for name in action.option_strings if name.startswith("--")]
        if unfinished.startswith("-"):
            yield from (Candidate(name, action.help) for name in names)


def _of_command(name: str, done: Sequence[str], unfinished: str) -> Iterator[Candidate]:
    command = parser_of(name)
    parts = getattr(command, "commands", {})
    if parts:
        part = next((word for word in done if not word.startswith("-")), None)
        if part is None and not unfinished.startswith("-"):
            yield from (Candidate(each, parts[each].get_short_help_str(100)) for each in parts)
            return
        command = parts.get(part, command)
    if "--" in done:
        return
    option, equals, value = unfinished.partition("=")
    previous = _option(command, done[-1] if done else "")
    if equals and (named := _option(command, option)) is not None:
        yield from (Candidate(f"{option}={each.value}", each.meaning) for each in _values(command, named, done, value))
    elif previous is not None and not previous.is_flag:
        yield from _values(command, previous, done, unfinished)
    else:
        argument = None if unfinished.startswith("-") else _next_argument(command, done)
        known = (
            _options(command, done, unfinished) if argument is None else _values(command, argument, done, unfinished)
        )
        yield from known


def _option(command: Any, word: str) -> Any:
    return next((each for each in command.params if word.startswith("-") and word in each.opts), None)


def _options(command: Any, done: Sequence[str], unfinished: str) -> Iterator[Candidate]:
    """Yield the options that are not on the command line yet. They are offered even if the word does not start with
    ``-``."""
    if unfinished and not unfinished.startswith("-"):
        return
    for each in command.params:
        if each.param_type_name != "option" or getattr(each, "hidden", False):
            continue
        if each.multiple or not any(word.partition("=")[0] in each.opts for word in done):
            yield from (Candidate(name, _one_line(each.help)) for name in each.opts if name.startswith("--"))
            if each.name == "output_format":
                yield Candidate("--json", "The same as --output json.")
    yield Candidate("--help", "Show the options.")


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _next_argument(command: Any, done: Sequence[str]) -> Any:
    """Return the first argument that is not on the command line yet, or None."""
    left = list(done[1:] if done and done[0] == command.name else done)
    given = 0
    for at, word in enumerate(left):
        before = _option(command, left[at - 1]) if at else None
        given += not word.startswith("-") and (before is None or before.is_flag)
    arguments = [each for each in command.params if each.param_type_name == "argument" and not each.hidden]
    if arguments and arguments[-1].nargs == -1:  # it takes all remaining words
        given = min(given, len(arguments) - 1)
    return arguments[given] if given < len(arguments) else None


def _values(command: Any, parameter: Any, done: Sequence[str], unfinished: str) -> Iterator[Candidate]:
    """Yield the known values of an option or argument. Queries the cluster for names of topics and groups."""
    context = command.make_context(command.name, [], resilient_parsing=True)
    for item in parameter.shell_complete(context, unfinished):
        if item.type == "plain":
            yield Candidate(item.value, _one_line(item.help))
    if "--profile" in parameter.opts or parameter.metavar in ("PROFILE", "[PROFILE]"):
        yield from (Candidate(each.name) for each in profiles.stored())
    elif (ask := _NAMES.get(parameter.opts[-1])) and "--create" not in done:
        yield from map(
            Candidate, [name for name in _names_in_cluster(command, done, ask) if name.startswith(unfinished)]
        )


def _names_in_cluster(command: Any, done: Sequence[str], ask: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    """Return names from the cluster to which the command line refers. Returns an empty list if the query fails or takes
    too long."""
    from parley.protocol.client import Client
    from parley.protocol.errors import KafkaError

    try:
        words, _ = profiles.applied(command, done)
        properties = client_properties(_value(words, "--command-config") or None)
        client = Client(
            _value(words, "--bootstrap-server") or DEFAULT_BOOTSTRAP,
            client_id="parley-completion",
            security=security_of(properties, "--command-config"),
        )

        async def names() -> list[str]:
            async with asyncio.timeout(_PATIENCE_S), client:
                return await ask(client)

        return asyncio.run(names())[:_NAMES_MAX]
    except (CommandError, KafkaError, OSError, ValueError):  # TimeoutError is an OSError
        return []


def _value(words: Sequence[str], option: str) -> Any:
    for at, word in enumerate(words):
        if word == option and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return ""


async def _topics(client: Client) -> list[str]:
    return sorted(topic.name or "" for topic in (await client.metadata()).topics)


async def _groups(client: Client) -> list[str]:
    from parley.tools.cli.groups.listing import list_groups

    return [group.name for group in await list_groups(client)]


_NAMES: Final = {"--topic": _topics, "topic": _topics, "--group": _groups}
"""The functions that query the cluster for the values of these options and arguments."""
