"""Simulated disks, which lose unsynced writes if their machine crashes.

Each machine has a folder on the real file system. While ``Disks`` is entered, ``os.fsync`` and ``os.fdatasync`` record
the current content of the file, or the names in the directory.

* If a process dies, nothing is lost: its writes are in the page cache.
* If a machine crashes, each file keeps its synced content, and all, none, a prefix or single pages of its later writes.
* A name created, renamed or removed since the last sync of its directory may or may not exist. A rename is atomic.
* Each start of a process gets a new folder, a copy of what is left, so that open files of an earlier process have no
  effect.
* While no process runs, ``disk_damage`` may change the files.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

from parley.storage.boot_id import BOOT_FILE
from parley.storage.damage.verified_files import VERIFIED_SEGMENTS

PAGE_BYTES = 512
EARLIER_BOOT = b"an earlier boot"
"""The content of ``.boot-id`` after a restart of the machine: the id of another boot."""
_SHADOW = "shadow"
_COPIES = ("copy", "older copy")


class Disks:
    """The disks of all machines, below one temporary folder. A context manager that replaces ``os.fsync`` and
    ``os.fdatasync``."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._disks: dict[str, Disk] = {}
        self._fsync = os.fsync
        self._fdatasync = os.fdatasync

    def __enter__(self) -> Self:
        os.fsync = self._synced
        os.fdatasync = self._synced
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.fsync, os.fdatasync = self._fsync, self._fdatasync

    def disk(self, host: str) -> Disk:
        """Return the disk of a machine. A new disk is empty."""
        if host not in self._disks:
            self._disks[host] = Disk(self.root / host)
        return self._disks[host]

    def _synced(self, fd: int | object) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()  # type: ignore[attr-defined]
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        if not path.is_relative_to(self.root):
            self._fsync(number)
            return
        disk = self._disks[path.relative_to(self.root).parts[0]]
        if path.is_relative_to(disk.path):
            disk.synced(number, path)


class Disk:
    """The disk of one machine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._generation = 0
        self._files: dict[int, bytes] = {}
        """The content of each file when it was last synced, by inode."""
        self._names: dict[int, dict[str, int]] = {}
        """The synced names in each directory and their inodes, by the directory's inode."""
        self.path = self._new_folder()
        """The folder of the process that runs now."""

    def _new_folder(self) -> Path:
        self._generation += 1
        path = self._home / str(self._generation)
        path.mkdir(parents=True)
        shadow = self._home / _SHADOW
        shutil.rmtree(shadow, ignore_errors=True)
        shadow.mkdir()
        return path

    def synced(self, fd: int, path: Path) -> None:
        """Record the current content as synced: an ``fsync`` of the open file or directory ``fd``, whose current or
        former path is ``path``."""
        if not path.exists():
            return  # the file no longer has a name, so it does not survive a crash
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = names = _names_in(path)
            for name, inode in names.items():
                self._keep(path / name, inode)
        else:
            self._files[status.st_ino] = path.read_bytes()
            self._keep(path, status.st_ino)

    def _keep(self, path: Path, inode: int) -> None:
        """Keep an inode alive, so that its number is not reused while this disk refers to it."""
        shadow = self._home / _SHADOW / str(inode)
        if not shadow.exists() and not path.is_dir():
            os.link(path, shadow)

    def keep_copy(self) -> None:
        """Keep a copy of the current content of the disk. The copy before it is kept too, for ``put_back_copy``."""
        latest, older = (self._home / name for name in _COPIES)
        shutil.rmtree(older, ignore_errors=True)
        if latest.exists():
            latest.rename(older)
        shutil.copytree(self.path, latest)

    def put_back_copy(self) -> bool:
        """Replace the content of the disk with the older of the two copies. Returns False if there are not two."""
        older = self._home / _COPIES[1]
        if not older.exists():
            return False
        self.empty()
        shutil.copytree(older, self.path, dirs_exist_ok=True)
        return True

    def empty(self) -> None:
        """Replace the disk with an empty one."""
        self.path = self._new_folder()
        self.all_is_synced()

    def all_is_synced(self) -> None:
        """Record all content of the disk as synced: it survives a crash."""
        self._files, self._names = {}, {}
        for path in (self.path, *_below(self.path)):
            if path.is_dir():
                self._names[path.stat().st_ino] = _names_in(path)
            else:
                self._files[path.stat().st_ino] = path.read_bytes()
                self._keep(path, path.stat().st_ino)

    def process_died(self) -> None:
        """Copy everything to a new folder. Unsynced content remains unsynced."""
        old, files, names = self.path, self._files, self._names
        self.path = self._new_folder()
        self._files, self._names = {}, {}
        self._copy(old, self.path, files, names)

    def _copy(self, old: Path, new: Path, files: dict[int, bytes], names: dict[int, dict[str, int]]) -> None:
        durable = names.get(old.stat().st_ino, {})
        kept: dict[str, int] = {}
        for name, inode in _names_in(old).items():
            source, target = old / name, new / name
            if source.is_dir():
                target.mkdir()
                self._copy(source, target, files, names)
            else:
                shutil.copyfile(source, target)
                if inode in files:
                    self._files[target.stat().st_ino] = files[inode]
                self._keep(target, target.stat().st_ino)
            if durable.get(name) == inode:
                kept[name] = target.stat().st_ino
        if old.stat().st_ino in names:
            self._names[new.stat().st_ino] = kept

    def machine_crashed(self, rng: Random) -> list[str]:
        """Copy what survives a crash to a new folder. Returns descriptions of what was lost."""
        old, shadow = self.path, self._home / _SHADOW
        sources = {path.stat().st_ino: path for path in (*_below(shadow), *_below(old))}
        lost: list[str] = []
        tree = self._survivors(old, Path(), sources, rng, lost)
        self.path = self._new_folder()
        for place, content in tree.items():
            path = self.path / place
            if content is None:
                path.mkdir()
            else:
                path.write_bytes(EARLIER_BOOT if place.name == BOOT_FILE else content)
        self.all_is_synced()
        return lost

    def _survivors(
        self, directory: Path, place: Path, sources: dict[int, Path], rng: Random, lost: list[str]
    ) -> dict[Path, bytes | None]:
        """Return the files and folders below a directory that survive a crash: their content by path below the disk's
        root, None for a folder. Appends descriptions of the losses to ``lost``."""
        current = _names_in(directory)
        names = surviving_names(self._names.get(directory.stat().st_ino, {}), current, rng)
        lost += [f"{place / name} was lost" for name in current if name not in names]
        left: dict[Path, bytes | None] = {}
        for name, inode in names.items():
            source = sources.get(inode)
            if source is None:
                continue  # a directory that was removed with its content
            if source.is_dir():
                left[place / name] = None
                left |= self._survivors(source, place / name, sources, rng, lost)
                continue
            written = source.read_bytes()
            content = left[place / name] = torn(self._files.get(inode, b""), written, rng)
            if content != written:
                lost.append(f"{place / name} lost some of its content: {len(content)} bytes remain of {len(written)}")
        return left


