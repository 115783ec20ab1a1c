"""Connections that are accepted but not served, because their address opens too many per second (KIP-612).

Each is closed after a delay, so that its client does not reconnect immediately. Until then it uses a file descriptor.
If too many are held, the oldest is closed early. If the process runs out of descriptors, all are closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict

HELD_MAX = 500
"""The maximum number of unserved sockets that a broker holds."""
HELD_SHARE = 10
"""Of the connections that the process's limit of file descriptors allows, at most one in ``HELD_SHARE`` is held."""


class RefusedConnections:
    """The unserved sockets that a broker holds until it closes them."""

    def __init__(self) -> None:
        self._held: OrderedDict[socket.socket, asyncio.TimerHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sock: socket.socket, seconds: float, connections_max: int) -> None:
        """Close a socket after ``seconds``. If too many sockets are held, close the oldest now. ``connections_max`` is
        the number of connections that the file descriptors allow."""
        while len(self._held) >= max(1, min(HELD_MAX, connections_max // HELD_SHARE)):
            self._close(next(iter(self._held)))
        self._held[sock] = asyncio.get_running_loop().call_later(seconds, self._close, sock)

    def _close(self, sock: socket.socket) -> None:
        self._held.pop(sock).cancel()
        sock.close()

    def close(self) -> None:
        """Close all sockets. Idempotent."""
        while self._held:
            self._close(next(iter(self._held)))
