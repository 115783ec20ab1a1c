"""What the commands that work on Spark share: what must be there before it is started, and its start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from parley.tools.cli.invocation import CommandError, pairs


@contextmanager
def said_if_missing(who: str, how: str) -> Iterator[None]:
    """Raises CommandError where a library is missing that ``who`` needs; ``how`` is what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        library = (missing.name or str(missing)).partition(".")[0]
        raise CommandError(f"{library} is not installed, which {who} needs: pip install {how}.") from missing


def start_spark(name: str, master: str | None, conf: Sequence[str]) -> Any:
    """A session of Spark that logs errors only.

    Raises SparkMissing, SparkFailed, JavaMissing, and SystemExit for SIGTERM.
    """
    from parley.pipeline.session import spark_session

    settings = pairs(conf, "--conf")
    print("Starting Spark (takes some seconds)...", file=sys.stderr, flush=True)
    # It has a process of its own that must not be left behind.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return spark_session(name, master=master, settings=settings, quiet=True)
    finally:
        signal.signal(signal.SIGTERM, before)
