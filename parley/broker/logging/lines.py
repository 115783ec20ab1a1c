"""The broker's own log: one line per event, as ``key=value`` pairs or as a JSON object.

Modules log with the standard library and pass the facts of an event in ``extra``::

    _log.warning("a log directory has failed", extra={"directory": path, "error": str(error)})

* A message may contain what peers have sent: values are quoted, so that they cannot end a line or imitate a key.
* Secrets of the configuration are replaced with ``[hidden]`` wherever they occur.
* A thread writes the lines, so that a terminal or pipe that is not read does not block requests. If too many lines
  wait, further lines are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from queue import Full, Queue
from threading import Thread
from traceback import format_exception
from typing import Any, TextIO
from urllib.parse import unquote

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.key_definition import Password

WAITING_MAX = 10_000
"""The maximum number of lines that may wait to be written."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r"[^\s\"=]+")


class LineFormatter(logging.Formatter):
    """Formats a record as a line: time (UTC), level, logger, event, and the facts in ``extra``."""

    def __init__(self, *, as_json: bool, secrets: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._as_json = as_json
        # The longest first, because one secret can be part of another.
        longest_first = sorted(map(re.escape, filter(None, secrets)), key=len, reverse=True)
        self._secret = re.compile("|".join(longest_first)) if longest_first else None

    def format(self, record: logging.LogRecord) -> str:
        pairs = {name: self._hide(value) for name, value in _pairs(record)}
        if self._as_json:
            return json.dumps(pairs, ensure_ascii=False, default=str)
        return " ".join(f"{name}={_quoted(value)}" for name, value in pairs.items())

    def _hide(self, value: Any) -> Any:
        if self._secret is None or isinstance(value, int | float | bool | None):
            return value
        return self._secret.sub(Password.HIDDEN, str(value))


def _pairs(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    created = datetime.fromtimestamp(record.created, UTC)
    yield "time", created.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    yield "level", record.levelname.lower()
    yield "logger", record.name
    yield "event", record.getMessage()
    for name, value in vars(record).items():
        if name not in _STANDARD:
            yield name, value
    if record.exc_info and record.exc_info[1] is not None:
        yield "exception", repr(record.exc_info[1])
        yield "traceback", "".join(format_exception(record.exc_info[1]))


def _quoted(value: Any) -> str:
    text = str(value)
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


class LogWriter(logging.Handler):
    """A logging handler that writes lines to a stream, in a separate thread, until ``close``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: Queue[str | None] = Queue(WAITING_MAX)
        self._dropped = 0
        self._thread = Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Write the waiting lines and end the thread. Gives up after a few seconds if the stream is not being read."""
        if self._thread.is_alive():
            try:
                self._lines.put(None, timeout=1)
            except Full:  # the stream is not being read
                return
            self._thread.join(timeout=2)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped and self._lines.qsize() < WAITING_MAX // 2:
                line += f"\n{self._dropped_line()}"
            try:
                self._stream.write(f"{line}\n")
                if self._lines.empty():
                    self._stream.flush()
            except (OSError, ValueError):  # the stream is closed, so the error cannot be reported
                return

    def _dropped_line(self) -> str:
        dropped, self._dropped = self._dropped, 0
        record = logging.LogRecord(
            __name__, logging.WARNING, "", 0, "the log was not read fast enough: lines were dropped", (), None
        )
        record.lines = dropped
        return self.format(record)


def start_logging(config: BrokerConfig, stream: TextIO | None = None) -> LogWriter:
    """Write the log of this process to ``stream`` (default: standard error) in the configured format, until the
    returned writer is closed.

    This is for broker processes. A program that embeds a broker uses its own logging, which receives the broker's
    records.
    """
    writer = LogWriter(stream or sys.stderr)
    writer.setFormatter(LineFormatter(as_json=config.logging_format == "json", secrets=secrets_in(config)))
    root = logging.getLogger()
    root.addHandler(writer)
    root.setLevel(config.logging_level.upper())
    return writer


def secrets_in(config: BrokerConfig) -> frozenset[str]:
    """Return the secrets in a configuration: the values of password keys, and passwords in URLs."""
    secrets = set()
    for name, text in config.given.items():
        key = config.key(name)
        if key is not None and key.is_sensitive:
            secrets.add(text.strip())
        elif "://" in text:
            secrets.update(_passwords_in_urls(text))
    return frozenset(secrets - {""})


def _passwords_in_urls(text: str) -> Iterator[str]:
    for match in re.finditer(r"://[^/?#\s]*?:([^/?#\s]*)@", text):
        yield match[1]
        yield unquote(match[1])
