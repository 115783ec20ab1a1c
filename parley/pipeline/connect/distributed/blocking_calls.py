"""Runs blocking calls for the event loop, each in a separate daemon thread.

A pool would not suffice: a connector's code may never return, and must then block only its own thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(what: Callable[..., T], *arguments: object) -> T:
    """Run the call in a thread. Returns its result, or raises its exception.

    If the caller is cancelled, the call continues in its thread, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(settle: Callable[[Any], None], value: object) -> None:
        if not result.done():
            settle(value)

    def run() -> None:
        try:
            outcome = (result.set_result, what(*arguments))
        except BaseException as error:  # the waiting caller raises it
            outcome = (result.set_exception, error)  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(deliver, *outcome)

    threading.Thread(target=run, name=f"connect-{getattr(what, '__name__', 'call')}", daemon=True).start()
    return await result
