"""Clean shutdown of a log directory: closes all its logs in several threads, and reads and writes the marker.

The marker (``.kafka_cleanshutdown``, as in Kafka) says that every log was closed and is on disk, so the next start
scans nothing.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from parley.protocol.errors import KafkaError
from parley.storage.checkpoints import TopicPartition, sync_directory, write_atomically
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"

_log = logging.getLogger(__name__)


def take_marker(directory: Path) -> bool:
    """Remove the marker of a clean shutdown and return True if it was there. Raises ``OSError``."""
    try:
        os.unlink(directory / CLEAN_SHUTDOWN_FILE)
    except FileNotFoundError:
        return False
    sync_directory(directory)
    return True


def write_marker(directory: Path) -> None:
    """Mark the directory as shut down cleanly: every log in it is closed and on disk. Raises ``OSError``."""
    # Kafka 3.8 and later look for the broker's epoch here; -1 means that it is not known.
    write_atomically(directory / CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":-1}')


class DirectoryCloser:
    """Closes all logs of one directory, in as many threads as call ``work``."""

    def __init__(self, directory: LogDirectory, logs: Mapping[TopicPartition, Log]) -> None:
        self.directory = directory
        self.clean = True
        self._waiting = deque(logs.values())

    def work(self) -> None:
        """Close logs until none is left. A failure makes ``clean`` False."""
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


def release_all(logs: Sequence[Log]) -> None:
    """Give back the files of the logs without flushing them."""
    for log in logs:
        log.release()
