"""Tells a crash of the process from a crash of the machine, by the id that Linux gives to each boot.

If the machine has not restarted, its page cache has lost nothing that the last broker wrote. What recovery then finds
damaged or missing is damage, and not a write that never reached the disk.
"""

from __future__ import annotations

import logging
from pathlib import Path

from parley.storage.checkpoints import write_atomically

BOOT_FILE = ".boot-id"
"""In a log directory: the boot in which the last broker opened it."""
_CURRENT = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


def note_boot(directory: Path) -> bool:
    """Write the id of this boot into a log directory. Returns True if it was there already.

    Always returns False on a system without such an id. Raises ``OSError``.
    """
    try:
        current = _CURRENT.read_bytes().strip()
    except OSError:
        return False
    path = directory / BOOT_FILE
    try:
        if path.read_bytes() == current:
            return True
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        _log.warning("ignoring %s: it must be a file, and this is a directory. Remove it", path)
        return False
    write_atomically(path, current, sync=False)  # a crash that loses it is one of the machine
    return False
