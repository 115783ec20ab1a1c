"""Check that the libraries of a command are installed, and start Spark sessions."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from parley.tools.cli.invocation import CommandError, pairs


@contextmanager
def requires_library(command: str, how: str) -> Iterator[None]:
    """Raise ``CommandError`` if the block fails because a library that ``command`` needs is missing. ``how`` says how
    to install it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        library = (missing.name or str(missing)).partition(".")[0]
        raise CommandError(f"{command} needs {library}, which is not installed: {how}.") from missing


def start_spark(name: str, master: str | None, conf: Sequence[str]) -> Any:
    """Start a Spark session that logs errors only. ``conf`` contains Spark settings as ``key=value``.

    Raises ``CommandError`` for any other form of a setting, ``SparkMissing``, ``SparkFailed`` or ``JavaMissing`` if
    Spark does not start, and ``SystemExit`` on SIGTERM.
    """
    from parley.pipeline.spark.session import spark_session

    settings = pairs(conf, "--conf")
    print("Starting Spark (this takes a few seconds)...", file=sys.stderr, flush=True)
    # SIGTERM must not leave the process of Spark behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return spark_session(name, master=master, settings=settings, quiet=True)
    finally:
        signal.signal(signal.SIGTERM, before)
