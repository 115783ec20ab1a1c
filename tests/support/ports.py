"""Ports of the loopback address for servers that a test starts, and starts again."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

_FIRST_PORT, _PORTS_PER_WORKER = 20_000, 500  # below the range that the system gives to whoever asks for any port


def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST_PORT + worker % 20 * _PORTS_PER_WORKER
    while True:
        for port in range(first, first + _PORTS_PER_WORKER):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
            yield port


_free_ports = _ports()


def free_port() -> int:
    """A port of the loopback address that nobody has, and that stays free while a server of ours is down."""
    return next(_free_ports)
