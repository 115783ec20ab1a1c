"""Run a command: parse its options, and turn its errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from parley.tools.cli.colors import alarming

FAILED = 1
"""The exit code of Kafka's tools for wrong usage as well as for an operation that failed."""
DISK_FAILED = 74
"""The exit code of a broker that has no usable log directory left (EX_IOERR). Restarting it unchanged does not help."""
STARVED = 75
"""The exit code of a broker that has run out of file descriptors or memory (EX_TEMPFAIL). A restart helps."""
INCOMPLETE = 3
"""The exit code of a check that found no problems, but could not examine everything."""
INTERRUPTED = 130


class Ended(SystemExit):
    """Raised to end a command with a specific exit code. Wrong usage ends every command with ``FAILED``."""


class CommandError(Exception):
    """Raised if a command cannot do its work. The message says why, and what to do about it."""


class Command(Protocol):
    """A command with options, such as ``parley.tools.cli.app.App``."""

    def invoke(self, name: str, arguments: Sequence[str]) -> None:
        """Run the command with these arguments. Raises ``SystemExit`` with its exit code, or ``CommandError``; never
        returns."""


def sentence(text: str) -> str:
    """End a message from a broker or a library with a period, unless it already ends a sentence."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _invoke(command: Command, name: str, arguments: Sequence[str]) -> int:
    try:
        command.invoke(name, arguments)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the option parser reports it as a failure
            raise end.__context__ from None
        if isinstance(end, Ended) or end.code in (INCOMPLETE, INTERRUPTED):
            return int(end.code or 0)
        return FAILED if end.code not in (0, None) else 0
    return 0


def run(command: Command, name: str, arguments: Sequence[str]) -> int:
    """Run a command with these arguments. Returns its exit code."""
    return guarded(lambda: _invoke(command, name, arguments))


def guarded(work: Callable[[], int]) -> int:
    """Run ``work`` and return its exit code. A ``CommandError``, or an output that cannot be written, becomes one line
    on standard error and ``FAILED``. Ctrl-C becomes ``INTERRUPTED``. If the reader of the output closed the pipe, the
    code is 0."""
    try:
        code = _reported(work)
        sys.stdout.flush()  # a closed pipe is handled here; at the interpreter's exit it would be reported
        return code
    except BrokenPipeError:
        # The reader of the output (head, less) has closed the pipe, which is not an error.
        _discard_output()
        return 0
    except OSError as error:
        _discard_output()
        print(f"Error: the output cannot be written: {error.strerror}.", file=sys.stderr)
        return FAILED


def _reported(work: Callable[[], int]) -> int:
    try:
        return work()
    except CommandError as error:
        sys.stdout.flush()
        print(f"{alarming('Error:')} {error}", file=sys.stderr, flush=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _discard_output() -> None:
    """Discard buffered output. Standard error is discarded too if it goes to the same closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        os.dup2(null, sys.stderr.fileno())


def silence_store_clients() -> None:
    """Keep the log of a store's client off standard error. The command itself reports the failure, once."""
    import logging

    logging.getLogger("parley.consensus").addHandler(
        logging.NullHandler()
    )  # without a handler Python prints warnings to standard error


def open_streams() -> None:
    """Open /dev/null as standard output or error if the process was started without that stream (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the process exits


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse the ``key=value`` values of an option that may be repeated. Raises ``CommandError`` for any other
    format."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise CommandError(f"{option} takes key=value, not '{text}'.")
        found[key.strip()] = value
    return found
