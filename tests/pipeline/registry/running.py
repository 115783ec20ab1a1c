"""Run a registry in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from parley.pipeline.registry.config import RegistryConfig
from parley.pipeline.registry.serving import run_registry


@contextmanager
def running(bootstrap: str, topic: str = "_schemas", **settings: str) -> Iterator[str]:
    """Yield the URL of a registry; In the names of ``settings``, ``_`` stands for ``.``."""
    given = {key.replace("_", "."): value for key, value in settings.items()}
    config = RegistryConfig.parse(
        {
            "kafkastore.bootstrap.servers": bootstrap,
            "kafkastore.topic": topic,
            "listeners": "http://127.0.0.1:0",
            **given,
        }
    )
    ready: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    def run() -> None:
        try:
            loop.run_until_complete(run_registry(config, stopping, ready.set_result))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ready.result(60)
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()
