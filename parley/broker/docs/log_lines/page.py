"""Generates ``docs/log-lines.md``: every line at level warning or error, its meaning, and what to do."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from parley.broker.docs.log_lines import clients, cluster, data, pipeline
from parley.broker.docs.log_lines.line import Line, Section
from parley.broker.docs.log_lines.source import logged_lines

SECTIONS: Final = (*cluster.SECTIONS, *clients.SECTIONS, *data.SECTIONS, *pipeline.SECTIONS)

_INTRODUCTION: Final = """\
# What the log says: warnings and errors

`make docs` generates this page from `parley/broker/docs/log_lines/`; do not edit it. A test compares it with the
code: no line is missing.

Search for a part of the line. `...` stands for a value in the line; further facts (`reason`, `error`, `topic` and
others) follow the event. The level `error` needs attention; `warning` is worth a look if it happens often. Lines
with the level `info` show what a broker does ([the most important ones](operations.md#what-the-log-says)). A line with
a `traceback` is a defect in Parley, unless its row says otherwise.
"""


def log_lines_page() -> str:
    """Return the whole page, as Markdown. Raises the errors of ``logged_lines``."""
    levels: defaultdict[str, set[str]] = defaultdict(set)
    for logged in logged_lines():
        levels[logged.event].add(logged.level)
    return "\n".join([_INTRODUCTION, *(_section(each, levels) for each in SECTIONS)])


def _section(section: Section, levels: dict[str, set[str]]) -> str:
    rows = [f"## {section.title}", "", "| event | level | meaning | what to do |", "|---|---|---|---|"]
    return "\n".join([*rows, *(_row(line, levels[line.event]) for line in section.lines), ""])


def _row(line: Line, levels: set[str]) -> str:
    event = f"`` {line.event} ``" if "`" in line.event else f"`{line.event}`"
    return f"| {event} | {', '.join(sorted(levels, reverse=True))} | {line.meaning} | {line.action} |"
