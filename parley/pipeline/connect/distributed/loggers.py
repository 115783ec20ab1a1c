"""The loggers of this process, by Kafka's names of their levels (KIP-495)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from parley.pipeline.connect.herder_results import LoggerLevel, NotFound

ROOT: Final = "root"
LEVELS: Final = {
    "ALL": 1,
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}


class Loggers:
    """The loggers, and the times at which their levels were changed."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._modified: dict[str, int] = {}

    def all(self) -> dict[str, LoggerLevel]:
        """Return every logger with its effective level."""
        return {name: LoggerLevel(_name(_logger(name)), self._modified.get(name)) for name in [ROOT, *_names()]}

    def set(self, name: str, level: str) -> list[str]:
        """Set the level of a logger and of those below it. Returns the names of the loggers whose level changed.

        Raises NotFound if there is no such level.
        """
        level, name = level.upper(), ROOT if name.lower() == ROOT else name
        if level not in LEVELS:
            raise NotFound(f"invalid log level '{level}'.")
        below = _names() if name == ROOT else [one for one in _names() if one.startswith(f"{name}.")]
        meant = sorted({name, *below})
        changed = [one for one in meant if _name(_logger(one)) != level]
        for one in meant:
            _logger(one).setLevel(LEVELS[level])
        self._modified.update(dict.fromkeys(changed, self._now_ms()))
        return changed


def _names() -> list[str]:
    known = logging.root.manager.loggerDict
    return [name for name, logger in known.items() if isinstance(logger, logging.Logger)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def _name(logger: logging.Logger) -> str:
    """Return Kafka's name for the logger's effective level: the nearest level that is not above it."""
    number = logger.getEffectiveLevel()
    return next((name for name, least in reversed(LEVELS.items()) if number >= least), "ALL")
