"""Accepting connections: no faster than allowed, and through a shortage of file descriptors.

What is not accepted waits in the listening socket's backlog, and costs nothing. The event loop's own way of accepting
can neither wait nor, out of descriptors, do it quietly.
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
"""Connections accepted before the loop serves others."""
SHORTAGE_PAUSE_S = 0.5
"""How long nothing is accepted when the system could not give what a connection needs."""
SHORTAGE_LOGGED_S = 30.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on one listening socket, which it owns."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        wait_s: Callable[[], float],
        accepted: Callable[[socket.socket, Any], None],
        name: str,
    ) -> None:
        """``wait_s`` is asked before every connection: how long it must wait, infinite until :meth:`go_on`.

        ``accepted`` is given the new socket and the peer's address.
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
        """Accept from now on."""
        self._socket.listen(backlog)
        self._watch()

    def close(self) -> None:
        """Accept nothing more. Idempotent."""
        self._pause(math.inf)
        self._socket.close()

    def go_on(self) -> None:
        """What ``wait_s`` depends on has changed."""
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
            self._timer = self._loop.call_later(seconds, self.go_on)

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
                continue  # this one has gone away again
            sock.setblocking(False)
            self._accepted(sock, address)

    def _wait_for_descriptors(self, error: OSError) -> None:
        self._pause(SHORTAGE_PAUSE_S)
        now = self._loop.time()
        if now - self._shortage_logged_at >= SHORTAGE_LOGGED_S:
            self._shortage_logged_at = now
            _log.error(
                "connections cannot be accepted: raise the limit of open files (ulimit -n, LimitNOFILE) or lower "
                "max.connections; those that wait are accepted when others end",
                extra={"listener": self._name, "reason": error.strerror},
            )
