"""Run a server of the pipeline in the foreground until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from parley.tools.cli.invocation import CommandError


def run_until_stopped(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` with an event that SIGINT and SIGTERM set. Raises ``CommandError`` if ``work`` cannot start or
    continue."""
    from parley.pipeline.connect.herder_results import HerderError
    from parley.pipeline.service.errors import ServiceError
    from parley.protocol.errors import KafkaError

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for library in ("httpx",):  # these log a line for each request between workers
        logging.getLogger(library).setLevel(logging.WARNING)

    async def until_stopped() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        await work(stopping)

    try:
        asyncio.run(until_stopped())
    except (ServiceError, HerderError) as error:
        raise CommandError(str(error)) from error
    except KafkaError as error:
        raise CommandError(f"The cluster rejected a request: {error.code.name}: {error.message}") from error
