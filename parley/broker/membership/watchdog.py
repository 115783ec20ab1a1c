"""Noticing that another broker's process is gone, faster than any session ends.

When a process dies its machine closes its connections, and refuses new ones. A connection that ends is a suspicion only
(the network may have cut it); a refused connect confirms it. Silence (a machine that is gone, a process stopped)
proves nothing here: for that there are the session's time to live and the heartbeats.
"""

from __future__ import annotations

import asyncio
import socket

from parley.broker.metadata.types import Endpoint

RETRY_S = 0.1
"""The pause before a broker is called again that does not answer, or ends what it has accepted."""


async def is_gone(endpoint: Endpoint, *, timeout_s: float) -> bool:
    """Whether nobody listens at this address, as its machine says; False where there is no answer in time."""
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await _connect(endpoint)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False


async def until_gone(endpoint: Endpoint) -> None:
    """Hold a connection to a broker; returns once its process is known to be gone."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            reader, writer = await _connect(endpoint)
        except ConnectionRefusedError:
            return
        except OSError:
            await asyncio.sleep(RETRY_S)
            continue
        try:
            await reader.read(1)  # a broker never speaks first: this ends with the connection
        except OSError:
            pass
        finally:
            writer.close()
        if loop.time() - began < RETRY_S:
            await asyncio.sleep(RETRY_S)


async def _connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of the host that answers. Raises ConnectionRefusedError if every one refuses."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    errors: list[OSError] = []
    for address in dict.fromkeys(str(where[4][0]) for where in found):
        try:
            return await asyncio.open_connection(address, endpoint.port)
        except OSError as error:
            errors.append(error)
    raise next((error for error in errors if not isinstance(error, ConnectionRefusedError)), errors[0])
