"""The address of a store, split into its parts: ``scheme://host:port,host:port/path?query``.

``urllib.parse`` cannot split addresses with several servers: newer releases of Python reject ``[::1]:1,h:2`` as a host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from parley.consensus.errors import BadConfig

_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


class StoreUrl(NamedTuple):
    """The parts of an address, still percent-encoded; an absent part is empty. ``servers`` is the text before the
    path."""

    scheme: str
    servers: str
    path: str
    query: str
    fragment: str


class ServerAddress(NamedTuple):
    """A server's host and port. An IPv6 address keeps its brackets, as in a URL."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def split_url(url: str) -> StoreUrl:
    """Split an address into its parts. Accepts any text; the caller must check the parts."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    servers, slash, path = rest.partition("/")
    return StoreUrl(scheme.lower(), servers, slash + path, query, fragment)


def tls_contradiction(source: str, files: Iterable[str]) -> BadConfig:
    """Return the error for ``tls=false`` together with options that name files for TLS. ``source`` is the address."""
    names = " and ".join(files)
    return BadConfig(f"{source}: tls=false contradicts {names}: leave out tls=false, or {names}")


def parse_servers(servers: str, *, default_port: int, source: str, expected: str) -> tuple[ServerAddress, ...]:
    """Parse ``host[:port],host[:port]...``. IPv6 addresses must be in brackets.

    ``source`` and ``expected`` are for the error message: where the text comes from, and the form it must have. Raises
    BadConfig if a part is not a host with an optional port between 1 and 65535.
    """
    return tuple(_parse_server(server.strip(), default_port, source, expected) for server in servers.split(","))


def _parse_server(server: str, default_port: int, source: str, expected: str) -> ServerAddress:
    match = _SERVER.fullmatch(server)
    if match is None:
        raise BadConfig(f"{source}: {server!r} is not host:port; expected {expected}")
    port = default_port if match[2] is None else int(match[2])
    if not 0 < port < 65536:
        raise BadConfig(f"{source}: {port} is not a port; ports are 1 to 65535")
    return ServerAddress(match[1], port)
