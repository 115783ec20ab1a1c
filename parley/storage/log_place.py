"""The arguments for creating or opening a log: its place, and the settings that all logs of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from random import Random

from parley.light_dataclasses import dataclass
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from parley.storage.log_config import LogConfig


@dataclass(frozen=True, slots=True)
class LogEvents:
    """The callbacks of a log."""

    on_io_error: Callable[[OSError], None] = lambda error: None
    """Called for each failure of the disk."""
    on_first_files: Callable[[str, int, UUID], None] = lambda topic, partition, topic_id: None
    """Called before a log that has a topic id and no files creates its files. May raise ``OSError``."""
    on_files: Callable[[], None] = lambda: None
    """Called, in any thread, after a new log has created its files."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The log's partition, the directory of its files, and its callbacks."""

    directory: Path
    topic: str
    partition: int
    topic_id: UUID | None = None
    events: LogEvents = LogEvents()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The settings with which every log of a broker is created."""

    config: LogConfig
    now_ms: Callable[[], int]
    random: Random
    producer_expiration_ms: int = 86_400_000
    highest_leader_epoch: int = NO_EPOCH
    """The highest leader epoch of any partition that was found in the log directories at startup; NO_EPOCH if none
    was."""
    measured_flush: Callable[[], AbstractContextManager[object]] = nullcontext
    """Returns a context manager in which a log is flushed, in any thread."""


@dataclass(frozen=True, slots=True)
class SharedByLogs:
    """The state that new logs with the same configuration in the same log directory share."""

    root: Path
    """The log directory that contains the logs."""
    settings: LogSettings
    events: LogEvents
