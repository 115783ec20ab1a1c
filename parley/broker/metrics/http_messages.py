"""HTTP requests, parsed from their headers, and responses. The bodies of requests are ignored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Final
from wsgiref.types import WSGIEnvironment

from parley.light_dataclasses import dataclass

HEADER_BYTES_MAX: Final = 64 << 10
"""The maximum size of the header of a request, as in Python's own HTTP server."""
PLAIN_TEXT: Final = (("Content-Type", "text/plain; charset=utf-8"),)
"""The headers of a page of plain text."""


class Stage(Enum):
    """The stages of a connection. Each value describes what a connection in this stage waits for."""

    HEADER = "the TLS handshake and the header of the request"
    ANSWER = "the response, or that the client reads it"
    LARGE_ANSWER = "the same, if the response may take megabytes"
    REFUSED = "the end of the delay after a failed login"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The header of a request, and the address of its client. A missing field of the header is an empty string."""

    method: str
    path: str
    query: str
    authorization: str
    accept: str
    accept_encoding: str
    address: str
    enter: Callable[[Stage], None]
    """Reports to the server that the connection enters a stage."""

    def environ(self) -> WSGIEnvironment:
        """Return the request as the environment of a WSGI application. A HEAD request becomes a GET request, because
        the server omits the body of its response."""
        return {
            "REQUEST_METHOD": "GET" if self.method == "HEAD" else self.method,
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
            "HTTP_ACCEPT": self.accept,
            "HTTP_ACCEPT_ENCODING": self.accept_encoding,
        }


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response. The connection ends after it."""

    status: str
    body: bytes
    headers: Sequence[tuple[str, str]] = PLAIN_TEXT

    def encoded(self, *, with_body: bool = True) -> bytes:
        """Return the bytes of the response. The response to a HEAD request is sent without its body, but with the same
        header."""
        fields = [
            ("Date", formatdate(usegmt=True)),  # `parley doctor` compares it with its own clock
            *self.headers,
            ("Content-Length", str(len(self.body))),
            ("Connection", "close"),
        ]
        lines = [f"HTTP/1.1 {self.status}", *(f"{name}: {value}" for name, value in fields), "", ""]
        return "\r\n".join(lines).encode("latin-1") + (self.body if with_body else b"")


def asks_for_body(header: bytes | bytearray) -> bool:
    """Return True if the response needs a body, that is, unless the request is a HEAD. The header may be incomplete
    or malformed."""
    return not header.startswith(b"HEAD ")


def error_page(status: HTTPStatus) -> HttpResponse:
    """Return the response that reports an error by its status."""
    return HttpResponse(f"{status.value} {status.phrase}", f"{status.phrase}.\n".encode())


class _Header(BaseHTTPRequestHandler):
    """The standard library's parser of headers, without a socket."""

    def __init__(self, header: bytes) -> None:
        self.rfile = BytesIO(header)
        self.raw_requestline = self.rfile.readline(HEADER_BYTES_MAX + 1)
        self.problem: HTTPStatus | None = None
        self.is_parsed = self.parse_request()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.problem = HTTPStatus(code)

    def handle_expect_100(self) -> bool:
        return True  # the body is not read


def parse_header(header: bytes, address: str, enter: Callable[[Stage], None]) -> HttpRequest | HTTPStatus:
    """Parse a header. Returns the request, or the status that reports what is wrong with the header. ``address`` and
    ``enter`` become attributes of the request."""
    parsed = _Header(header)
    if not parsed.is_parsed:
        return parsed.problem or HTTPStatus.BAD_REQUEST
    path, _, query = parsed.path.partition("?")
    given = parsed.headers
    return HttpRequest(
        parsed.command,
        path,
        query,
        given.get("Authorization", ""),
        given.get("Accept", ""),
        given.get("Accept-Encoding", ""),
        address,
        enter,
    )
