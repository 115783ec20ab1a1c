"""One of the broker's log directories (``log.dirs``): its lock, its owner, what lies in it, whether its disk works.

Rules:

1. A directory belongs to one broker of one cluster (``meta.properties``) and to one process at a time (``.lock``,
   which Apache Kafka locks too).
2. ``.kafka_cleanshutdown`` says that every log was closed in order. It counts once: it is taken away before the first
   append, so that a later crash is not mistaken for an orderly end.
3. A partition's directory is ``topic-partition``. A deleted one is renamed ``topic-partition.<unique>-delete``, which
   is done at once, and is removed later; after a restart too. One that nobody asked to delete, but that belongs to no
   partition of this broker any more, becomes ``-stray`` and stays, as in Kafka: what made it a stray may have been a
   mistake. Everything else in the directory is left alone, whatever it is called: the directories of other brokers
   (``broker-1``) above all.
4. An ``OSError`` takes a directory offline, with all its logs, until the broker starts again. The others go on. But
   that the process has too many files open says nothing of the disk (:func:`is_of_disk`).
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
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from uuid import UUID

from parley.storage.checkpoints import (
    HIGH_WATERMARKS,
    INT32_MAX,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
    sync_directory,
)
from parley.storage.meta_properties import DIRECTORY_FILE, DirectoryIdentity
from parley.storage.partition_metadata import write_topic_id

LOCK_FILE = ".lock"
NAME_MAX = 255

_OF_LOG = re.compile(r"\d{20}\..+|(leader-epoch-checkpoint|partition\.metadata)(\..+)?", re.ASCII)
"""Files that lie in a partition's directory."""
_PARTITION = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})", re.ASCII)
_MARKED = re.compile(r"[a-zA-Z0-9._-]+-[0-9]+\.[0-9a-f]{32}-(delete|future|stray)", re.ASCII)
_NOT_LOGS = {
    "__cluster_metadata-0": "Apache Kafka's own metadata log",
    "remote-log-index-cache": "a cache",
    "coordination": "the embedded coordination store",
}
_FLOCK = struct.Struct("hhqqi0q")
"""type, whence, start, length (0: to the end), pid (0 for a lock of the open file) of C's ``struct flock``"""

_log = logging.getLogger(__name__)


class DirectoryInUse(RuntimeError):
    """Another process, or another broker in this one, has the directory."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The partitions in a directory, the deleted ones that are still to be removed, and copies begun (KIP-113)."""

    partitions: dict[tuple[str, int], Path]
    deleted: list[Path]
    copies: dict[tuple[str, int], Path]


