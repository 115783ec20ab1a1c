"""Finds the lines that the code logs at level warning or error, by parsing its source.

1. A call of a method of ``_log`` contains its event as a constant. The same is true of ``FailureLog.report``, whose
   level is error, and of ``logging.LogRecord``, whose level is warning.
2. A call that logs an event that its caller supplies is listed in ``PASSED_ON``, with the events that reach it. Each of
   them must be a constant in the same module.
3. ``%s`` and similar placeholders become "...", because the log contains values in their place.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

PACKAGES: Final = tuple(Path(__file__).resolve().parents[3] / name for name in ("", "../pyspark_parley"))
PASSED_ON: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("broker/controller/controller.py", "event"): (
        "the coordination store does not respond",
        "retrying a metadata write",
    ),
    ("broker/controller/elections/leaderless_log.py", "self._message"): (
        "partitions without a leader wait for brokers that may have their last records: start these brokers w"
        "ith their disks, or accept the loss with `parley elect-leaders --election-type unclean "
        "--topic TOPIC --partition N`",
        "partitions have no leader, and unclean.recovery.strategy=None forbids the controller to elect one: r"
        "un `parley elect-leaders --election-type unclean --topic TOPIC --partition N`, or set another strategy",
    ),
    ("broker/coordinators/groups/coordinator.py", "failed"): (
        "expired offsets could not be removed",
        "offsets of a deleted topic remain",
    ),
    ("broker/logging/unexpected_errors.py", "what"): (),  # FailureLog.report itself
    ("broker/network/listener.py", "event"): ("connection closed", "authentication failed"),
    ("broker/security/audit.py", "event"): (),  # with the levels info and debug
}
"""The events of calls that do not contain a constant event, by module and by the expression used as the event."""

_LEVELS: Final = {"warning": "warning", "error": "error", "exception": "error", "critical": "error", "log": "warning"}
_PLACES: Final = {"log": 1, "LogRecord": 4}
"""Method -> the index of the event among its arguments, if the event is not the first argument."""
_REPORTERS: Final = re.compile(r"\b_?(failures|unexpected)$")
_PLACEHOLDER: Final = re.compile(r"%[-.\d]*[a-z]")


class Logged(NamedTuple):
    """An event that the code logs: its text, its level, and its place."""

    event: str
    level: str
    place: str
    """The module and the line of the call."""


@functools.cache
def logged_lines() -> tuple[Logged, ...]:
    """Return the lines that the code logs at level warning or error, one per call.

    Raises ValueError if a call's event is neither a constant nor in ``PASSED_ON``.
    """
    paths = [(package, path) for package in PACKAGES for path in sorted(package.rglob("*.py"))]
    return tuple(line for package, path in paths for line in _lines_of(package, path))


def _lines_of(package: Path, path: Path) -> Iterator[Logged]:
    text = path.read_text()
    if not any(word in text for word in ("_log.", "getLogger", ".report(", "LogRecord(")):
        return
    tree = ast.parse(text)
    module = path.relative_to(package).as_posix()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (level := _level(node.func)):
            argument = node.args[_PLACES.get(node.func.attr, 0)]
            for event in _events(tree, module, argument):
                yield Logged(_PLACEHOLDER.sub("...", event).replace("\n", " "), level, f"{module}:{node.lineno}")


def _level(called: ast.Attribute) -> str:
    """Return the level at which a call of this function logs, or an empty string if it does not log."""
    owner = ast.unparse(called.value)
    if called.attr == "LogRecord":
        return "warning"
    if called.attr == "report" and _REPORTERS.search(owner):
        return "error"
    return _LEVELS.get(called.attr, "") if owner.endswith("_log") or owner.startswith("logging.getLogger") else ""


def _events(tree: ast.Module, module: str, argument: ast.expr) -> tuple[str, ...]:
    if isinstance(argument, ast.Constant):
        return (str(argument.value),)
    if isinstance(argument, ast.JoinedStr):
        return ("".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in argument.values),)
    try:
        events = PASSED_ON[module, ast.unparse(argument)]
    except KeyError:
        raise ValueError(
            f"{module}:{argument.lineno} logs an event that is neither a constant nor in PASSED_ON"
        ) from None
    constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    if missing := set(events) - constants:
        raise ValueError(f"PASSED_ON has events that {module} does not have: {sorted(missing)}")
    return events
