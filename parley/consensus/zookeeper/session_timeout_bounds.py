"""Finds the session timeouts that a server grants. ZooKeeper does not report its limits, but adjusts every request to
them."""

from __future__ import annotations

import struct
from typing import Any

from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Connect

from parley.consensus.zookeeper.connection import Endpoint, connect

_INT = struct.Struct("!i")
_CLOSE = _INT.pack(8) + struct.pack("!ii", 1, -11)
_LONGEST_MS = 2**31 - 1


def session_timeout_bounds(endpoint: Endpoint, within_s: float) -> tuple[int, int]:
    """Return the minimum and maximum session timeout, in milliseconds, of the first server that responds. Blocks.

    Raises OSError if no server responds in time.
    """
    hosts, _ = collect_hosts(endpoint.hosts)
    failure: OSError | None = None
    for host, port in hosts:
        try:
            return _granted(endpoint, host, port, within_s, 1), _granted(endpoint, host, port, within_s, _LONGEST_MS)
        except OSError as error:
            failure = error
    raise failure or OSError("the address names no server")


def _granted(endpoint: Endpoint, host: str, port: int, within_s: float, timeout_ms: int) -> int:
    with connect(endpoint, host, port, within_s) as connection:
        connection.settimeout(within_s)
        request = bytes(Connect(0, 0, timeout_ms, 0, b"\0" * 16, None).serialize())
        connection.sendall(_INT.pack(len(request)) + request)
        response = _exactly(connection, _INT.unpack(_exactly(connection, 4))[0])
        connection.sendall(_CLOSE)
        granted: int = struct.unpack_from("!ii", response)[1]
        return granted


def _exactly(connection: Any, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the server closed the connection; is it a ZooKeeper server?")
        parts += part
    return parts
