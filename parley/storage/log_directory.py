"""One of the broker's log directories (``log.dirs``): its lock, its owner, its contents, and whether its disk works.

Rules (docs/storage.md has them all):

1. A directory belongs to one broker of one cluster (``meta.properties``) and to one process at a time (``.lock``).
2. A partition's directory is named ``topic-partition``. To delete it, the broker renames it to
   ``topic-partition.<unique>-delete`` and removes its files later. A log that belongs to no partition of this broker is
   renamed to ``-stray`` and kept.
3. All other names in the directory are ignored.
4. An ``OSError`` takes the directory offline with all its logs until the broker restarts, except if the process has run
   out of file descriptors or memory (``parley.storage.resource_exhaustion``).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import struct
import threading
from dataclasses import replace
from enum import Enum
from pathlib import Path
from random import Random

from parley.light_dataclasses import dataclass
from parley.protocol.topic_partition import TopicPartition
from parley.protocol.uuids import UUID
from parley.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    INT32_MAX,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
    make_directories,
    sync_directory,
)
from parley.storage.meta_properties import DIRECTORY_FILE, DirectoryIdentity, MalformedIdentity
from parley.storage.partition_metadata import decode_id, encode_id, write_partition_metadata
from parley.storage.unwritten_logs import UNWRITTEN_LOGS, UnwrittenLog, UnwrittenLogs

LOCK_FILE = ".lock"
NAME_MAX = 255

_OF_LOG = re.compile(
    r"\d{20}\..+|(leader-epoch-checkpoint|appended-leader-epochs|damaged-ranges|removed-tombstones-checkpoint|partition\.metadata)(\..+)?",
    re.ASCII,
)
"""The file names by which a partition's directory is recognized."""
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", re.ASCII)
_MARKED = re.compile(r"[a-zA-Z0-9._-]+-[0-9]+\.[0-9a-f]{32}-(delete|future|stray)", re.ASCII)
_NOT_LOGS = {
    "__cluster_metadata-0": "Apache Kafka's own metadata log",
    "remote-log-index-cache": "a cache",
}
_EMBEDDED_STORE = "coordination"
"""The folder of the embedded coordination store, which may be in a log directory."""
_FLOCK = struct.Struct("hhqqi0q")
"""C's ``struct flock``: type, whence, start, length (0: to the end), pid (0 for a lock of the open file)."""

_log = logging.getLogger(__name__)


class DirectoryInUse(RuntimeError):
    """Raised if another process, or another broker in this process, uses the directory."""


def is_in_use(path: Path) -> bool:
    """Return True if a broker holds the lock of this log directory. Returns False if the lock file cannot be opened.
    Changes nothing. Blocks."""
    try:
        fd = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        held = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(held)[0] != fcntl.F_UNLCK)


@dataclass(frozen=True, slots=True)
class Contents:
    """The partitions in a directory, the deleted partitions whose files still exist, and unfinished copies
    (KIP-113)."""

    partitions: dict[tuple[str, int], Path]
    deleted: list[Path]
    copies: dict[tuple[str, int], Path]

    def has_deleted(self, partition: tuple[str, int]) -> bool:
        """Return True if the files of a deleted log of the partition still exist."""
        topic, index = partition
        suffix = f"-{index}"
        for path in self.deleted:
            stem = path.name.rpartition(".")[0]
            is_shortened = len(path.name) == NAME_MAX  # in a shorter name, foo is not the beginning of foobar
            if stem == topic + suffix:
                return True
            if is_shortened and stem.endswith(suffix) and topic.startswith(stem[: -len(suffix)]):
                return True
        return False


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """Return the topic and partition of a directory called ``name``, or None if it is not a partition's name."""
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] in (".", "..") or int(match[2]) > INT32_MAX:
        return None
    return match[1], int(match[2])


