"""Damage to the disk of a machine whose broker is down: files are lost, replaced by older copies, or altered.

Each function changes a ``Disk`` and returns a description of what it did, or an empty string if there was nothing to
damage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from parley.protocol.records.batch_header import headers
from parley.protocol.records.errors import CorruptRecord
from parley.storage.boot_id import is_same_boot
from parley.storage.damage.altered_epochs import ELECTIONS_UNNOTED
from parley.storage.damage.appended_epochs import APPENDED_EPOCHS, AppendedEpochs
from parley.storage.meta_properties import DIRECTORY_FILE, DirectoryIdentity
from parley.storage.segment_names import LOG_SUFFIX
from parley.tools.simulation.disk import Disk
from parley.tools.simulation.faults import Kind

FLIPPED_MAX = 8
EPOCHS_FLIPPED = 0.3
"""The fraction of the flips that hit a leader epoch, which no checksum of a batch covers."""
CHECKPOINT = "-checkpoint"
LEADER_EPOCH_AT = 12
"""The position of the leader epoch in a batch."""


def damage(disk: Disk, kind: Kind, rng: Random) -> str:
    """Inflict a kind of damage in ``faults.DAMAGE`` on the disk. Returns a description, or an empty string if there was
    nothing to damage. The result counts as synced."""
    done = _DAMAGE[kind](disk, rng)
    disk.all_is_synced()
    return done


def _lose_disk(disk: Disk, rng: Random) -> str:
    disk.empty()
    return "an empty disk"


def _old_disk(disk: Disk, rng: Random) -> str:
    return "an older copy of its disk" if disk.put_back_copy() else ""


def _flip(disk: Disk, rng: Random) -> str:
    path = _any(rng, [each for each in _segments(disk) if each.stat().st_size])
    if path is None:
        return ""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    flipped = {i: rng.randrange(8) for i in range(at, min(at + rng.randint(1, FLIPPED_MAX), len(content)))}
    aim = Random(f"{at}/{len(content)}")  # a separate generator, so that the seed's other faults stay the same
    if aim.random() < EPOCHS_FLIPPED and (epoch := _epoch_bit(content, _appended_epochs(path), aim)) is not None:
        at, bit = epoch
        flipped = {at: bit}
    for i, bit in flipped.items():
        content[i] ^= 1 << bit
    path.write_bytes(content)
    return f"bytes from {at} on changed in {_name(path)} of {len(content)} bytes"


def _appended_epochs(segment: Path) -> AppendedEpochs:
    """Return the epochs of appended batches that the partition's directory records. None are valid after a restart of
    the machine."""
    path = segment.with_name(APPENDED_EPOCHS)
    same_boot = is_same_boot(path.parent.parent)
    return AppendedEpochs.open(path, same_boot=True) if same_boot else AppendedEpochs(path)


def _epoch_bit(content: bytes | bytearray, appended: AppendedEpochs, rng: Random) -> tuple[int, int] | None:
    """Choose a bit in the leader epoch of a batch. Returns the offset of its byte in the segment, and its number in the
    byte.

    Any bit may be chosen if ``appended`` knows the epoch of the batch, or if the batches before and after it have the
    same epoch. Otherwise it is a bit that makes the epoch higher than any that a broker accepts (docs/damage.md).
    Returns None if the segment contains no batch.
    """
    try:
        found = list(headers(content))
    except CorruptRecord:
        return None
    if not found:
        return None
    number = rng.randrange(len(found))
    epochs = {header.partition_leader_epoch for _, header in found[max(number - 1, 0) : number + 2]}
    is_between_equals = 0 < number < len(found) - 1 and len(epochs) == 1
    is_known = appended.is_honest(found[number][1], ()) is not None
    bit = rng.randrange(0 if is_known or is_between_equals else ELECTIONS_UNNOTED.bit_length(), 32)
    return found[number][0] + LEADER_EPOCH_AT + 3 - bit // 8, bit % 8


def _lose_segment(disk: Disk, rng: Random) -> str:
    path = _any(rng, _segments(disk))
    if path is None:
        return ""
    path.unlink()
    return f"{_name(path)} removed"


def _empty_segment(disk: Disk, rng: Random) -> str:
    active = {path.parent: path for path in _segments(disk)}
    path = _any(rng, list(active.values()))
    if path is None:
        return ""
    path.write_bytes(b"")
    return f"{_name(path)} emptied"


def _lose_partition(disk: Disk, rng: Random) -> str:
    path = _any(rng, _segments(disk))
    if path is None:
        return ""
    shutil.rmtree(path.parent)
    return f"{path.parent.name} removed"


def _lose_checkpoints(disk: Disk, rng: Random) -> str:
    return _remove(disk, f"*{CHECKPOINT}")


def _lose_indexes(disk: Disk, rng: Random) -> str:
    return _remove(disk, "*index")


def _remove(disk: Disk, pattern: str) -> str:
    paths = sorted(path for path in disk.path.rglob(pattern) if path.is_file())
    for path in paths:
        path.unlink()
    return f"{len(paths)} files {pattern} removed" if paths else ""


def _exchange_directories(disk: Disk, rng: Random) -> str:
    directories = _directories(disk)
    if len(directories) < 2:
        return ""
    one, other, between = *directories[:2], disk.path / "exchanged"
    one.rename(between)
    other.rename(one)
    between.rename(other)
    return f"exchanged {one.name} and {other.name}"


def adopt(disk: Disk, broker_id: int) -> None:
    """Assign the log directories on the disk to a broker, like an operator who edits ``meta.properties``."""
    for directory in _directories(disk):
        identity = DirectoryIdentity.read(directory)
        assert identity is not None
        replace(identity, broker_id=broker_id).write(directory)


_DAMAGE: Mapping[Kind, Callable[[Disk, Random], str]] = {
    Kind.LOSE_DISK: _lose_disk,
    Kind.OLD_DISK: _old_disk,
    Kind.FLIP: _flip,
    Kind.LOSE_SEGMENT: _lose_segment,
    Kind.EMPTY_SEGMENT: _empty_segment,
    Kind.LOSE_PARTITION: _lose_partition,
    Kind.LOSE_CHECKPOINTS: _lose_checkpoints,
    Kind.LOSE_INDEXES: _lose_indexes,
    Kind.EXCHANGE_DIRECTORIES: _exchange_directories,
}


def _directories(disk: Disk) -> list[Path]:
    """Return the log directories that a broker has used, sorted."""
    return sorted(path.parent for path in disk.path.rglob(DIRECTORY_FILE))


def _segments(disk: Disk) -> list[Path]:
    """Return the ``.log`` files of all partitions, sorted."""
    return sorted(path for path in disk.path.rglob(f"*{LOG_SUFFIX}") if not path.parent.name.endswith("-delete"))


def _any(rng: Random, paths: list[Path]) -> Path | None:
    return rng.choice(paths) if paths else None


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.lstrip('0')}"
