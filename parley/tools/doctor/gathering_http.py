"""Fetch pages over HTTP, and measure how far the server's clock is ahead. Blocks; run it in a thread."""

from __future__ import annotations

import ssl
import urllib.request
from base64 import b64encode
from email.utils import parsedate_to_datetime
from time import time
from typing import Final, NamedTuple
from urllib.parse import urlsplit

MOST_BYTES: Final = 64 << 20
_REFUSED: Final = (401, 403, 404)


class NoPage(Exception):
    """Raised if a page cannot be read. The text is the reason, without the password in the URL."""


class Page(NamedTuple):
    """The body of a page, and what ``clock_ahead`` returned for it (None if the response has no date)."""

    text: str
    clock_ahead_s: float | None


def shown(url: str) -> str:
    """Return the scheme, host and port of a URL, without user, password and path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def fetched(url: str, limit_s: float, tls: ssl.SSLContext | None = None) -> Page:
    """Fetch a page, whatever its status, such as the 503 of an unhealthy broker. A user and password in the URL are
    sent.

    Raises ``NoPage`` if the server does not respond within ``limit_s`` seconds, or responds with status 401, 403 or
    404.
    """
    parts = urlsplit(url)
    request = urllib.request.Request(f"{shown(url)}{parts.path}")
    if parts.username is not None:
        login = f"{parts.username}:{parts.password or ''}".encode()
        request.add_header("Authorization", f"Basic {b64encode(login).decode()}")
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls), _EveryStatus()
    )
    sent_s = time()
    try:
        with opener.open(request, timeout=limit_s) as response:
            if response.status in _REFUSED:
                raise NoPage(f"{shown(url)}{parts.path} responds with status {response.status}")
            text = response.read(MOST_BYTES).decode(errors="replace")
            return Page(text, clock_ahead(response.headers.get("Date", ""), sent_s, time()))
    except (OSError, ValueError) as error:
        raise NoPage(f"{shown(url)} does not respond: {error}") from error


def unverified_tls() -> ssl.SSLContext:
    """Return a TLS context that does not authenticate the server, for pages from which only the date is used."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def clock_ahead(date: str, sent_s: float, received_s: float) -> float | None:
    """Return the smallest clock difference, in seconds, that a Date header proves: positive if the server's clock is
    ahead of this machine's, negative if it is behind. Returns None if the header is missing or malformed.

    The server read its clock at some time between the request (``sent_s``) and the end of the response
    (``received_s``), so a slow response proves less. The header contains whole seconds. 0 means that the clocks may
    agree.
    """
    try:
        at = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    least, most = at - received_s, at + 1 - sent_s
    return max(least, 0.0) + min(most, 0.0)


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """A handler that accepts a response with any status."""

    def http_response(self, request, response):  # type: ignore[no-untyped-def]
        return response

    https_response = http_response
