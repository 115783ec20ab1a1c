"""Accepts connections, no faster than the limits allow, and pauses while file descriptors are exhausted.

Connections that are not accepted yet wait in the backlog of the listening socket, and cost nothing. The event loop's
own server cannot delay connections, and floods the log when file descriptors run out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import socket
from collections.abc import Callable
from typing import Any

_log = logging.getLogger(__name__)

ACCEPTED_AT_ONCE = 32
"""Connections accepted before the loop does other work."""
SHORTAGE_PAUSE_S = 0.5
"""How long nothing is accepted after the system has run out of file descriptors or memory."""
SHORTAGE_LOGGED_S = 30.0
"""A shortage is logged at most this often."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts connections on one listening socket, which it owns."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        wait_s: Callable[[], float],
        accepted: Callable[[socket.socket, Any], None],
        name: str,
    ) -> None:
        """``wait_s`` returns how long the next connection must wait; infinity means until ``resume``.

        ``accepted`` is called with the new socket and the client's address.
        """
        self._socket = sock
        self._wait_s = wait_s
        self._accepted = accepted
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_watching = False
        self._shortage_logged_at = -math.inf

    def start(self, backlog: int) -> None:
        """Begin to accept."""
        self._socket.listen(backlog)
        self._watch()

    def close(self) -> None:
        """Accept nothing more. Idempotent."""
        self._pause(math.inf)
        self._socket.close()

    def resume(self) -> None:
        """Accept again: what ``wait_s`` depends on has changed."""
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
                if error.errno in _SHORTAGES:
                    self._wait_for_descriptors(error)
                    return
                continue  # this client has disconnected already
            sock.setblocking(False)
            self._accepted(sock, address)

    def _wait_for_descriptors(self, error: OSError) -> None:
        self._pause(SHORTAGE_PAUSE_S)
        now = self._loop.time()
        if now - self._shortage_logged_at >= SHORTAGE_LOGGED_S:
            self._shortage_logged_at = now
            _log.error(
                "connections cannot be accepted: raise the limit of open files (ulimit -n, LimitNOFILE) or lower "
                "max.connections; waiting clients are accepted when other connections end",
                extra={"listener": self._name, "reason": error.strerror},
            )
