"""Examine log directories on this machine: owner, free space, and what they record about the cluster."""

from __future__ import annotations

import os
from pathlib import Path

from parley.broker.membership.known_stores import read_known_stores
from parley.broker.membership.remembered_epochs import read_remembered_epochs
from parley.storage.clean_shutdown import CLEAN_SHUTDOWN_FILE
from parley.storage.log_directory import LOCK_FILE, is_stray, parse_partition_name
from parley.storage.meta_properties import DirectoryIdentity, MalformedIdentity
from parley.tools.doctor.facts import Folder
from parley.tools.doctor.gathering_processes import having_open


def folder_at(path: Path) -> Folder:
    """Examine a log directory. Problems are recorded in the result, never raised."""
    shown = str(path)
    if not path.exists():
        parent = next(each for each in path.absolute().parents if each.exists())
        may = os.access(parent, os.W_OK | os.X_OK)
        error = "" if may else f"it does not exist, and {parent} does not let this user create it"
        return Folder(shown, exists=False, error=error)
    if not path.is_dir():
        return Folder(shown, error="it is not a folder")
    try:
        volume = os.statvfs(path)
        names = os.listdir(path)
    except OSError as error:
        return Folder(shown, error=error.strerror or str(error))
    identity, malformed = _identity(path)
    may = os.access(path, os.R_OK | os.W_OK | os.X_OK)
    problem = _read_only(path) if may else "this user may not read and write it"
    return Folder(
        shown,
        error=problem,
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
        strays=sorted(filter(is_stray, names)),
        seen=read_remembered_epochs([path]).metadata,
    )


def _read_only(path: Path) -> str:
    """Return why the directory is read-only although the permissions allow writes, or an empty string if it is not."""
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
