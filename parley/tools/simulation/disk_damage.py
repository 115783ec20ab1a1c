"""Damage to the disk of a machine whose broker is down: a lost, older or altered part of what is on it.

Each function changes a ``Disk`` and returns a description of what it did, or an empty text if there was nothing to
damage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from parley.storage.segment import LOG_SUFFIX
from parley.tools.simulation.disk import Disk
from parley.tools.simulation.faults import Kind

FLIPPED_MAX = 8


def damage(disk: Disk, kind: Kind, rng: Random) -> str:
    """Damage the disk in one of the ways of ``faults.DAMAGE``."""
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
    for i in range(at, min(at + rng.randint(1, FLIPPED_MAX), len(content))):
        content[i] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"bytes from {at} on changed in {_name(path)} of {len(content)} bytes"


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


_DAMAGE: Mapping[Kind, Callable[[Disk, Random], str]] = {
    Kind.LOSE_DISK: _lose_disk,
    Kind.OLD_DISK: _old_disk,
    Kind.FLIP: _flip,
    Kind.LOSE_SEGMENT: _lose_segment,
    Kind.EMPTY_SEGMENT: _empty_segment,
    Kind.LOSE_PARTITION: _lose_partition,
}


def _segments(disk: Disk) -> list[Path]:
    """The ``.log`` files of all partitions, sorted."""
    return sorted(path for path in disk.path.glob(f"*/*{LOG_SUFFIX}") if not path.parent.name.endswith("-delete"))


def _any(rng: Random, paths: list[Path]) -> Path | None:
    return rng.choice(paths) if paths else None


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.lstrip('0')}"
