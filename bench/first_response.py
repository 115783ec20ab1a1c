"""Check with a plain socket whether a broker responds to a Metadata request."""

from __future__ import annotations

import socket
import struct

_REQUEST = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)  # Metadata version 1, no topics


def responds_to_metadata(host: str, port: int) -> bool:
    """Return True if the response to a Metadata request contains at least one broker (itself)."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            response = connection.recv(65536)
    except OSError:
        return False
    # size, correlation id, number of brokers
    return len(response) >= 12 and struct.unpack_from(">i", response, 8)[0] > 0
