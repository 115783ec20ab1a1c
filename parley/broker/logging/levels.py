"""The levels of this process's loggers, which clients describe and change as configuration entries (KIP-412).

Levels have Log4j's names, as in Kafka's tools. The root logger is called ``root``. A logger whose level is deleted
inherits its parent's level again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from parley.broker.config.describe import ConfigSource, Entry
from parley.broker.config.dynamic_changes import EntryChange, Operation
from parley.broker.config.key_definition import ConfigType
from parley.protocol.errors import ErrorCode, KafkaError

ROOT = "root"

LEVELS = {
    "TRACE": logging.DEBUG - 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": logging.CRITICAL + 10,
}


def describe_loggers() -> list[Entry]:
    """Describe every logger of the process with its effective level."""
    names = [ROOT, *sorted(logging.root.manager.loggerDict)]
    return [
        Entry(
            name=name,
            value=_name_of(logging.getLogger(None if name == ROOT else name).getEffectiveLevel()),
            source=ConfigSource.LOGGER,
            is_sensitive=False,
            read_only=False,
            synonyms=(),
            type=ConfigType.STRING,
            documentation="",
        )
        for name in names
    ]


def _name_of(level: int) -> str:
    return next((name for name, known in LEVELS.items() if level <= known), "OFF")


def set_logger_levels(changes: Iterable[EntryChange], *, validate_only: bool) -> None:
    """Change the levels of loggers: either all or none of them. With ``validate_only``, only check the changes.

    Raises KafkaError: INVALID_CONFIG for an unknown logger or level, or INVALID_REQUEST for an illegal operation.
    """
    known = {ROOT, *logging.root.manager.loggerDict}
    levels: list[tuple[str, int]] = []
    for change in changes:
        if change.name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Unknown logger '{change.name}'.")
        match change.operation:
            case Operation.SET if change.value in LEVELS:
                levels.append((change.name, LEVELS[change.value]))
            case Operation.SET:
                raise KafkaError(
                    ErrorCode.INVALID_CONFIG, f"Unknown level '{change.value}'. Available: {', '.join(LEVELS)}."
                )
            case Operation.DELETE if change.name == ROOT:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The level of the root logger cannot be deleted.")
            case Operation.DELETE:
                levels.append((change.name, logging.NOTSET))
            case _:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A level can only be set or deleted.")
    if not validate_only:
        for name, level in levels:
            logging.getLogger(None if name == ROOT else name).setLevel(level)
