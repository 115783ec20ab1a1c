"""Exchanges wake-ups with the other processes that have the store open, and detects their deaths.

Each process keeps a named pipe ``live/<process>`` open at both ends and reads from it. The other processes keep its
writing end open. A byte in the pipe is a wake-up. When a process dies, the kernel closes its ends, and the writing ends
in the other processes report an error immediately. A pipe without a reader (``ENXIO``) belongs to a dead process.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DIRECTORY = "live"
ENTRIES_CHANGED = b"c"
"""The wake-up after a commit."""
SESSIONS_CHANGED = b"m"
"""The wake-up after a process or a session has started or ended."""
_READ_BYTES = 65536


def is_any_alive(directory: Path) -> bool:
    """Return True if a process has the store in the directory open, or if this is unclear."""
    with suppress(FileNotFoundError):
        return any(_is_alive(pipe) for pipe in (directory / DIRECTORY).iterdir() if not pipe.name.startswith("."))
    return False


def _is_alive(pipe: Path) -> bool:
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.ENOENT)
    return True


class OtherProcesses:
    """This process's pipe, and the writing ends of the other processes' pipes.

    ``process`` is this process's name, which must never have been used before. Callbacks run on the loop:
    ``on_wake_up`` with True if processes or sessions have started or ended, ``on_death`` with the name of a process
    that has died.
    """

    def __init__(
        self, directory: Path, process: str, on_wake_up: Callable[[bool], None], on_death: Callable[[str], None]
    ) -> None:
        self.process = process
        self._directory = directory / DIRECTORY
        self._on_wake_up = on_wake_up
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._pipe = self._directory / process
        draft = self._directory / f".{process}"
        os.mkfifo(draft, 0o600)
        self._reader = os.open(draft, os.O_RDONLY | os.O_NONBLOCK)
        # Without this writing end, the reader would see an end of file when the last other process closes its end.
        self._own_writer = os.open(draft, os.O_WRONLY | os.O_NONBLOCK)
        draft.rename(self._pipe)  # visible to the other processes only now that it has a reader
        self._writers: dict[str, int] = {}
        self._loop.add_reader(self._reader, self._on_readable)

    def close(self) -> None:
        """Close the pipes. The other processes then consider this process dead."""
        self._loop.remove_reader(self._reader)
        for process in tuple(self._writers):
            self._drop(process)
        self._pipe.unlink(missing_ok=True)
        os.close(self._reader)
        os.close(self._own_writer)

    @property
    def alive(self) -> set[str]:
        """The processes known to be alive, including this one."""
        return {self.process, *self._writers}

    def scan(self) -> list[str]:
        """Connect to the pipes of new processes, and return the names of dead ones.

        Raises OSError if it is unclear whether a process is alive or dead.
        """
        dead: list[str] = []
        for pipe in self._directory.iterdir():
            process = pipe.name
            if process.startswith(".") or process == self.process or process in self._writers:
                continue
            try:
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                continue  # the process has just closed its pipe
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                dead.append(process)
                continue
            self._writers[process] = writer
            self._loop.add_reader(writer, self._on_writer_event, process)
        return dead

    def forget(self, process: str) -> None:
        """Remove the pipe of a dead process. Call this after its sessions have been ended."""
        (self._directory / process).unlink(missing_ok=True)

    def wake_up(self, reason: bytes) -> None:
        """Write a byte to every other process: ``ENTRIES_CHANGED`` or ``SESSIONS_CHANGED``."""
        for process, writer in tuple(self._writers.items()):
            try:
                os.write(writer, reason)
            except BlockingIOError:
                pass  # its pipe is full of unread wake-ups
            except OSError:
                self._died(process)

    def _on_readable(self) -> None:
        reasons = b""
        with suppress(BlockingIOError):
            reasons = os.read(self._reader, _READ_BYTES)
        if reasons:
            self._on_wake_up(SESSIONS_CHANGED in reasons or len(reasons) == _READ_BYTES)

    def _on_writer_event(self, process: str) -> None:
        if process in self._writers:
            self._died(process)

    def _died(self, process: str) -> None:
        self._drop(process)
        self._on_death(process)

    def _drop(self, process: str) -> None:
        writer = self._writers.pop(process)
        self._loop.remove_reader(writer)
        os.close(writer)
