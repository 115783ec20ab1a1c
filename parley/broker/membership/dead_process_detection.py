"""Detects that the process of another broker has ended, before that broker's session expires.

When a process ends, its machine closes its connections and refuses new ones. A closed connection is only a suspicion,
because the network may have cut it. A refused connection confirms it. Silence proves nothing here, because the machine
may be offline or the process stalled: the session's TTL and the heartbeats cover these cases.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from parley.broker.metadata.types import Endpoint

RETRY_S = 0.1
"""The pause before the next attempt to connect if the broker does not respond or closes the connection."""
CONFIRM_S = 10.0
"""How long a machine may take to accept or refuse a connection after another connection to it was closed."""


async def is_gone(endpoint: Endpoint, *, timeout_s: float) -> bool:
    """Return True if the machine at this address refuses connections, False if it accepts one or does not respond in
    time."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await _connect(endpoint)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def until_gone(endpoint: Endpoint, hold: Callable[[Endpoint], Awaitable[None]]) -> None:
    """Keep a connection to a broker open. Returns when the broker's machine refuses connections.

    ``hold(endpoint)`` opens the connection, with the security settings of the brokers' listener. It returns when the
    connection has ended or cannot be established.
    """
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await hold(endpoint)
        if await is_gone(endpoint, timeout_s=CONFIRM_S):
            return
        if loop.time() - began < RETRY_S:
            await asyncio.sleep(RETRY_S)


async def _connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of the host that accepts a connection. Raises OSError, which is
    ConnectionRefusedError only if all addresses refuse the connection."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    errors: list[OSError] = []
    for address in dict.fromkeys(str(where[4][0]) for where in found):
        try:
            return await asyncio.open_connection(address, endpoint.port)
        except OSError as error:
            errors.append(error)
    raise next((error for error in errors if not isinstance(error, ConnectionRefusedError)), errors[0])
