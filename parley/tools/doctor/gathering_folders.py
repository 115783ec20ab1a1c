"""Looks at log directories on this machine: whose they are, their room, and a quick check of their segments.

The quick check reads the newest segments first, all directories together up to ``CHECKED_BYTES``. It compares the
checksum of each batch, as the recovery of a log does.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from parley.broker.membership.known_stores import read_known_stores
from parley.protocol.errors import KafkaError
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.crc import verify_crc
from parley.storage.clean_shutdown import CLEAN_SHUTDOWN_FILE
from parley.storage.log_directory import LOCK_FILE, parse_partition_name
from parley.storage.meta_properties import DirectoryIdentity, MalformedIdentity
from parley.tools.doctor.facts import Damage, Folder
from parley.tools.doctor.gathering_processes import having_open

CHECKED_BYTES: Final = 256 << 20
DAMAGE_MAX: Final = 20


def folder_at(path: Path) -> Folder:
    """What the log directory is like. Never raises for what is wrong with it."""
    shown = str(path)
    if not path.exists():
        parent = next(each for each in path.absolute().parents if each.exists())
        may = os.access(parent, os.W_OK | os.X_OK)
        error = "" if may else f"it does not exist, and {parent} does not let this user create it"
        return Folder(shown, exists=False, error=error, is_permission=not may)
    if not path.is_dir():
        return Folder(shown, error="it is not a folder")
    try:
        volume = os.statvfs(path)
        names = os.listdir(path)
    except OSError as error:
        return Folder(shown, error=error.strerror or str(error), is_permission=isinstance(error, PermissionError))
    identity, malformed = _identity(path)
    may = os.access(path, os.R_OK | os.W_OK | os.X_OK)
    problem = _read_only(path) if may else "this user may not read and write it"
    return Folder(
        shown,
        error=problem,
        is_permission=bool(problem),
        total=volume.f_blocks * volume.f_frsize,
        free=volume.f_bavail * volume.f_frsize,
        inodes=volume.f_files,
        inodes_free=volume.f_favail,
        cluster_id=identity.cluster_id if identity else None,
        broker_id=identity.broker_id if identity else None,
        store_identity=_store(path),
        malformed=malformed,
        holder=having_open(path / LOCK_FILE),
        was_closed_cleanly=CLEAN_SHUTDOWN_FILE in names,
        has_logs=any(map(parse_partition_name, names)),
    )


def _read_only(path: Path) -> str:
    """Why nothing can be written there although the permissions allow it; empty if it can."""
    return "its file system is mounted read-only" if os.statvfs(path).f_flag & os.ST_RDONLY else ""


def _identity(path: Path) -> tuple[DirectoryIdentity | None, str]:
    try:
        return DirectoryIdentity.read(path), ""
    except (MalformedIdentity, OSError) as error:
        return None, str(error)


def _store(path: Path) -> str | None:
    try:
        return next(iter(read_known_stores([path])), None)
    except MalformedIdentity:
        return None


# --- Segments ---


def damage_in(folders: Sequence[Folder], *, is_running: bool) -> tuple[list[Damage], int]:
    """The damaged segments that the quick check finds, and how many partitions there are.

    The last batch of a segment to which a broker is writing may be incomplete, which is no damage.
    """
    partitions = [each for folder in folders if not folder.error for each in _partitions(Path(folder.path))]
    segments = sorted((segment for each in partitions for segment in each.glob("*.log")), key=_modified, reverse=True)
    found: list[Damage] = []
    left = CHECKED_BYTES
    for path in segments:
        if left <= 0 or len(found) >= DAMAGE_MAX:
            break
        size, damage = checked(path, left)
        left -= size
        if damage is not None and not (is_running and damage.is_tail):
            found.append(damage)
    return found, len(partitions)


def _partitions(folder: Path) -> Iterator[Path]:
    try:
        yield from (each for each in folder.iterdir() if parse_partition_name(each.name) and each.is_dir())
    except OSError:
        return


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def checked(path: Path, most: int) -> tuple[int, Damage | None]:
    """How many bytes of a segment were checked, at most ``most``, and the first damage in them."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                return 0, None
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as area, memoryview(area) as data:
                return _walked(path, data, min(size, most))
    except OSError as error:
        return 0, Damage(str(path), 0, error.strerror or str(error), is_tail=False)


def _walked(path: Path, data: memoryview, end: int) -> tuple[int, Damage | None]:
    position = 0
    while position < end:
        try:
            header = read_header(data, position)
            verify_crc(data, position, header)
        except KafkaError as error:
            return position, Damage(str(path), position, error.message, is_tail=_is_tail(data, position))
        position += header.size_bytes
    return position, None


def _is_tail(data: memoryview, position: int) -> bool:
    """True if the broken batch reaches to the end of the file, or only zeros follow: a write was cut off."""
    try:
        header = read_header(data, position)
    except KafkaError:
        return not any(data[position : position + (1 << 20)])
    return position + header.size_bytes > len(data)
