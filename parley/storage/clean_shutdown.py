"""Clean shutdown of a log directory: closes all its logs in several threads, and reads and writes the marker.

The marker (``.kafka_cleanshutdown``, as in Kafka) means that every log was closed and is on disk, so the next startup
scans nothing. It contains the epoch under which the broker was registered (KIP-966): a marker with an earlier epoch,
from a directory that was restored from a copy, proves nothing about the previous shutdown.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from parley.light_dataclasses import dataclass
from parley.protocol.errors import KafkaError
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.topic_partition import TopicPartition
from parley.storage.checkpoints import sync_directory, write_atomically
from parley.storage.damage.verified_files import note_verified
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_log = logging.getLogger(__name__)


CLOSERS = 16
"""The number of threads that close the logs of one directory. They spend nearly all their time waiting for syncs, and
the disk and the journal of the file system can complete concurrent syncs together."""


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """A marker: the directory was shut down cleanly by a broker registered under ``broker_epoch``.

    ``broker_epoch`` is ``NO_EPOCH`` if the marker does not contain an epoch.
    """

    broker_epoch: int


def read_marker(directory: Path) -> CleanShutdown | None:
    """Return the marker of a clean shutdown, or None if there is none. Raises ``OSError``."""
    try:
        data = (directory / CLEAN_SHUTDOWN_FILE).read_bytes()
    except FileNotFoundError:
        return None
    return CleanShutdown(_broker_epoch(data))


def remove_marker(directory: Path) -> None:
    """Remove the marker, which must exist, because the logs are about to be used. Raises ``OSError``."""
    os.unlink(directory / CLEAN_SHUTDOWN_FILE)
    sync_directory(directory)


def _broker_epoch(data: bytes) -> int:
    """Return the broker epoch in a marker; NO_EPOCH if it contains none, because an older broker wrote it."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return NO_EPOCH
    return epoch if isinstance(epoch, int) and epoch >= 0 else NO_EPOCH


def write_marker(directory: Path, broker_epoch: int) -> None:
    """Mark the directory as cleanly shut down: every log in it is closed and on disk. Raises ``OSError``.

    ``broker_epoch`` is the epoch of the broker's registration, or ``NO_EPOCH`` if the broker never registered.
    """
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, text.encode())


def common_epoch(markers: Sequence[CleanShutdown | None]) -> int:
    """Return the broker epoch that the markers of all directories share. Returns ``NO_EPOCH`` if they differ or one is
    missing."""
    epochs = {NO_EPOCH if marker is None else marker.broker_epoch for marker in markers}
    return epochs.pop() if len(epochs) == 1 else NO_EPOCH


class DirectoryCloser:
    """Closes all logs of one directory. Any number of threads may call ``work`` to share the logs among them."""

    def __init__(self, directory: LogDirectory, logs: Mapping[TopicPartition, Log]) -> None:
        self.directory = directory
        self.clean = True
        self._logs = logs
        self._waiting = deque(logs.values())

    def work(self) -> None:
        """Close logs until all are closed. Sets ``clean`` to False if a log cannot be closed cleanly."""
        while True:
            try:
                log = self._waiting.popleft()
            except IndexError:
                return
            try:
                log.close()
            except KafkaError as error:
                self.clean = False
                _log.error("%r cannot be closed cleanly: %s", log, error)

    def mark(self, broker_epoch: int) -> None:
        """Mark the directory as cleanly shut down (``write_marker``), after all its logs were closed. Raises
        ``OSError``."""
        note_verified(self.directory.path, ((key, log.segments) for key, log in self._logs.items() if log.is_written))
        write_marker(self.directory.path, broker_epoch)


def release_all(logs: Sequence[Log]) -> None:
    """Close the files of the logs without flushing them."""
    for log in logs:
        log.release()
