"""Which session timeouts a server grants: ZooKeeper tells nobody, but fits whatever is asked for into its bounds."""

from __future__ import annotations

import struct
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Connect

from consensus.zookeeper.connection import Endpoint

_INT = struct.Struct("!i")
_CLOSE = _INT.pack(8) + struct.pack("!ii", 1, -11)
_LONGEST_MS = 2**31 - 1


def granted_bounds(endpoint: Endpoint, within_s: float) -> tuple[int, int]:
    """The shortest and the longest session timeout, in milliseconds, of the first server that answers. Blocks.

    :raises OSError: no server answers in time.
    """
    handler = SequentialThreadingHandler()
    client = endpoint.client(round(within_s * 1000), handler)
    hosts, _ = collect_hosts(endpoint.hosts)
    tls = {} if not client.use_ssl else endpoint.tls
    failure: OSError | None = None
    for host, port in hosts:
        try:
            return tuple(_granted(handler, (host, port), tls, within_s, ms) for ms in (1, _LONGEST_MS))  # type: ignore[return-value]
        except OSError as error:
            failure = error
    raise failure or OSError("no server is named")


def _granted(
    handler: SequentialThreadingHandler, address: tuple[str, int], tls: dict[str, Any], within_s: float, timeout_ms: int
) -> int:
    connection = handler.create_connection(address=address, hostname=address[0], timeout=within_s, **tls)
    with connection:
        connection.settimeout(within_s)
        request = bytes(Connect(0, 0, timeout_ms, 0, b"\0" * 16, None).serialize())
        connection.sendall(_INT.pack(len(request)) + request)
        answer = _exactly(connection, _INT.unpack(_exactly(connection, 4))[0])
        connection.sendall(_CLOSE)
        granted: int = struct.unpack_from("!ii", answer)[1]
        return granted


def _exactly(connection: Any, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise ConnectionResetError("the server closed the connection; is it a ZooKeeper server?")
        parts += part
    return parts
