"""Getting past a process that was stopped (SIGSTOP, Ctrl-Z) while it held SQLite's write lock.

The lock is held for microseconds, but a process can be stopped in just those, and the kernel releases its lock only
when it dies. Every other process would be unable to write until it goes on: no failover from the very process that
failed. So the holder is made to go on just until it has released the lock, and is stopped again. What it was writing
had begun before it was stopped and is applied or refused like any other transaction; its sessions expire as they would
have.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

_WRITE_LOCK = 120  # the byte of the -shm file that a writer locks (SQLite's WAL_WRITE_LOCK)
_STEP_S = 0.001
_STEPS_MAX = 1000

log = logging.getLogger(__name__)


def step_over_stopped_holder(shm: Path) -> bool:
    """If a stopped process holds the write lock, let it run until it does not. Blocks up to a second.

    :return: whether the lock was freed that way. False too where that process belongs to another user or cannot be
        seen.
    """
    holder = _holder(shm)
    if holder is None or not _is_stopped(holder):
        return False
    try:
        descriptor = os.pidfd_open(holder)
    except OSError:
        return False
    try:
        if _holder(shm) != holder:  # so the descriptor is certainly that of the holder
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        freed = _wait_until_free(shm, holder)
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        log.warning("process %d was stopped while it held the lock of %s; freed: %s", holder, shm, freed)
        return freed
    except OSError as error:
        log.warning("process %d is stopped, holds the lock of %s and cannot be resumed: %s", holder, shm, error)
        return False
    finally:
        os.close(descriptor)


def _wait_until_free(shm: Path, holder: int) -> bool:
    pause = threading.Event()
    for _ in range(_STEPS_MAX):
        if _holder(shm) != holder:
            return True
        pause.wait(_STEP_S)
    return False


def _holder(shm: Path) -> int | None:
    """Who holds the write lock. (To ask by fcntl we would have to open the file; closing it drops our own locks.)"""
    try:
        found = shm.stat()
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return None
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in locks.splitlines():
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, name, first, last] if (
                name == file and last != "EOF" and int(first) <= _WRITE_LOCK <= int(last)
            ):
                return int(pid) if int(pid) > 0 else None
    return None


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"
