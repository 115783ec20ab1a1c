"""Tells a crash of the process from a crash of the machine, by the id that Linux gives to each boot.

If the machine has not restarted, its page cache has lost nothing that the last broker wrote. Anything that recovery
then finds damaged or missing is real damage, not a write that never reached the disk.

The file with the id also tells a log directory of Parley from one that only Apache Kafka has used. It is on disk before
Parley appends anything.
"""

from __future__ import annotations

import logging
from pathlib import Path

from parley.storage.checkpoints import write_atomically

BOOT_FILE = ".boot-id"
"""A file in each log directory: the id of the boot during which a broker last recovered the directory."""
POWER_CUT_FILE = ".power-cut"
"""A file in each log directory with logs that a restart of the machine without a clean shutdown may have cut."""
_CURRENT = Path("/proc/sys/kernel/random/boot_id")

_log = logging.getLogger(__name__)


def was_recovered(directory: Path) -> bool:
    """Return True if ``note_boot`` was ever called for the log directory, by any broker. Raises ``OSError``."""
    return (directory / BOOT_FILE).exists()


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
    """Write the id of this boot into a log directory, once every log in it has been recovered. Raises ``OSError``.

    A system without boot ids gets an empty file.
    """
    current, path = _current(), directory / BOOT_FILE
    if not path.is_dir():
        # A crash of the machine makes the id wrong, so it may be lost. The first file must not be.
        write_atomically(path, current, sync=not path.exists())


def had_power_cut(directory: Path) -> bool:
    """Return True if a power cut was noted for the log directory and has not been forgotten."""
    return (directory / POWER_CUT_FILE).exists()


def note_power_cut(directory: Path) -> None:
    """Note that logs in the directory may lack records that were acknowledged but not synced. Raises ``OSError``.

    Nothing is synced: after another restart of the machine, the logs may lack such records in any case.
    """
    write_atomically(directory / POWER_CUT_FILE, b"", sync=False)


def forget_power_cut(directory: Path) -> None:
    """Forget the power cut: all logs contain what is committed again. Raises ``OSError``."""
    (directory / POWER_CUT_FILE).unlink(missing_ok=True)


def _current() -> bytes:
    try:
        return _CURRENT.read_bytes().strip()
    except OSError:
        return b""
