"""Serve the console until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from parley.pipeline.service.server import RestServer
from parley.tools.console.app import Console
from parley.tools.console.preparation import Prepared

_IF_TAKEN = "Is another console running? Give this one another address: --listen http://127.0.0.1:8085."


async def run_console(plan: Prepared, stopping: asyncio.Event, ready: Callable[[str], None]) -> None:
    """Serve until ``stopping`` is set. Calls ``ready`` with the URL when it serves. Raises ServiceError if the address
    is in use."""
    console = Console(plan.settings)
    try:
        async with RestServer(plan.listeners, plan.tls, if_taken=_IF_TAKEN) as server:
            server.serve(console.app)
            console.start()
            first = server.addresses[0]
            host = first.host if first.host not in ("", "0.0.0.0", "::") else "localhost"
            ready(f"{first.protocol}://{f'[{host}]' if ':' in host else host}:{first.port}")
            await stopping.wait()
            await console.close()
    finally:
        await console.close()
