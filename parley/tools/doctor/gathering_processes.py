"""Find the process on this machine that listens on a port or has a file open, and its command, in Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from parley.tools.doctor.facts import Process

COMMAND_MAX: Final = 100
_LISTEN: Final = "0A"


def listening_on(port: int) -> Process | None:
    """Return the process that listens on a TCP port, or None if there is none or this user may not see it."""
    wanted = {f"socket:[{inode}]" for other, inode in _listening() if other == port}
    return _with_open(wanted) if wanted else None


def ports_of(process: Process) -> Sequence[int]:
    """Return the TCP ports on which a process listens. Returns an empty sequence if this user may not see them."""
    held = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{process.pid}/fd"):
            with suppress(OSError):
                held.add(os.readlink(entry.path))
    return sorted({port for port, inode in _listening() if f"socket:[{inode}]" in held})


def having_open(path: Path) -> Process | None:
    """Return a process that has a file open, or None if there is none or this user may not see it."""
    return _with_open({str(path.resolve())})


def words_of(process: Process) -> tuple[Sequence[str], Path] | None:
    """Return the whole command line of a process and its working directory, or None if this user may not see them."""
    with suppress(OSError):
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return words[:-1], Path(os.readlink(f"/proc/{process.pid}/cwd"))
    return None


def _listening() -> Iterator[tuple[int, str]]:
    """Yield the port and the inode of each listening TCP socket."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTEN:
                    yield int(words[1].rpartition(":")[2], 16), words[9]


def _with_open(targets: set[str]) -> Process | None:
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with suppress(OSError):
            for entry in os.scandir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    if os.readlink(entry.path) in targets:
                        return Process(int(name), _command(name))
    return None


def _command(pid: str) -> str:
    """Return the program and its first words, without options and their values, which may be secret."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(_plain_words(words))[:COMMAND_MAX]
    return ""


def _plain_words(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        is_module = "-m" in (word, before)  # of Python
        if word and "=" not in word and (is_module or not (word.startswith("-") or before.startswith("-"))):
            yield word
        before = word
