"""The logs that may lack committed records, until the cluster has settled each of them.

Three events make a log unsettled:

* At startup, the log ended below its persisted high watermark.
* A power cut may have removed records that were not synced.
* The log is new, but its replica may have had another log before. The new log is then *unproven*.

A log is settled once it contains all committed records again, or the cluster has accepted their loss. Used on the event
loop only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import chain

from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory


class UnsettledLogs:
    """The logs of one broker that may lack committed records, until each is settled."""

    def __init__(
        self,
        checkpoint_power_cut: Callable[[LogDirectory], Awaitable[None]],
        forget_power_cut: Callable[[LogDirectory], None],
    ) -> None:
        """``checkpoint_power_cut`` writes the list of a directory's logs that a power cut may have damaged, and raises
        ``KafkaError`` KAFKA_STORAGE_ERROR. ``forget_power_cut`` starts to empty that list."""
        self._checkpoint_power_cut = checkpoint_power_cut
        self._forget_power_cut = forget_power_cut
        self.lost_below: dict[Log, int] = {}
        """The logs that ended below their persisted high watermark at this startup, each with that high watermark."""
        self.unproven: dict[Log, int] = {}
        """New logs of replicas that may have had another log before, each with the partition epoch at its creation.
        Until such a log has been in sync, it may lack committed records. The next startup does not create it again if
        it has no files."""
        self._cut_by_power: dict[LogDirectory, set[Log]] = {}
        """By directory: the logs that may lack acknowledged records, because these were not synced before a power cut.
        A file in each directory lists them."""

    @property
    def logs(self) -> list[Log]:
        """All unsettled logs. ``settle`` removes a log."""
        return [*self.lost_below, *self.unproven, *chain.from_iterable(self._cut_by_power.values())]

    def known_high_watermark(self, log: Log) -> int:
        """Return the highest known high watermark: a log with all committed records ends at or above this offset."""
        return max(log.high_watermark, self.lost_below.get(log, 0))

    def is_unproven(self, log: Log) -> bool:
        """Return True if the replica may have had another log before, and this log has not been in sync yet."""
        return log in self.unproven

    def may_be_cut_by_power(self, log: Log) -> bool:
        """Return True if the log may lack acknowledged records because they were not synced before a power cut."""
        return any(log in logs for logs in self._cut_by_power.values())

    def cut_by_power_in(self, directory: LogDirectory) -> list[Log]:
        """Return the logs in the directory that may lack records because of a power cut, and copies that are about to
        replace such logs."""
        return list(self._cut_by_power.get(directory, ()))

    def note_power_cut(self, directory: LogDirectory, logs: set[Log]) -> None:
        """Record which logs of the directory may lack records because of a power cut."""
        self._cut_by_power[directory] = logs

    def went_offline(self, directory: LogDirectory) -> None:
        """Forget which logs of an offline directory may lack records because of a power cut. The file in the directory
        keeps the list for the next startup."""
        self._cut_by_power.pop(directory, None)

    def settle(self, log: Log) -> None:
        """Record that the log contains all committed records again, or that the missing records no longer matter.

        Once all logs of a directory are settled, its list of logs that a power cut may have damaged is emptied.
        """
        self.lost_below.pop(log, None)
        self.unproven.pop(log, None)
        for directory, logs in list(self._cut_by_power.items()):
            logs.discard(log)
            if not logs:
                del self._cut_by_power[directory]
                self._forget_power_cut(directory)

    # --- Copies that replace logs ---

    async def prepare_successor(self, log: Log, copy: Log, directory: LogDirectory) -> None:
        """Record in the copy's directory that the copy, which is about to replace the log, may lack the same records.

        Raises ``KafkaError`` KAFKA_STORAGE_ERROR.
        """
        if self.may_be_cut_by_power(log):
            self._cut_by_power.setdefault(directory, set()).add(copy)
            await self._checkpoint_power_cut(directory)

    def succeed(self, log: Log, copy: Log) -> None:
        """Record that a copy in another directory has replaced the log, and may lack the same records.

        ``prepare_successor`` has already recorded this for a power cut.
        """
        for facts in (self.lost_below, self.unproven):
            if log in facts:
                facts[copy] = facts.pop(log)
        for logs in self._cut_by_power.values():
            logs.discard(log)
