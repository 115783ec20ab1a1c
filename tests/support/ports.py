"""Ports on the loopback address for servers that a test starts and restarts.

Each test process reserves a range of ports with a lock that ends with the process, so that several runs on one machine
never conflict. The ranges are below the ports that the system assigns to clients.
"""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Iterator
from typing import IO

from tests.support.fast_folder import COMMON_FOLDER

_FIRST_PORT, _PORTS_PER_PROCESS, _RANGES = 12_000, 400, 50
_LOCKS = COMMON_FOLDER / "parley-tests-ports"
_held: list[IO[bytes]] = []


def _own_range() -> int:
    """Return the first port of a range that no other process has reserved. Raises RuntimeError if all are taken."""
    _LOCKS.mkdir(exist_ok=True)
    for number in range(_RANGES):
        lock = (_LOCKS / str(number)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _held.append(lock)
        return _FIRST_PORT + number * _PORTS_PER_PROCESS
    raise RuntimeError(f"{_RANGES} test processes run on this machine: no range of ports is left for another")


def _ports() -> Iterator[int]:
    first = _own_range()
    while True:
        for port in range(first, first + _PORTS_PER_PROCESS):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            yield port


_free_ports = _ports()


def free_port() -> int:
    """Return a loopback port that no process uses, and that remains reserved while its server is down."""
    return next(_free_ports)