def surviving_names(durable: dict[str, int], current: dict[str, int], rng: Random) -> dict[str, int]:
    """Return the names in a directory after a crash. ``rng`` decides whether each change since the last sync survives.

    Names and inodes connected by a change, such as a rename, either all keep the old state or all take the new one.
    """
    together: dict[str, list[str]] = {}
    holder: dict[int, str] = {}
    for name in (*durable, *current):
        group = together.setdefault(name, [name])
        for inode in (durable.get(name), current.get(name)):
            other = group if inode is None else together[holder.setdefault(inode, name)]
            if other is not group:
                other += group
                for member in group:
                    together[member] = other
                group = other
    left: dict[str, int] = {}
    decided: dict[str, dict[str, int]] = {}
    for name in sorted(together):
        group = sorted(together[name])
        changed = any(durable.get(each) != current.get(each) for each in group)
        view = decided.get(group[0])
        if view is None:
            view = decided[group[0]] = durable if changed and rng.random() < 0.5 else current
        if name in view:
            left[name] = view[name]
    return left


def torn(durable: bytes, written: bytes, rng: Random) -> bytes:
    """Return the content of a file after a crash, chosen by ``rng``. ``durable`` was synced; ``written`` is the content
    before the crash."""
    if durable == written:
        return written
    fate = rng.choice(("lost", "kept", "prefix", "pages"))
    if fate == "lost":
        return durable
    if fate == "kept":
        return written
    if fate == "prefix" and written.startswith(durable):
        return written[: rng.randint(len(durable), len(written))]
    size = rng.choice((len(durable), len(written)))
    pages = []
    for start in range(0, size, PAGE_BYTES):
        source = rng.choice((durable, written))
        end = min(start + PAGE_BYTES, size)
        pages.append(source[start:end].ljust(end - start, b"\0"))
    return b"".join(pages)


def _names_in(path: Path | str) -> dict[str, int]:
    """Return the names in a directory with their inodes, sorted.

    Leaves out ``VERIFIED_SEGMENTS``: each start gets copies of the files, so the list never applies to them, and its
    content depends on real inodes and times, which no seed determines.
    """
    with os.scandir(path) as entries:
        return dict(sorted((entry.name, entry.inode()) for entry in entries if entry.name != VERIFIED_SEGMENTS))


def _below(path: Path) -> Iterator[Path]:
    for name in _names_in(path):
        yield path / name
        if (path / name).is_dir():
            yield from _below(path / name)
