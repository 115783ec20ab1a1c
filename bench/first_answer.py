"""The moment at which a broker answers a Metadata request, seen through a plain socket."""

from __future__ import annotations

import socket
import struct

_REQUEST = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 0)  # Metadata version 1, no topics


def answers_metadata(host: str, port: int) -> bool:
    """Whether a broker is there and names at least one broker (itself)."""
    try:
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(struct.pack(">i", len(_REQUEST)) + _REQUEST)
            answer = connection.recv(65536)
    except OSError:
        return False
    # size, correlation id, then the count of brokers
    return len(answer) >= 12 and struct.unpack_from(">i", answer, 8)[0] > 0
