"""How a command runs: its options are parsed, its errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parley.tools.cli.app import App

FAILED = 1
"""Kafka's tools exit with 1 for wrong usage as well as for an operation that failed."""
DISK_FAILED = 74
"""The exit code of a broker that has no log directory left (EX_IOERR): to start it again as it is does not help."""
INTERRUPTED = 130


class CommandError(Exception):
    """The command cannot do what was asked; the text says why, and what to do."""


def _invoke(app: App, name: str, arguments: Sequence[str]) -> int:
    try:
        app.invoke(name, arguments)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the option parser calls it a failure
            raise end.__context__ from None
        if end.code == INTERRUPTED:
            return INTERRUPTED
        return FAILED if end.code not in (0, None) else 0
    return 0


def run(app: App, name: str, arguments: Sequence[str]) -> int:
    """Run a command with these arguments and answer its exit code."""
    return guarded(lambda: _invoke(app, name, arguments))


def guarded(work: Callable[[], int]) -> int:
    """The exit code of some work, whatever ends it: what cannot be done is one line on standard error."""
    try:
        code = _told(work)
        sys.stdout.flush()  # here, where a reader that is gone is no error, and not when the interpreter ends
        return code
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough; Python must not complain while it closes.
        _to_nowhere()
        return 0
    except OSError as error:
        _to_nowhere()
        print(f"Error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return FAILED


def _told(work: Callable[[], int]) -> int:
    try:
        return work()
    except CommandError as error:
        sys.stdout.flush()
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _to_nowhere() -> None:
    """Let what is still to be written, to standard output or to a pipe it shares with standard error, be lost."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        os.dup2(nowhere, sys.stderr.fileno())


def leave_to_log() -> None:
    """What a store's client says of each of its attempts is for a log: a command says once what failed."""
    import logging

    logging.getLogger("parley.consensus").addHandler(
        logging.NullHandler()
    )  # else Python prints warnings that nobody handles


def open_streams() -> None:
    """Give a process that was started without standard output or error (``>&-``) one that goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open as long as the process


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """The ``key=value`` texts of a repeated option, as a mapping."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CommandError(f"{option} takes key=value, not '{text}'.")
        found[key.strip()] = value
    return found