def partition_name(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def _is_log(path: Path) -> bool:
    """Return True if a directory may contain a partition's log: it is empty or contains a file of a log, and it is not
    itself a log directory of a broker."""
    names = os.listdir(path)
    is_ours = not names or any(_OF_LOG.fullmatch(name) for name in names)
    return is_ours and LOCK_FILE not in names and DIRECTORY_FILE not in names


class Mark(Enum):
    """The reason why a partition's directory was set aside. The value is the suffix of its new name."""

    DELETE = "delete"
    STRAY = "stray"


def is_stray(name: str) -> bool:
    """Return True if ``name`` is the name of a directory that was set aside as a stray."""
    marked = _MARKED.fullmatch(name)
    return marked is not None and marked[1] == Mark.STRAY.value


def set_aside_name(name: str, random: Random, mark: Mark) -> str:
    """Return a new, unique name for the partition directory ``name``, which is set aside. A long topic name is
    shortened."""
    topic, _, partition = name.rpartition("-")
    suffix = f"-{partition}.{random.getrandbits(128):032x}-{mark.value}"
    return topic[: NAME_MAX - len(suffix)] + suffix


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""The error numbers of a full disk."""


class LogDirectory:
    """The log directory at ``path``. Call ``open`` before anything else. Every method blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recovery_points = OffsetCheckpoint(path / RECOVERY_POINTS)
        self.high_watermarks = OffsetCheckpoint(path / HIGH_WATERMARKS)
        self.log_start_offsets = OffsetCheckpoint(path / LOG_START_OFFSETS)
        self.cleaner_offsets = OffsetCheckpoint(path / CLEANER_OFFSETS)
        self.unwritten_logs = UnwrittenLogs(path / UNWRITTEN_LOGS)
        self.kept_unwritten: dict[TopicPartition, UnwrittenLog] = {}
        """Logs without files that were being moved to another directory when the previous process ended. This startup
        did not create them again, because a directory is offline."""
        self.error: OSError | None = None
        """The error that took the directory offline; None while it is online."""
        self.id: UUID | None = None
        """The directory's id (``directory.id`` in ``meta.properties``, KIP-858); None until ``open``."""
        self.is_new = False
        """True if the directory had no owner before this startup, because it is new or was emptied."""
        self._lock_fd = -1
        self._renames = 0
        self._synced = 0
        self._syncing = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def online(self) -> bool:
        """True if the directory can be used."""
        return self.error is None

    def open(self, cluster_id: str, broker_id: int, random: Random) -> None:
        """Create the directory if it is missing, lock it, and check that it belongs to this broker. A new directory is
        assigned to this broker.

        A directory without an id gets a permanent one, generated with ``random``. Raises ``DirectoryInUse``,
        ``InconsistentIdentity`` or ``MalformedIdentity``, which must stop the broker, and ``OSError`` if the disk
        fails.
        """
        make_directories(self.path)
        self._lock()
        try:
            self._claim(cluster_id, broker_id, random)
        except BaseException:
            self.close()
            raise

    def _claim(self, cluster_id: str, broker_id: int, random: Random) -> None:
        found = DirectoryIdentity.read(self.path)
        self.is_new = found is None
        identity = found or DirectoryIdentity(cluster_id, broker_id)
        identity.require(self.path, cluster_id, broker_id)
        known_id = identity.directory_id or encode_id(UUID(int=random.getrandbits(128), version=4))
        identity = replace(identity, cluster_id=cluster_id, directory_id=known_id, has_checksum=True)
        try:
            self.id = decode_id(known_id)
        except MalformedIdentity as error:
            raise MalformedIdentity(
                f"directory.id in {self.path / DIRECTORY_FILE} is malformed: {error}. Restore the file from a backup; "
                "or remove that line, and the comment with the checksum if there is one: the directory gets a new id, "
                "and its replicas count as lost until they have caught up"
            ) from None
        if identity != found:
            identity.write(self.path)

    def _lock(self) -> None:
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A lock of the open file, not of the process: it also excludes a second broker in this process, and
            # it conflicts with the lock that the JVM takes.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except (BlockingIOError, PermissionError):
            os.close(fd)
            raise DirectoryInUse(
                f"{self.path} is in use by another broker, which holds {LOCK_FILE} in it. Stop that broker, or "
                "configure another directory for this one in log.dirs"
            ) from None
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def fail(self, error: OSError) -> bool:
        """Take the directory offline because of ``error``. Returns False if it was already offline."""
        if self.error is not None:
            return False
        self.error = error
        return True

    def contents(self) -> Contents:
        """Return the contents of the directory. Logs the folders that are ignored. Raises ``OSError``."""
        found = Contents({}, [], {})
        with os.scandir(self.path) as entries:
            for entry in sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name):
                self._classify(entry.name, found)
        return found

    def _classify(self, name: str, found: Contents) -> None:
        path = self.path / name
        mark = _MARKED.fullmatch(name)
        if name == _EMBEDDED_STORE:
            return
        if name in _NOT_LOGS:
            _log.info("ignoring a folder", extra={"path": str(path), "reason": _NOT_LOGS[name]})
        elif mark is not None and mark[1] == "delete":
            found.deleted.append(path)
        elif mark is not None and mark[1] == "future" and (partition := parse_partition_name(name.rpartition(".")[0])):
            found.copies[partition] = path
        elif mark is not None:
            _log.warning("ignoring a replica that was set aside", extra={"path": str(path), "why": mark[1]})
        elif (partition := parse_partition_name(name)) is None:
            _log.warning("ignoring a folder: its name is not a partition's", extra={"path": str(path)})
        elif _is_log(path):
            found.partitions[partition] = path
        else:
            _log.warning(
                "ignoring a folder with the name of a partition: it does not contain a log",
                extra={"path": str(path)},
            )

    def create(self, name: str, topic_id: UUID | None, partition: int) -> Path:
        """Create the directory of a partition if it does not exist, and return its path. If ``topic_id`` is given, also
        writes ``partition.metadata``. ``sync`` makes the directory's name durable. Raises ``OSError``."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        if topic_id is not None:
            write_partition_metadata(path, topic_id, partition)
        return path

    def set_aside(self, path: Path, random: Random, mark: Mark) -> Path:
        """Rename a partition's directory, and sync the new name to disk. Returns the new path. Raises ``OSError``."""
        target = path.with_name(set_aside_name(path.name, random, mark))
        path.rename(target)
        self._sync_names()
        return target

    def sync(self) -> None:
        """Make all name changes in the directory durable. Raises ``OSError``."""
        self._sync_names()

    def _sync_names(self) -> None:
        """Make all name changes so far durable. Threads that wait here share the next sync."""
        self._renames += 1
        mine = self._renames
        with self._syncing:
            if self._synced < mine:
                covered = self._renames
                sync_directory(self.path)
                self._synced = covered

    def remove(self, path: Path) -> None:
        """Remove a directory that was set aside, with its contents. Raises ``OSError``."""
        shutil.rmtree(path, onerror=_unless_missing)


def _unless_missing(
    _function: object, _path: object, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
