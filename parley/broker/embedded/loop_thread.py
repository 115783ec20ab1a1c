"""An event loop in a separate thread, for programs without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


class LoopThread:
    """Runs an event loop in a thread: first ``begin``, then the work given to ``do``, finally ``end``."""

    def __init__(self, name: str, begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]]) -> None:
        self._begin = begin
        self._end = end
        self._started: Future[None] = Future()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._ended: Future[None] = Future()

    def start(self) -> None:
        """Start the thread, and wait until ``begin`` is done. Raises the errors of ``begin``."""
        self._thread.start()
        self._started.result()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop, and return its result or raise its error. Blocks; do not call it from the loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        """Run ``end``, and wait for the thread to end. Raises the errors of ``end``."""
        if self._thread.is_alive():
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        self._ended.result()

    def _run(self) -> None:
        try:
            uvloop.run(self._live())
        except BaseException as error:
            (self._ended if self._started.done() else self._started).set_exception(error)
        else:
            self._ended.set_result(None)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._begin()
        try:
            self._started.set_result(None)
            await self._stopping.wait()
        finally:
            await self._end()
