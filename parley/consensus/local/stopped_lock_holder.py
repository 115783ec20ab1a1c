"""Frees SQLite's write lock if its holder was stopped (SIGSTOP, Ctrl-Z).

A process holds the lock for microseconds, but it can be stopped exactly then, and the kernel releases the lock only
when the process dies. Until then no other process could write, so the stopped process itself would prevent the
failover. Therefore the holder is resumed until it has released the lock, and then stopped again. The write that it
completes was started before the stop, and is applied or rejected like any other. Its sessions expire as usual.
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

_log = logging.getLogger(__name__)


def resume_stopped_lock_holder(shm: Path) -> bool:
    """If a stopped process holds the write lock, let it run until it releases the lock. Blocks for up to a second.

    Returns True if that freed the lock. Otherwise returns False, for example if the process belongs to another user or
    is not visible.
    """
    holder = _lock_holder(shm)
    if holder is None or not _is_stopped(holder):
        return False
    try:
        descriptor = os.pidfd_open(holder)
    except OSError:
        return False
    try:
        if _lock_holder(shm) != holder:  # otherwise the descriptor now certainly refers to the lock holder
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGCONT)
        freed = _wait_until_released(shm, holder)
        signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
        _log.warning("process %d was stopped while it held the lock of %s; freed: %s", holder, shm, freed)
        return freed
    except OSError as error:
        _log.warning("process %d is stopped, holds the lock of %s and cannot be resumed: %s", holder, shm, error)
        return False
    finally:
        os.close(descriptor)


def _wait_until_released(shm: Path, holder: int) -> bool:
    pause = threading.Event()
    for _ in range(_STEPS_MAX):
        if _lock_holder(shm) != holder:
            return True
        pause.wait(_STEP_S)
    return False


def _lock_holder(shm: Path) -> int | None:
    """Return the id of the process that holds the write lock, from /proc/locks.

    fcntl could find it, too, but would require opening the file, and closing it would drop this process's own locks.
    """
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
