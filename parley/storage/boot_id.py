"""Distinguishes a crash of the process from a crash of the machine, by the id that Linux assigns to each boot.

If the machine has not restarted, its page cache has lost nothing that the previous process wrote. Anything that
recovery then finds damaged or missing is real damage, not a write that never reached the disk.

On a machine without boot ids, or if the data directory was moved to another machine, the broker assumes a restart. A
restart without a clean shutdown counts as a power cut, because it may have been one.

The file with the id also distinguishes a log directory of Parley from one that only Apache Kafka has used. The file is
on disk before Parley appends anything.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from parley.protocol.topic_partition import TopicPartition
from parley.storage.checkpoints import INT32_MAX, MalformedCheckpoint, read, whole_number, write, write_atomically

BOOT_FILE = ".boot-id"
"""A file in each log directory: the id of the boot during which a broker last recovered the directory."""
POWER_CUT_FILE = ".power-cut"
"""A file in a log directory that lists the logs that may lack records, because the machine restarted without a clean
shutdown. It has the format of a checkpoint. An empty or malformed file means that any log may lack records."""
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
        # A crash of the machine makes the id wrong anyway, so a new id may be lost. The first file must not be lost.
        write_atomically(path, current, sync=not path.exists())


def cut_by_power(directory: Path, present: Collection[TopicPartition]) -> set[TopicPartition]:
    """Return the logs among ``present`` that may lack records, according to ``note_power_cut``. Raises ``OSError``."""
    path = directory / POWER_CUT_FILE
    if not path.exists():
        return set()
    return {*present}.intersection(read(path, _partition) or present)


def note_power_cut(directory: Path, logs: Collection[TopicPartition]) -> None:
    """Record that these logs in the directory may lack records that were acknowledged but not synced. If ``logs`` is
    empty, removes the file. Raises ``OSError``."""
    path = directory / POWER_CUT_FILE
    if logs:
        write(path, (f"{topic} {partition}" for topic, partition in logs))
    else:
        path.unlink(missing_ok=True)


def _partition(words: list[str]) -> TopicPartition:
    if len(words) != 2:
        raise MalformedCheckpoint(f"{' '.join(words)[:80]!r} is not a topic and a partition")
    return words[0], whole_number(words[1], INT32_MAX)


def _current() -> bytes:
    try:
        return _CURRENT.read_bytes().strip()
    except OSError:
        return b""
