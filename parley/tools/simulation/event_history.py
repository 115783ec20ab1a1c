"""The events of a simulation, for the report of a failure and for the digest.

Every event and every arrived segment is part of the digest, so two runs of a seed must have the same digest.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Self

from parley.tools.simulation.processes import CURRENT

LOGGERS = ("parley",)
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event. ``at`` is in seconds of virtual time."""

    at: float
    who: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.4f}  {self.who:<12} {self.what}"


class History:
    """All events of a run, in order."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.events: list[HistoryEvent] = []
        self.now = now
        self._hash = blake2b(digest_size=16)
        self.is_closed = False

    def note(self, who: str, what: str) -> None:
        """Add an event that helps to explain a failure."""
        if self.is_closed:
            return
        self.events.append(HistoryEvent(self.now(), who, what))
        self.trace(f"{who} {what}")

    def trace(self, line: str) -> None:
        """Add a line to the digest only."""
        if self.is_closed:
            return
        self._hash.update(f"{self.now():.9f} {line}\n".encode())

    def close(self) -> None:
        """End the history. Events after the run are ignored."""
        self.is_closed = True

    @property
    def digest(self) -> str:
        """The hash of all events and traced lines so far."""
        return self._hash.hexdigest()


class LogCapture(logging.Handler):
    """A context manager that adds the brokers' log lines to the history.

    It calls ``on_failure`` with each line that has a traceback, which no network or disk fault may cause. ``folder``
    contains the brokers' files. Its name differs between runs, so it is removed from the lines.
    """

    def __init__(self, history: History, folder: str, on_failure: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._history = history
        self._folder = folder
        self._on_failure = on_failure
        self._levels: dict[str, int] = {}

    def __enter__(self) -> Self:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            self._levels[name] = logger.level
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
            logger.propagate = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, level in self._levels.items():
            logger = logging.getLogger(name)
            logger.setLevel(level)
            logger.removeHandler(self)
            logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if (
            self._history.is_closed or record.getMessage() == "a setting is not used as it is written"
        ):  # it is the same at each start
            return
        process = CURRENT.get()
        who = process.name if process is not None else "world"
        text = f"{record.levelname} {record.getMessage()}{_facts(vars(record))}".replace(self._folder, "")
        self._history.note(who, text)
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1])).replace(self._folder, "")
            self._on_failure(f"{who}: {text}\n{trace}")


def _facts(fields: Mapping[str, object]) -> str:
    facts = [f"{name}={value}" for name, value in fields.items() if name not in _STANDARD]
    return f" ({', '.join(facts)})" if facts else ""
