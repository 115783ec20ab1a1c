"""The address of a store, taken apart: ``scheme://host:port,host:port/path?query``.

``urllib.parse`` is not for addresses of several servers: newer releases of Python refuse ``[::1]:1,h:2`` as a host.
"""

from __future__ import annotations

from typing import NamedTuple


class StoreUrl(NamedTuple):
    """The parts as they stand, nothing unquoted; ``servers`` is everything between ``://`` and the path."""

    scheme: str
    servers: str
    path: str
    query: str
    fragment: str


def split_url(url: str) -> StoreUrl:
    """Take an address apart; parts that are not there are empty."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    servers, slash, path = rest.partition("/")
    return StoreUrl(scheme.lower(), servers, slash + path, query, fragment)
