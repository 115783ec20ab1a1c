"""Tells a crash of the process from a crash of the machine, by the id that Linux gives to each boot.

If the machine has not restarted, its page cache has lost nothing that the last broker wrote. Anything that recovery
then finds damaged or missing is real damage, not a write that never reached the disk.
"""

from __future__ import annotations

import logging
from pathlib import Path

from parley.storage.checkpoints import write_atomically

BOOT_FILE = ".boot-id"
"""A file in each log directory: the id of the boot during which a broker last recovered the directory."""
_CURRENT = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


def is_same_boot(directory: Path) -> bool:
    """Return True if the machine has not restarted since ``note_boot`` was called for the log directory.

    Always returns False on a system without boot ids. Raises ``OSError``.
    """
    current, path = _current(), directory / BOOT_FILE
    try:
        return path.read_bytes() == current != b""
    except FileNotFoundError:
        return False
    except IsADirectoryError:
        _log.warning("ignoring %s: it is a directory, but must be a file. Remove it", path)
        return False


def note_boot(directory: Path) -> None:
    """Write the id of this boot into a log directory, once every log in it has been recovered. Raises ``OSError``."""
    current, path = _current(), directory / BOOT_FILE
    if current and not path.is_dir():
        write_atomically(path, current, sync=False)  # only a crash of the machine can lose the file


def _current() -> bytes:
    try:
        return _CURRENT.read_bytes().strip()
    except OSError:
        return b""
