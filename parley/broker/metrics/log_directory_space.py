"""The free and total space of log directories, and their stray logs, measured outside the event loop.

A scrape returns the latest measurement and starts the next one, so a disk that hangs delays neither the event loop nor
the scrape. Without scrapes nothing is measured.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from parley.storage.log_directory import is_stray

UNKNOWN: Final = -1


class Space(NamedTuple):
    """The space of the volume that contains a directory, in bytes; -1 if unknown. Also the number of stray logs in the
    directory."""

    total: int
    free: int
    """The bytes that an unprivileged process may still write."""
    strays: int = 0
    """The number of folders in the directory with logs that belong to no topic of the cluster."""


class LogDirectorySpace:
    """Measures the space of a broker's log directories."""

    def __init__(self, executor: Executor | None) -> None:
        self._executor = executor
        self._known: dict[Path, Space] = {}
        self._measuring: asyncio.Future[dict[Path, Space]] | None = None

    def of(self, directory: Path) -> Space:
        """Return the latest measurement of a directory. Its sizes are -1 if the directory has not been measured, or
        could not be read."""
        return self._known.get(directory, Space(UNKNOWN, UNKNOWN))

    async def measure(self, directories: Iterable[Path]) -> None:
        """Measure the directories, and return when this is complete. If a measurement is already in progress, wait for
        that one instead, even if it covers other directories."""
        self.begin(directories)
        if self._measuring is not None:
            await asyncio.wait({self._measuring})

    def begin(self, directories: Iterable[Path]) -> None:
        """Start measuring the directories in a thread, unless the previous measurement is still in progress. Call this
        in the event loop."""
        if self._measuring is None:
            loop = asyncio.get_running_loop()
            self._measuring = loop.run_in_executor(self._executor, _measured, tuple(directories))
            self._measuring.add_done_callback(self._note)

    def _note(self, measured: asyncio.Future[dict[Path, Space]]) -> None:
        self._measuring = None
        if not measured.cancelled() and measured.exception() is None:
            self._known = measured.result()


def _measured(directories: Iterable[Path]) -> dict[Path, Space]:
    found = {}
    for directory in directories:
        try:
            volume = shutil.disk_usage(directory)
            strays = sum(map(is_stray, os.listdir(directory)))
        except OSError:
            continue
        found[directory] = Space(volume.total, volume.free, strays)
    return found
