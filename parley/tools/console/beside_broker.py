"""The process of the console that a broker starts (``console.listener``).

Standard input contains a line with the settings, as JSON (``parley.broker.startup.console_process``). The process ends
when standard input is closed. It writes a line of JSON to standard output: ``ready`` with the address, or ``failed``
with the reason.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from parley.consensus.registry import backend_factory, configured_url
from parley.pipeline.service.errors import ServiceError
from parley.tools.cli.common_options import client_properties
from parley.tools.cli.invocation import CommandError
from parley.tools.console.preparation import Wanted, prepared
from parley.tools.console.serving import run_console

_GRACE_S: Final = 4.0
"""The time, in seconds, that requests in progress may still take after the broker has ended."""


def main() -> None:
    """Run the console until standard input is closed. Exits with code 1 if it cannot run."""
    for ignored in (signal.SIGINT, signal.SIGTERM):  # this process ends after the broker
        signal.signal(ignored, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="console: %(levelname)s %(message)s", stream=sys.stderr)
    line = sys.stdin.readline()
    if not line:
        return
    try:
        asyncio.run(_serve(json.loads(line)))
    except (CommandError, ServiceError) as error:
        _tell("failed", str(error))
        sys.exit(1)


async def _serve(given: dict[str, Any]) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def follow() -> None:
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(stopping.set)
        threading.Event().wait(_GRACE_S)
        os._exit(0)

    threading.Thread(target=follow, name="standard input", daemon=True).start()
    await run_console(prepared(_wanted(given)), stopping, lambda url: _tell("ready", url))


def _wanted(given: Mapping[str, Any]) -> Wanted:
    file = Path(given["command_config"]) if given["command_config"] else None
    properties, broker = {**given["client"], **client_properties(file)}, given["broker"]
    url = configured_url(broker)
    return Wanted(
        bootstrap=given["bootstrap"],
        listen=given["listen"],
        properties=properties,
        broker_properties=broker,
        read_only=given["read_only"],
        host_names=given["host_names"],
        store=None if url.startswith("memory:") else (url, backend_factory(broker)),  # that store is in the broker
        schema_registry=given["schema_registry"] or None,
        connect_urls=given["connect_urls"],
        data_dir=Path(given["data_dir"]),
    )


def _tell(name: str, text: str) -> None:
    print(json.dumps({name: text}), flush=True)
