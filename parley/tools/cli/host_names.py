"""The addresses of host names that users type. Brokers look up no names: a slow name server would hold them up."""

from __future__ import annotations

import re
import socket
from typing import Final

_HOST: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
"""What may be the name of a host. Anything else is not looked up."""


def address_of(name: str) -> str | None:
    """Return the first address of a host, IPv4 before IPv6, as Java does; None if there is none."""
    if _HOST.fullmatch(name) is None:
        return None
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    addresses = sorted((family != socket.AF_INET, str(address[0])) for family, _, _, _, address in found)
    return addresses[0][1] if addresses else None
