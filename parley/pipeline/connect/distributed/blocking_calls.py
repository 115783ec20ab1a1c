"""Calls that block, from the loop: each in a thread of its own, that does not keep the process from ending.

A pool would do for calls that come back. A connector's code may not: then it must cost its own thread only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["in_thread"]

T = TypeVar("T")


async def in_thread(what: Callable[..., T], *arguments: object) -> T:
    """What the call answers, or raises. Cancelled, it goes on without being waited for."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(tell_it: Callable[[Any], None], value: object) -> None:
        if not answer.done():
            tell_it(value)

    def run() -> None:
        try:
            told = (answer.set_result, what(*arguments))
        except BaseException as error:  # it is raised where the call is waited for
            told = (answer.set_exception, error)  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, *told)

    threading.Thread(target=run, name=f"connect-{getattr(what, '__name__', 'call')}", daemon=True).start()
    return await answer
