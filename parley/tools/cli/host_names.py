"""Resolve host names that users type. Brokers do not resolve names, because a slow name server would block them."""

from __future__ import annotations

import re
import socket
from typing import Final

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
"""The syntax of a host name. Anything else is not looked up."""


def address_of(name: str) -> str | None:
    """Return the first address of a host, preferring IPv4 to IPv6 as Java does, or None if there is none."""
    if _HOST.fullmatch(name) is None:
        return None
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = sorted((family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found)
    return addresses[0][1] if addresses else None
