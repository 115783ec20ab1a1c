"""Accepts connections, no faster than the limits allow, and makes room when file descriptors are exhausted.

Connections that are not accepted yet wait in the backlog of the listening socket, at no cost. The event loop's own
server cannot delay connections, and floods the log when file descriptors run out.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import socket
from collections.abc import Callable
from typing import Any

from parley.storage.resource_exhaustion import reserve_for

_log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 8
"""The number of connections accepted before the event loop does other work."""
SHORTAGE_PAUSE_S = 0.1
"""How long, in seconds, no connection is accepted after the process has run out of file descriptors or memory. Idle
connections are closed in the meantime."""
SHORTAGE_LOGGED_S = 30.0
"""The minimum interval, in seconds, between two log lines about a shortage."""


class Acceptor:
    """Accepts connections on one listening socket, which it owns."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        wait_s: Callable[[], float],
        accepted: Callable[[socket.socket, Any], None],
        starved: Callable[[], None],
        name: str,
    ) -> None:
        """``wait_s`` returns how many seconds the next connection must wait. Infinity means until ``resume``.

        ``accepted`` is called with the new socket and the client's address. ``starved`` is called if there is no
        descriptor for a new socket, and closes other connections.
        """
        self._socket = sock
        self._wait_s = wait_s
        self._accepted = accepted
        self._starved = starved
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_watching = False
        self._shortage_logged_at = -math.inf

    def start(self, backlog: int) -> None:
        """Start accepting connections. Up to ``backlog`` connections wait in the kernel until they are accepted.
        Raises OSError if the socket cannot listen, for example because another socket listens on its address.
        """
        self._socket.listen(backlog)
        self._watch()

    def close(self) -> None:
        """Stop accepting and close the socket. Idempotent."""
        self._pause(math.inf)
        self._socket.close()

    def resume(self) -> None:
        """Call ``wait_s`` again, and accept connections if it allows them. Call this when the result of ``wait_s`` may
        have changed. Does nothing after ``close``."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_watching and self._socket.fileno() >= 0:
            self._watch()

    def _watch(self) -> None:
        self._is_watching = True
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _pause(self, seconds: float) -> None:
        if self._is_watching:
            self._is_watching = False
            self._loop.remove_reader(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds < math.inf:
            self._timer = self._loop.call_later(seconds, self.resume)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            wait_s = self._wait_s()
            if wait_s > 0:
                self._pause(wait_s)
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if (reserve := reserve_for(error)) is not None:
                    if self._is_client_waiting():
                        reserve.make_room()
                        self._wait_for_room(error)
                    return
                continue  # this client has disconnected already
            sock.setblocking(False)
            self._accepted(sock, address)

    def _is_client_waiting(self) -> bool:
        """Return True if a connection waits to be accepted. Without free descriptors, only ``poll`` reports this."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _wait_for_room(self, error: OSError) -> None:
        self._pause(SHORTAGE_PAUSE_S)
        self._starved()
        now = self._loop.time()
        if now - self._shortage_logged_at >= SHORTAGE_LOGGED_S:
            self._shortage_logged_at = now
            _log.error(
                "cannot accept connections: raise the limit of open files (ulimit -n, LimitNOFILE) or lower "
                "max.connections; closing the connections that have been idle longest",
                extra={"listener": self._name, "reason": error.strerror},
            )
