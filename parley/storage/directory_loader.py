"""Opens all logs of one directory at startup, in several threads.

Rules:

1. The state that the previous process left (clean shutdown, checkpoints) is read once, before any log is opened.
2. Logs are opened in no particular order, by as many threads as call ``DirectoryLoader.work``. An ``OSError`` of the
   disk takes the directory offline and ends the work on it. Any other error fails the startup, including a resource
   shortage of the process.
3. Two directories may contain logs of the same partition if its topic was deleted and created again while one
   directory was offline. Their topic ids distinguish the logs. If they do not, the broker refuses to start.
4. The broker also refuses to start if the folder of a partition contains the log of another partition of its topic.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random

from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.boot_id import cut_by_power, is_same_boot, note_boot, note_power_cut, was_recovered
from parley.storage.clean_shutdown import CleanShutdown, read_marker, remove_marker
from parley.storage.damage.verified_files import Versions, take_verified
from parley.storage.future_log import REPLACES
from parley.storage.loaded_log import LastKnown
from parley.storage.log import Log
from parley.storage.log_directory import LogDirectory, Mark, partition_name
from parley.storage.log_place import LogEvents, LogPlace, LogSettings
from parley.storage.meta_properties import MalformedIdentity
from parley.storage.partition_metadata import (
    PARTITION_FILE,
    PartitionMetadata,
    read_partition_metadata,
    rewrite_partition_metadata,
)
from parley.storage.resource_exhaustion import reserve_for
from parley.storage.unwritten_logs import UnwrittenLog

_log = logging.getLogger(__name__)

NAMED_MAX = 10
"""The maximum number of partitions in one log line."""


class TwinLogs(RuntimeError):
    """Raised if two directories contain logs of the same partition of the same topic."""


class MisplacedLog(RuntimeError):
    """Raised if the directory of a partition contains the log of another partition."""


class DirectoryLoader:
    """Opens the logs in one directory. Every method blocks."""

    def __init__(self, directory: LogDirectory, settings: LogSettings, on_io_error: Callable[[OSError], None]) -> None:
        self.directory = directory
        self.logs: dict[TopicPartition, Log] = {}
        self.partitions: list[TopicPartition] = []
        """The partitions with a log in this directory, open or not."""
        self.deleted: list[Path] = []
        """The directories of deleted partitions that still have to be removed."""
        self.copies: dict[TopicPartition, Path] = {}
        """Unfinished copies of logs in other directories (``parley.storage.future_log``)."""
        self.lost_below: dict[Log, int] = {}
        """The logs that end below their persisted high watermark, each with that high watermark."""
        self.missing: dict[TopicPartition, int] = {}
        """The partitions whose log directories have disappeared, each with its persisted high watermark."""
        self.unwritten: dict[TopicPartition, UnwrittenLog] = {}
        """The logs of this directory that had no files yet."""
        self._settings = settings
        self._events = LogEvents(on_io_error)
        self._waiting: deque[tuple[TopicPartition, Path]] = deque()
        self.marker: CleanShutdown | None = None
        """The marker of a clean shutdown, if ``prepare`` has found one."""
        self.cut_by_power: set[TopicPartition] = set()
        """The partitions whose logs may lack records that were not synced when the machine stopped."""
        self._same_boot = False
        self._is_kafkas = False
        self._recovery_points: dict[TopicPartition, int] = {}
        self._log_starts: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._cleaner_offsets: dict[TopicPartition, int] = {}
        self._verified: dict[TopicPartition, Versions] = {}
        self._outdated: dict[Path, tuple[UUID, int]] = {}  # logs whose ``partition.metadata`` is of an older version

    def prepare(self, cluster_id: str, broker_id: int) -> None:
        """Lock the directory and read its contents. An ``OSError`` takes it offline, unless the process has run out of
        a resource.

        Raises that ``OSError``, and the other errors of ``LogDirectory.open``; all of them must stop the broker.
        """
        directory = self.directory
        try:
            directory.open(cluster_id, broker_id, self._settings.random)
            contents = directory.contents()
            self._recovery_points = directory.recovery_points.read()
            self._log_starts = directory.log_start_offsets.read()
            self._high_watermarks = directory.high_watermarks.read()
            self._cleaner_offsets = directory.cleaner_offsets.read()
            self._same_boot = is_same_boot(directory.path)
            unwritten = directory.unwritten_logs.read(same_boot=self._same_boot)
            self._is_kafkas = not was_recovered(directory.path)
            self.marker = read_marker(directory.path)
            # Before this boot's id is written, because a list of an earlier boot would seem to be valid then.
            is_valid = self.marker is not None and self._same_boot
            self._verified = take_verified(directory.path, is_valid=is_valid)
            if self.marker is None:
                directory.sync()  # the folder of a new log may not be on disk yet
            else:
                if not self._is_kafkas:
                    note_boot(directory.path)  # if this startup fails, the next one must not assume a power cut
                remove_marker(directory.path)
            self._note_power_cut(contents.partitions)
        except OSError as error:
            self._failed(error)
            return
        self.deleted = contents.deleted
        self.copies = contents.copies
        self.partitions = list(contents.partitions)
        self.missing = {
            key: high_watermark
            for key, high_watermark in self._high_watermarks.items()
            if high_watermark and key not in contents.partitions and not contents.has_deleted(key)
        }
        self.unwritten = {
            key: log for key, log in unwritten.items() if key not in contents.partitions and key not in self.missing
        }
        self._waiting.extend(contents.partitions.items())
        if self.partitions and self.marker is None:
            facts = {
                "path": str(directory),
                "logs": len(self.partitions),
                "machine": "has not restarted" if self._same_boot else "may have lost power",
            }
            _log.warning("a log directory was not shut down cleanly: its logs are recovered", extra=facts)

    def _note_power_cut(self, partitions: Collection[TopicPartition]) -> None:
        path = self.directory.path
        known = cut_by_power(path, partitions)
        self.cut_by_power = known if self.marker or self._same_boot else set(partitions)
        if self.cut_by_power != known or not self.cut_by_power:
            note_power_cut(path, self.cut_by_power)

    def work(self) -> None:
        """Open logs until all are open or the directory is offline. Several threads may call this.

        Raises the errors that must stop the broker: ``MisplacedLog``, and ``OSError`` if the process has run out of a
        resource.
        """
        while self.directory.online:
            try:
                partition, path = self._waiting.popleft()
            except IndexError:
                return
            try:
                self.logs[partition] = self._open(partition, path)
            except OSError as error:
                self._failed(error)

    def finish(self) -> None:
        """Record that every log is open, and therefore recovered. An ``OSError`` takes the directory offline, but is
        raised if the process has run out of a resource.

        If the broker is killed before this, its next startup cannot tell which of these logs a crash of the machine has
        damaged, so it treats all of them as damaged.
        """
        if not self.directory.online:
            return
        try:
            rewrite_partition_metadata(self._outdated)
            if not self._same_boot:
                if self._is_kafkas and self.logs:
                    self.directory.recovery_points.write({key: log.recovery_point for key, log in self.logs.items()})
                note_boot(self.directory.path)
        except OSError as error:
            self._failed(error)

    def give_way(self, partition: TopicPartition, random: Random) -> None:
        """Mark the log of a partition for deletion, because another directory contains its successor. Blocks. Raises
        ``OSError``."""
        path = self.directory.path / partition_name(*partition)
        self.deleted.append(self.directory.set_aside(path, random, Mark.DELETE))
        self.partitions.remove(partition)
        self._waiting.remove((partition, path))

    def rest(self) -> None:
        """Close the files of the open logs until they are needed again."""
        for log in list(self.logs.values()):
            log.rest()

    def release(self) -> None:
        """Close all files without writing anything, after a failed startup."""
        for log in self.logs.values():
            log.release()
        self.directory.close()

    def _open(self, partition: TopicPartition, path: Path) -> Log:
        metadata = _metadata(path)
        if metadata is not None:
            self._check_partition(path, metadata, partition[1])
        topic_id = None if metadata is None else metadata.topic_id
        (path / REPLACES).unlink(missing_ok=True)  # the replaced log no longer exists
        log_start = self._log_starts.get(partition)
        known = LastKnown(
            self.marker is not None,
            self._recovery_points.get(partition, 0),
            log_start or 0,
            knows_log_start=log_start is not None,
            same_boot=self._same_boot,
            cleaned_up_to=self._cleaner_offsets.get(partition),
            highest_leader_epoch=self._settings.highest_leader_epoch,
            is_kafkas=self._is_kafkas,
            verified=self._verified.get(partition),
        )
        log = Log.open(LogPlace(path, *partition, topic_id, self._events), self._settings, known)
        log.high_watermark = high_watermark = self._high_watermarks.get(partition, 0)
        if log.log_end_offset < high_watermark:
            self.lost_below[log] = high_watermark
            facts = {"log_end": log.log_end_offset, "high_watermark": high_watermark, "path": str(path)}
            _log.error("a log lacks committed records: it ends below its persisted high watermark", extra=facts)
        return log

    def _check_partition(self, path: Path, metadata: PartitionMetadata, partition: int) -> None:
        """Raise MisplacedLog if the log in ``path`` belongs to another partition of its topic.

        If its ``partition.metadata`` lacks the partition or the checksum, ``finish`` adds them, for all later startups.
        """
        found = metadata.partition
        if not metadata.has_checksum:
            self._outdated[path] = metadata.topic_id, partition
        if found is not None and found != partition:
            raise MisplacedLog(
                f"{path} contains the log of partition {found}, according to its {PARTITION_FILE}: folders were "
                f"swapped or renamed. Rename the folder so that it ends in -{found}. If only the file is damaged, "
                "remove the file"
            )

    def _failed(self, error: OSError) -> None:
        if reserve_for(error) is not None:
            raise error
        if self.directory.fail(error):
            _log.error("%s is offline: %s", self.directory, error)


def _metadata(path: Path) -> PartitionMetadata | None:
    try:
        return read_partition_metadata(path)
    except MalformedIdentity as error:
        _log.warning("%s; treating the file as missing", error)
        return None


def refuse_twins(loaders: Sequence[DirectoryLoader], random: Random) -> None:
    """Mark for deletion each log that has a successor in another directory. Blocks.

    Raises ``TwinLogs`` if a partition has several logs, none of them is marked as the successor, and their topic ids do
    not distinguish them. Raises ``OSError``.
    """
    seen: dict[TopicPartition, list[DirectoryLoader]] = {}
    for loader in loaders:
        for partition in loader.partitions if loader.directory.online else ():
            seen.setdefault(partition, []).append(loader)
    for partition, homes in seen.items():
        name = partition_name(*partition)
        if len(homes) == 1:
            continue
        successors = [home for home in homes if (home.directory.path / name / REPLACES).exists()]
        if len(successors) == 1:
            for home in homes:
                if home is not successors[0]:
                    home.give_way(partition, random)
        else:
            found = [_metadata(home.directory.path / name) for home in homes]
            if None in found or len({each.topic_id for each in found if each is not None}) < len(found):
                places = " and in ".join(str(home.directory) for home in homes)
                raise TwinLogs(f"{name} is in {places}: move one of the two directories elsewhere")


def report_missing(loaders: Sequence[DirectoryLoader]) -> None:
    """Log an error for the partitions that had committed records at the last checkpoint and have no log in any
    directory.

    Removes all other partitions from the ``missing`` of their loaders.
    """
    present = {partition for loader in loaders for partition in loader.partitions}
    for loader in loaders:
        loader.missing = {key: loader.missing[key] for key in sorted(loader.missing) if key not in present}
        if loader.missing:
            names = " ".join(partition_name(*key) for key in [*loader.missing][:NAMED_MAX])
            facts = {"path": str(loader.directory), "partitions": len(loader.missing), "names": names}
            _log.error(
                "logs with committed records are missing: their directories were removed; the records are fetched "
                "again from other replicas",
                extra=facts,
            )


def report(loaders: Sequence[DirectoryLoader]) -> None:
    """Log how many logs have been opened so far."""
    for loader in loaders:
        opened, total = len(loader.logs), len(loader.partitions)
        if opened < total and loader.directory.online:
            _log.info("%s: %d of %d logs are open", loader.directory, opened, total)
