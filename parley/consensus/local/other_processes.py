"""The other processes that have the store open: being told when they commit something, and when they die.

Each process holds a named pipe ``live/<process>`` open at both ends and reads from it; the others hold its writing
end. A byte in the pipe says that there is news. When the process dies the kernel closes its ends, and the others'
writing ends become erroneous at once. A pipe nobody reads (``ENXIO``) belongs to a dead process.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

DIRECTORY = "live"
CHANGED = b"c"
"""Something was committed."""
MOVED = b"m"
"""A process or a session came or went."""
_READ_BYTES = 65536


class Neighbours:
    """This process's pipe and the writing ends of the others'.

    :param process: this process's name, never used before.
    :param on_news: called on the loop with whether processes or sessions moved.
    :param on_death: called on the loop with the name of a process that died.
    """

    def __init__(
        self, directory: Path, process: str, on_news: Callable[[bool], None], on_death: Callable[[str], None]
    ) -> None:
        self.process = process
        self._directory = directory / DIRECTORY
        self._on_news = on_news
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._directory.mkdir(exist_ok=True)
        self._pipe = self._directory / process
        draft = self._directory / f".{process}"
        os.mkfifo(draft, 0o600)
        self._reader = os.open(draft, os.O_RDONLY | os.O_NONBLOCK)
        self._holder = os.open(
            draft, os.O_WRONLY | os.O_NONBLOCK
        )  # or the reader would see an end whenever others leave
        draft.rename(self._pipe)  # seen by others only now that it is read
        self._writers: dict[str, int] = {}
        self._loop.add_reader(self._reader, self._on_readable)

    def close(self) -> None:
        """Leave; the others see a process that is gone."""
        self._loop.remove_reader(self._reader)
        for process in tuple(self._writers):
            self._drop(process)
        self._pipe.unlink(missing_ok=True)
        os.close(self._reader)
        os.close(self._holder)

    @property
    def processes(self) -> set[str]:
        """The processes known to be alive, this one included."""
        return {self.process, *self._writers}

    def scan(self) -> list[str]:
        """Get to know processes that came; the names of those found dead.

        :raises OSError: some process is neither alive nor dead for all we can see.
        """
        dead: list[str] = []
        for pipe in self._directory.iterdir():
            process = pipe.name
            if process.startswith(".") or process == self.process or process in self._writers:
                continue
            try:
                writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                continue  # it left just now
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                dead.append(process)
                continue
            self._writers[process] = writer
            self._loop.add_reader(writer, self._on_writer_event, process)
        return dead

    def forget(self, process: str) -> None:
        """Remove what a dead process left behind, once its sessions are ended."""
        (self._directory / process).unlink(missing_ok=True)

    def tell(self, news: bytes) -> None:
        """Wake the others."""
        for process, writer in tuple(self._writers.items()):
            try:
                os.write(writer, news)
            except BlockingIOError:
                pass  # it has plenty of news to read already
            except OSError:
                self._died(process)

    def _on_readable(self) -> None:
        news = b""
        with suppress(BlockingIOError):
            news = os.read(self._reader, _READ_BYTES)
        if news:
            self._on_news(MOVED in news or len(news) == _READ_BYTES)

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
