"""Which coordination store the data directories belong to: the file ``coordination.identity`` in each of them.

The broker does not start with a store that was wiped or replaced, because the cluster would appear to have no topics,
and the logs on disk would look like leftovers. It does accept a store to which the cluster has moved from the recorded
store while this broker was down.

The last line of the file ends with a checksum (``with_blank_checksum``), because an altered identity would look like
that of another store. Older versions wrote no checksum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from parley.consensus.errors import DamagedStore, DeletedStore, EmptyStore, WrongStore
from parley.storage.checkpoints import (
    MalformedCheckpoint,
    verify_blank_checksum,
    with_blank_checksum,
    write_atomically,
)
from parley.storage.meta_properties import MalformedIdentity

STORE_FILE = "coordination.identity"
"""A file in each data directory: the identity of the store that contains its topics, followed by those of earlier
stores."""
STORES_KEPT = 100
_IDENTITY = re.compile(r"[!-~]{1,200}")


def read_known_stores(directories: Sequence[Path]) -> list[str]:
    """Return the identities of the stores that these directories have belonged to, latest first; empty for new
    directories.

    Blocks on the disk. Raises ``MalformedIdentity`` if a file is malformed and no other directory contains a valid one.
    """
    longest, malformed = _read(directories)
    if malformed and not longest:
        files = " and ".join(map(str, malformed))
        raise MalformedIdentity(
            f"{files} should contain the identity of a coordination store, but is damaged. Restore the file from a "
            "backup. Without a backup, check that the address of the store is right, and remove the file: the broker "
            "then accepts that store"
        )
    return longest


def _read(directories: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Return the longest list of identities in these directories, and the malformed files."""
    longest: list[str] = []
    malformed: list[Path] = []
    for directory in directories:
        path = directory / STORE_FILE
        try:
            data = path.read_bytes()
        except OSError:
            continue
        found = data.decode(errors="replace").split()
        if _is_unaltered(data) and all(_IDENTITY.fullmatch(each) for each in found):
            longest = max(longest, found, key=len)  # a directory that was missing during a move lists fewer stores
        else:
            malformed.append(path)
    return longest, malformed


def _is_unaltered(data: bytes) -> bool:
    try:
        verify_blank_checksum(data)
    except MalformedCheckpoint:
        return False
    return True


def record_store(directories: Sequence[Path], identity: str) -> None:
    """Record in each directory that ``identity`` is the store that now contains its topics. Blocks on the disk.

    Directories that cannot be read or written are skipped.
    """
    stores = [identity, *(each for each in _read(directories)[0] if each != identity)][:STORES_KEPT]
    text = with_blank_checksum("".join(f"{each}\n" for each in stores).encode())
    for directory in directories:
        path = directory / STORE_FILE
        try:
            if not path.exists() or path.read_bytes() != text:
                write_atomically(path, text)
        except OSError:
            continue  # opening the logs of this directory reports what is wrong with it


def with_advice(wrong: WrongStore, directories: Sequence[Path]) -> WrongStore:
    """Return the error with advice for the operator: restore a damaged or wiped store, or correct a wrong address."""
    if isinstance(wrong, DamagedStore):
        return DamagedStore(
            f"{wrong}. Stop all brokers, keep a copy of the store's directory, and restore the store from a backup "
            "(docs/coordination.md, The embedded store). The records of the topics are not in the store"
        )
    data = " and ".join(map(str, directories))
    files = " and ".join(str(directory / STORE_FILE) for directory in directories)
    if isinstance(wrong, DeletedStore):
        return DeletedStore(
            f"{wrong}. Put its directory back, or restore the store from a backup (parley coordination restore), and "
            f"start the brokers again. The records of the topics are not in the store, but in {data}"
        )
    if isinstance(wrong, EmptyStore):
        what = f"the store is empty, but {data} holds data of a cluster: the store was wiped, or the address is wrong"
        then = "Restore the store from a backup (parley coordination restore), or correct the address"
    else:
        what = f"{wrong}: {data} belongs to another coordination store, or this one was wiped and recreated"
        then = "Correct the address of the store or log.dirs, or restore the store from a backup"
    return WrongStore(
        f"{what}. {then}. Only to begin a new cluster with the topics found on disk, remove {files}", found=wrong.found
    )
