"""Sets aside stray logs, which belong to no partition of this broker, so that their names can be used again.

Rules of this module:

* A stray is deleted if its topic is known to have been deleted. Otherwise it is renamed to ``-stray`` and kept, because
  the coordination store may have been rolled back to an older state.
* If several directories contain a log of the same partition (*twins*), the log of the current topic is used, and the
  others are strays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from parley.protocol.errors import KafkaError
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_copies import CopiesAndStraysOwner
from parley.storage.log_directory import LogDirectory, Mark
from parley.storage.log_locations import LogLocations
from parley.storage.log_maintenance import LogMaintenance
from parley.storage.partition_metadata import encode_id
from parley.storage.unsettled_logs import UnsettledLogs

_log = logging.getLogger(__name__)


class StrayLogs:
    """Sets the stray logs of one broker aside. Used on the event loop only."""

    def __init__(
        self,
        owner: CopiesAndStraysOwner,
        directories: Sequence[LogDirectory],
        locations: LogLocations,
        unsettled: UnsettledLogs,
        maintenance: LogMaintenance,
    ) -> None:
        self._owner = owner
        self._directories = directories
        self._locations = locations
        self._unsettled = unsettled
        self._maintenance = maintenance
        self.was_deleted: Callable[[UUID], bool] = lambda topic_id: False
        """Returns True if the topic with this id is known to have been deleted."""

    async def set_all_aside(self, is_wanted: Callable[[Log], bool]) -> None:
        """Set aside the logs for which ``is_wanted`` returns False, and all twins that are not current. Called once the
        metadata is known. A log that cannot be set aside is only reported in the broker's log."""
        for directory in self._directories:
            for key, log in list(self._locations.logs_in(directory).items()):
                if not is_wanted(log) or not self._locations.is_current(key, log):
                    await self._set_aside(key, log, directory)

    async def set_aside(self, topic: str, partition: int, *, topic_id: UUID) -> None:
        """Set aside the logs of a partition that belong to this topic, or whose topic id is unknown. A log that cannot
        be set aside is only reported in the broker's log."""
        key = (topic, partition)
        for directory in self._directories:
            log = self._locations.logs_in(directory).get(key)
            if log is not None and log.topic_id in (None, topic_id):
                await self._set_aside(key, log, directory)

    async def choose_twin(self, key: TopicPartition, topic_id: UUID) -> None:
        """If the partition has several logs, make the log of this topic the current one, and set the others aside.

        If none belongs to the topic, the current log stays. A log that cannot be set aside is only reported in the
        broker's log.
        """
        twins = self._locations.twins(key)
        right = next((twin for twin in twins if twin[1].topic_id == topic_id), None)
        if right is not None:
            self._locations.choose(key, right[1], right[0])
        for directory, log in twins:
            if not self._locations.is_current(key, log):
                await self._set_aside(key, log, directory)

    async def _set_aside(self, key: TopicPartition, log: Log, directory: LogDirectory) -> None:
        await self._locations.free(key)
        if self._locations.logs_in(directory).get(key) is not log:
            return
        deleted = log.topic_id is not None and self.was_deleted(log.topic_id)
        mark = Mark.DELETE if deleted else Mark.STRAY
        with self._locations.busy(key):
            async with self._owner.compaction_paused(log):
                self._locations.remove(key, log, directory)
            self._unsettled.settle(log)
            try:
                aside = await self._owner.run(directory, self._owner.set_aside, directory, log, mark)
                if deleted:  # before the checkpoints are written, which may need the space on a full disk
                    for path in aside:
                        await self._owner.run(directory, directory.remove, path)
                await self._maintenance.checkpoint(directory)
            except KafkaError as error:
                _log.error("a stray log cannot be set aside", extra={"path": str(log.directory), "reason": str(error)})
                return
        if not aside:
            return
        facts = {"topic_id": encode_id(log.topic_id) if log.topic_id else None, "path": str(aside[0])}
        if deleted:
            _log.info("deleting a log: its topic was deleted while this broker could not delete it", extra=facts)
        else:
            _log.warning("a stray log is set aside: remove it if its records are not needed", extra=facts)
