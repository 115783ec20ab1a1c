"""HTTP requests to a server that may be slow or hostile: with a deadline, a maximum size, and without redirects."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from threading import Timer
from typing import Any, Final
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

BYTES_MAX: Final = 1 << 20


def fetch(request: Request, context: ssl.SSLContext | None, timeout_s: float) -> bytes:
    """Return the body of the response. Blocks for ``timeout_s`` at most, not counting the lookup of the server's name.

    ``context`` is for https; with None, the operating system's certificate authorities are trusted. Raises OSError
    (HTTPError for an error status, TimeoutError at the deadline), HTTPException, or ValueError if the body is longer
    than ``BYTES_MAX``.
    """
    deadline = _Deadline(timeout_s)
    opener = build_opener(_NoRedirects, _Http(deadline), _Https(deadline, context))
    with deadline, opener.open(request, timeout=timeout_s) as response:
        body: bytes = response.read(BYTES_MAX + 1)
    if len(body) > BYTES_MAX:
        raise ValueError(f"more than {BYTES_MAX} bytes")
    return body


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: another server would get the secrets of the request, or supply the response."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, with which urllib raises HTTPError instead of following the redirect."""


class _Deadline:
    """Ends a request after some time, by shutting its connections down.

    The timeout of a socket applies to each read, so a server that sends a byte a second would never exceed it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._connected: list[socket.socket] = []
        self._is_over = False
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def watch(self, connected: socket.socket) -> None:
        """Shut this connection down at the deadline, too. TLS replaces its socket later, but not the duplicate that is
        kept here."""
        self._connected.append(connected.dup())
        if self._is_over:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        for each in self._connected:
            with suppress(OSError):  # it has already ended
                each.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *_: object) -> None:
        """Raise TimeoutError if the deadline has passed, in place of the error that the shutdown has caused, if any."""
        self._timer.cancel()
        self._timer.join()
        for each in self._connected:
            each.close()
        if self._is_over:
            raise TimeoutError(f"no complete response within {self._seconds:g} s") from None


class _Connection(HTTPConnection):
    """A connection that a ``_Deadline`` watches, from before its TLS handshake."""

    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _TlsConnection(HTTPSConnection, _Connection):
    """Connects with ``_Connection.connect``, then begins TLS."""


def _watched(kind: type[_Connection], deadline: _Deadline, host: str, **more: Any) -> _Connection:
    connection = kind(host, **more)
    connection.deadline = deadline
    return connection


class _Http(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_watched, _Connection, self._deadline), req)


class _Https(HTTPSHandler):
    def __init__(self, deadline: _Deadline, context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._deadline, self._tls = deadline, context

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(partial(_watched, _TlsConnection, self._deadline, context=self._tls), req)
