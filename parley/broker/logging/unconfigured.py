"""Prints the log of an embedded broker if the program has not configured logging.

Python would then print only the messages of warnings and errors, without their facts. A program that configures
logging, even later, receives the records unchanged, and nothing is printed here.
"""

from __future__ import annotations

import logging

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.logging.lines import LineFormatter, secrets_in


class UnconfiguredLog(logging.Handler):
    """Prints warnings and errors with their facts to standard error, until the program configures logging."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._secrets: frozenset[str] = frozenset()

    def hide(self, secrets: frozenset[str]) -> None:
        """Mask these secrets, too, wherever they occur."""
        self._secrets |= secrets
        self.setFormatter(LineFormatter(as_json=False, secrets=self._secrets))

    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(logging.makeLogRecord({"msg": self.format(record), "levelno": record.levelno}))


def print_if_unconfigured(config: BrokerConfig) -> None:
    """Print this package's warnings with their facts if the program has not configured logging. Idempotent."""
    log = logging.getLogger("parley")
    handler = next((each for each in log.handlers if isinstance(each, UnconfiguredLog)), None)
    if handler is None:
        handler = UnconfiguredLog()
        log.addHandler(handler)
    handler.hide(secrets_in(config))
