"""Closing many logs at once, in several threads."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence

from parley.protocol.errors import KafkaError
from parley.storage.checkpoints import TopicPartition
from parley.storage.directory import LogDirectory
from parley.storage.log import Log

_log = logging.getLogger(__name__)


class Closing:
    """The closing of all logs of one directory, by as many threads as call :meth:`work`."""

    def __init__(self, directory: LogDirectory, logs: Mapping[TopicPartition, Log]) -> None:
        self.directory = directory
        self.whole = True
        self._waiting = deque(logs.values())

    def work(self) -> None:
        """Close logs until none is left."""
        while True:
            try:
                log = self._waiting.popleft()
            except IndexError:
                return
            try:
                log.close()
            except KafkaError as error:
                self.whole = False
                _log.error("%r is not closed in order: %s", log, error)


def release_all(logs: Sequence[Log]) -> None:
    for log in logs:
        log.release()