def parse_partition_name(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory called ``name``, or None if it is not called as one of a partition."""
    match = _PARTITION.fullmatch(name)
    if match is None or match[1] in (".", "..") or int(match[2]) > INT32_MAX:
        return None
    return match[1], int(match[2])


def partition_name(topic: str, partition: int) -> str:
    """What the directory of a partition is called."""
    return f"{topic}-{partition}"


def _is_log(path: Path) -> bool:
    """Whether a directory may be a partition's: one of its files lies in it, or nothing yet; and no broker owns it."""
    names = os.listdir(path)
    is_ours = not names or any(_OF_LOG.fullmatch(name) for name in names)
    return is_ours and LOCK_FILE not in names and DIRECTORY_FILE not in names


class Mark(Enum):
    """Why a partition's directory was set aside, as the end of its name says."""

    DELETE = "delete"
    STRAY = "stray"


def set_aside_name(name: str, random: Random, mark: Mark) -> str:
    """What a partition's directory called ``name`` is called once it is set aside; a long topic's name is cut."""
    topic, _, partition = name.rpartition("-")
    suffix = f"-{partition}.{random.getrandbits(128):032x}-{mark.value}"
    return topic[: NAME_MAX - len(suffix)] + suffix


FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What there is to hear when a directory may take no more."""


def is_of_disk(error: OSError) -> bool:
    """Whether the directory that met ``error`` is to be given up."""
    return error.errno not in (errno.EMFILE, errno.ENFILE)


class LogDirectory:
    """The directory at ``path``. :meth:`open` it before anything else. All methods block for the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recovery_points = OffsetCheckpoint(path / RECOVERY_POINTS)
        self.high_watermarks = OffsetCheckpoint(path / HIGH_WATERMARKS)
        self.log_start_offsets = OffsetCheckpoint(path / LOG_START_OFFSETS)
        self.error: OSError | None = None
        """Why the directory is offline, or None while it works."""
        self._lock_fd = -1
        self._renames = 0
        self._synced = 0
        self._syncing = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def online(self) -> bool:
        """Whether the directory may be used."""
        return self.error is None

    def open(self, cluster_id: str, broker_id: int) -> None:
        """Create the directory if it is missing, lock it, and check that it belongs to this broker; claim a new one.

        Raises ``DirectoryInUse``, ``InconsistentIdentity`` or ``MalformedIdentity``, which must stop the broker;
        ``OSError`` if the disk fails.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock()
        try:
            self._claim(cluster_id, broker_id)
        except BaseException:
            self.close()
            raise

    def _claim(self, cluster_id: str, broker_id: int) -> None:
        identity = DirectoryIdentity.read(self.path)
        if identity is None:
            DirectoryIdentity(cluster_id, broker_id).write(self.path)
            return
        identity.require(self.path, cluster_id, broker_id)
        if identity.cluster_id is None:
            DirectoryIdentity(cluster_id, broker_id, identity.version, identity.directory_id).write(self.path)

    def _lock(self) -> None:
        fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # A lock of the open file, not of the process: it also keeps out a second broker in this process, and
            # it conflicts with the lock that the JVM takes.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        except (BlockingIOError, PermissionError):
            os.close(fd)
            raise DirectoryInUse(
                f"{self.path} is in use by another broker, which holds {LOCK_FILE} in it. Stop that broker, or give "
                "this one a directory of its own in log.dirs"
            ) from None
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd

    def close(self) -> None:
        """Give the directory to others. Idempotent."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def fail(self, error: OSError) -> bool:
        """Take the directory offline because of ``error``; False if it is already."""
        if self.error is not None:
            return False
        self.error = error
        return True

    def contents(self) -> Contents:
        """The partitions that lie in the directory, and what is left of deleted ones. Raises ``OSError``."""
        found = Contents({}, [], {})
        with os.scandir(self.path) as entries:
            for entry in sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name):
                self._classify(entry.name, found)
        return found

    def _classify(self, name: str, found: Contents) -> None:
        path = self.path / name
        mark = _MARKED.fullmatch(name)
        if name in _NOT_LOGS:
            _log.info("%s is left alone: %s", path, _NOT_LOGS[name])
        elif mark is not None and mark[1] == "delete":
            found.deleted.append(path)
        elif mark is not None and mark[1] == "future" and (partition := parse_partition_name(name.rpartition(".")[0])):
            found.copies[partition] = path
        elif mark is not None:
            _log.warning("%s is left alone: a %s replica that was set aside; nothing needs it", path, mark[1])
        elif (partition := parse_partition_name(name)) is None:
            _log.warning("%s is left alone: its name is not that of a partition", path)
        elif _is_log(path):
            found.partitions[partition] = path
        else:
            _log.warning("%s is left alone: it is called as a partition, but what lies in it is no log", path)

    def create(self, name: str, topic_id: UUID | None) -> Path:
        """Make the directory of a partition unless it is there; :meth:`sync` makes that durable. Raises ``OSError``."""
        path = self.path / name
        path.mkdir(exist_ok=True)
        if topic_id is not None:
            write_topic_id(path, topic_id)
        return path

    def set_aside(self, path: Path, random: Random, mark: Mark) -> Path:
        """Rename a partition's directory, durably; where it is now. Raises ``OSError``."""
        target = path.with_name(set_aside_name(path.name, random, mark))
        path.rename(target)
        self._sync_names()
        return target

    def sync(self) -> None:
        """Make every change of a name in the directory durable. Raises ``OSError``."""
        self._sync_names()

    def _sync_names(self) -> None:
        """Make the caller's change of a name durable; threads that wait here share the next sync."""
        self._renames += 1
        mine = self._renames
        with self._syncing:
            if self._synced < mine:
                covered = self._renames
                sync_directory(self.path)
                self._synced = covered

    def remove(self, path: Path) -> None:
        """Remove a directory that was set aside, with all in it. Raises ``OSError``."""
        shutil.rmtree(path, onerror=_unless_missing)


def _unless_missing(
    _function: object, _path: object, failure: tuple[type[BaseException], BaseException, object]
) -> None:
    if not isinstance(failure[1], FileNotFoundError):
        raise failure[1]
