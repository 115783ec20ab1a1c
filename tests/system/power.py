"""``python -m tests.system.power JOURNAL DATA start ...``: ``parley start ...`` on a disk that can lose power.

The broker's files are ordinary ones. Each ``os.fsync`` records in a journal what is on the disk from then on: the
content of a file, or the names in a directory. After the broker is killed, ``Journal.cut_power`` keeps an arbitrary
part of everything written later, by the rules of the simulated disks (``parley.tools.simulation.disk``).
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from parley.storage.boot_id import BOOT_FILE
from parley.storage.segment_names import LOG_SUFFIX
from parley.tools.simulation.disk import EARLIER_BOOT, surviving_names, torn


class Journal:
    """The synced content of a broker's disk, below ``data``. It is kept in the folder ``home``, and outlives the
    broker."""

    def __init__(self, home: Path, data: Path) -> None:
        self._files, self._names, self._held = (home / each for each in ("files", "names", "held"))
        self._home, self._data = home, data.resolve()
        self._lock = threading.Lock()
        self._fsync = os.fsync
        for folder in (self._files, self._names, self._held):
            folder.mkdir(parents=True, exist_ok=True)

    def watch(self) -> None:
        """Record what this process syncs from now on."""
        os.fsync = os.fdatasync = self._synced

    def _synced(self, fd: Any) -> None:
        fd = fd if isinstance(fd, int) else fd.fileno()
        opened = Path(f"/proc/self/fd/{fd}")  # stays right if another thread renames the file
        path = opened.readlink()
        if not path.is_relative_to(self._data):
            self._fsync(fd)
        elif path.exists():  # else nothing of it survives
            with self._lock:
                self._note(path, os.fstat(fd), opened)

    def _note(self, path: Path, status: os.stat_result, opened: Path) -> None:
        if stat.S_ISDIR(status.st_mode):
            names = _names_in(opened)
            for name, inode in names.items():
                self._hold(path / name, inode)
            self._write(self._names / str(status.st_ino), json.dumps([str(path), names]).encode())
            return
        self._hold(path, status.st_ino)
        known = self._files / str(status.st_ino)
        size = known.stat().st_size if known.exists() else -1
        if path.suffix == LOG_SUFFIX and 0 <= size <= status.st_size:  # it has grown
            with opened.open("rb") as source, known.open("ab") as target:
                source.seek(size)
                target.write(source.read())
        else:
            self._write(known, opened.read_bytes())

    def _write(self, path: Path, content: bytes) -> None:
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.rename(path)

    def _hold(self, path: Path, inode: int) -> None:
        """Keep an inode alive, so that its number is not reused while the journal refers to it."""
        held = self._held / str(inode)
        if not held.exists() and not path.is_dir():
            with suppress(FileNotFoundError):  # another thread has just renamed or removed it
                os.link(path, held)

    # --- While the broker does not run ---

    def all_is_synced(self) -> None:
        """Record that everything in the folder is on the disk."""
        for folder in (self._files, self._names, self._held):
            shutil.rmtree(folder)
            folder.mkdir()
        if self._data.exists():
            for path in (self._data, *_below(self._data)):
                self._note(path, path.stat(), path)

    def cut_power(self, rng: Random) -> int:
        """Leave what the machine finds on its disk when it starts again. Returns how many files have lost something."""
        sources = {path.stat().st_ino: path for path in (*_below(self._held), *_below(self._data))}
        left, lost = self._survivors(self._data, sources, rng)
        shutil.rmtree(self._data)
        self._data.mkdir()
        for path, content in left.items():
            if content is None:
                path.mkdir()
            else:
                path.write_bytes(EARLIER_BOOT if path.name == BOOT_FILE else content)
        self.all_is_synced()
        return lost

    def _survivors(self, folder: Path, sources: dict[int, Path], rng: Random) -> tuple[dict[Path, bytes | None], int]:
        current = _names_in(folder)
        names = surviving_names(self._synced_names(folder), current, rng)
        lost = sum(names.get(name) != inode for name, inode in current.items())
        left: dict[Path, bytes | None] = {}
        for name, inode in names.items():
            source, path = sources.get(inode), folder / name
            if source is None:
                continue  # a directory that was removed
            if source.is_dir():
                below, lost_below = self._survivors(source, sources, rng)
                left |= {path: None, **{path / each.relative_to(source): content for each, content in below.items()}}
                lost += lost_below
                continue
            synced = self._files / str(inode)
            written = source.read_bytes()
            left[path] = torn(synced.read_bytes() if synced.exists() else b"", written, rng)
            lost += left[path] != written
        return left, lost

    def _synced_names(self, folder: Path) -> dict[str, int]:
        known = self._names / str(folder.stat().st_ino)
        if not known.exists():
            return {}
        path, names = json.loads(known.read_bytes())
        return names if path == str(folder) else {}  # else another directory had this number before


def _names_in(path: Path) -> dict[str, int]:
    with os.scandir(path) as entries:
        return dict(sorted((entry.name, entry.inode()) for entry in entries))


def _below(path: Path) -> Iterator[Path]:
    for name in _names_in(path):
        yield path / name
        if (path / name).is_dir():
            yield from _below(path / name)


if __name__ == "__main__":
    from parley.tools.cli import main

    Journal(Path(sys.argv.pop(1)), Path(sys.argv.pop(1))).watch()
    main()
