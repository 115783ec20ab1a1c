"""The manual pages in ``docs/man``, one per command, generated from the same texts as ``--help``.

They use the macros of man(7). ``parley docs`` writes them, and the wheel installs them in ``share/man/man1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, Final

from parley.tools.cli import COMMANDS
from parley.tools.cli.parsers import parser_of
from parley.version import VERSION

FOLDER: Final = "docs/man"
_CODES: Final = (
    ("0", "Success, even if the reader of the output has closed it."),
    ("1", "The operation failed, or the options are wrong."),
    ("3", "A check found no problem, but could not examine everything."),
    ("130", "Ended by Ctrl-C."),
)
_OWN_CODES: Final = {
    "doctor": (
        ("0", "Nothing is wrong."),
        ("1", "There are warnings, or the options are wrong."),
        ("2", "There are errors."),
        ("3", "No problem was found, but not everything could be examined."),
    ),
    "start": (
        ("0", "The broker was stopped."),
        ("1", "The broker cannot start."),
        ("74", "The broker has lost its log directories. Restarting it unchanged does not help."),
        ("75", "The broker has run out of file descriptors or memory. A restart helps."),
    ),
}
"""The exit codes of commands whose codes differ from the usual ones."""
_VARIABLES: Final = (
    ("PARLEY_PROFILE", "The profile that commands use; empty for none. See parley-profile(1)."),
    ("NO_COLOR", "Without --color, the output has no colors."),
)
_BEGIN: Final = (
    ("parley start", "one broker on 127.0.0.1:9092, its data in ./parley-data"),
    ("parley topics --create --topic greetings", "a topic, in another terminal"),
    ("echo hello | parley produce --topic greetings", "a record"),
    ("parley consume --topic greetings --from-beginning --max-messages 1", "the record again"),
)


def manual_pages() -> dict[str, str]:
    """Return the text of every page by its path below the repository's root."""
    pages = {f"{FOLDER}/parley.1": _overview()}
    return pages | {f"{FOLDER}/parley-{name}.1": _page(name) for name in COMMANDS}


def _overview() -> str:
    lines = [*_top("parley", "a Kafka-wire-compatible broker cluster, and its tools")]
    lines += [".SH SYNOPSIS", ".B parley", r"\fICOMMAND\fR [\fIOPTIONS\fR]", ".SH COMMANDS"]
    for name, command in COMMANDS.items():
        like = f" (as {command.kafka_tool})" if command.kafka_tool else ""
        lines += [".TP", rf"\fBparley-{_escaped(name)}\fR(1)", _escaped(f"{command.summary}{like}")]
    lines += [".SH EXAMPLES", *_pairs(_BEGIN)]
    return _whole([*lines, *_end()])


def _page(name: str) -> str:
    command = COMMANDS[name]
    lines = [*_top(f"parley-{name}", command.summary)]
    if name == "start":
        return _whole([*lines, *_of_start(), *_end(name)])
    parser = parser_of(name)
    parts = getattr(parser, "commands", {})
    lines += [".SH SYNOPSIS", *_synopsis(f"parley {name}", parser)]
    for part, inner in parts.items():
        lines += [".br", *_synopsis(f"parley {name} {part}", inner)]
    like = f"\n\nKafka's tool for this: {command.kafka_tool}." if command.kafka_tool else ""
    lines += [".SH DESCRIPTION", *_paragraphs(f"{parser.help}{like}")]
    for part, inner in parts.items():
        lines += [f".SS {_escaped(part)}", *_paragraphs(inner.help or ""), *_options(inner), *_examples(inner)]
    lines += [".SH OPTIONS", *_options(parser)]
    if examples := _examples(parser):
        lines += [".SH EXAMPLES", *examples]
    return _whole([*lines, *_end(name)])


def _of_start() -> Iterator[str]:
    """Yield the page of ``parley start``, which uses its own parser, and shows examples in its help text."""
    parser = import_module("parley.tools.cli.start").parser()
    yield from (".SH SYNOPSIS", ".B parley start", r"[\fIOPTIONS\fR] [\fIproperties\fR]")
    yield from (".SH DESCRIPTION", *_paragraphs(parser.description), ".SH OPTIONS")
    for action in parser._actions:
        names = ", ".join(action.option_strings) or action.dest
        yield from _term(f"{names} {action.metavar}" if action.metavar else names, action.help)
    yield from (".SH EXAMPLES", *_pairs(_divided(parser.epilog)))


def _top(title: str, summary: str) -> Iterator[str]:
    yield f'.TH "{_escaped(title.upper())}" 1 "" "Parley {VERSION}" "Parley"'
    yield from (".SH NAME", _escaped(f"{title} - {summary}"))


def _end(name: str = "") -> Iterator[str]:
    yield ".SH EXIT STATUS"
    for code, meaning in _OWN_CODES.get(name, _CODES):
        yield from _term(code, meaning)
    yield ".SH ENVIRONMENT"
    for name, meaning in _VARIABLES:
        yield from _term(name, meaning)
    yield from (".SH SEE ALSO", r"\fBparley\fR(1), \fBparley-profile\fR(1), \fBparley-doctor\fR(1)")


def _synopsis(name: str, parser: Any) -> Iterator[str]:
    pieces = [
        each.strip("{}").replace("[[", "[").replace("]]", "]") for each in parser.collect_usage_pieces(_context(parser))
    ]
    yield rf"\fB{_escaped(name)}\fR " + " ".join(rf"\fI{_escaped(piece)}\fR" for piece in pieces)


def _options(parser: Any) -> Iterator[str]:
    context = _context(parser)
    for each in (*parser.params, parser.get_help_option(context)):
        if record := each.get_help_record(context):
            yield from _term(*record)


def _context(parser: Any) -> Any:
    return parser.make_context(parser.name, [], resilient_parsing=True)


def _examples(parser: Any) -> list[str]:
    return list(_pairs(_divided(parser.epilog or "")))


def _divided(text: str) -> list[tuple[str, str]]:
    """Return the examples in a help text, as pairs of a command line and its purpose. In the text, the purpose is on
    the next line, indented."""
    found: list[tuple[str, str]] = []
    for line in text.replace("\b", "").splitlines():
        if line.startswith("      ") and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}".strip())
        elif line.startswith("  "):
            found.append((line.strip(), ""))
    return found


def _pairs(examples: Iterable[tuple[str, str]]) -> Iterator[str]:
    for line, meaning in examples:
        yield from (".TP", rf"\fB{_escaped(line)}\fR", _text(meaning))


def _term(term: str, meaning: str) -> Iterator[str]:
    """Yield the lines of a term: its name in bold, its values in italics, and its meaning."""
    bold = re.sub(r"(<[^>]*>)", lambda found: rf"\fI{found[1]}\fB", _escaped(term))
    yield from (".TP", rf"\fB{bold}\fR", _text(meaning))


def _paragraphs(text: str) -> Iterator[str]:
    for at, paragraph in enumerate(text.strip().split("\n\n")):
        if at:
            yield ".PP"
        yield _text(paragraph)


def _text(text: str) -> str:
    """Return running text on one line, with text in backticks set in bold."""
    return re.sub(r"`([^`]*)`", r"\\fB\1\\fR", _escaped(" ".join(text.split())))


def _escaped(text: str) -> str:
    """Escape what the formatter would interpret: backslashes, minus signs, and a control character at the start of a
    line."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("^", r"\(ha").replace("~", r"\(ti")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _whole(lines: Sequence[str]) -> str:
    return "\n".join([r".\" Made by `parley docs`.", *lines]) + "\n"
