"""Runs blocking work in the threads of an executor, and waits for its end even if the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

PROGRESS_SECONDS = 10.0

T = TypeVar("T")


class IoThreads:
    """The threads of ``executor``, or of the running loop's default executor if it is None."""

    def __init__(self, executor: Executor | None = None) -> None:
        self._executor = executor

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work(*args)`` in a thread, and return its result or raise its exception. A cancelled caller gets
        ``CancelledError`` only after the work has ended."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *args))
        await _ended([future])
        return future.result()

    async def run_all(self, work: Sequence[Callable[[], None]], report: Callable[[], None] = lambda: None) -> None:
        """Run every function in ``work`` to its end, then raise the exception of the first one that failed, if any.

        Calls ``report`` every ``PROGRESS_SECONDS`` meanwhile. A cancelled caller gets ``CancelledError`` only after all
        the work has ended.
        """
        loop = asyncio.get_running_loop()
        futures = [loop.run_in_executor(self._executor, each) for each in work]
        await _ended(futures, report)
        for future in futures:
            future.result()


async def _ended(futures: Sequence[asyncio.Future[Any]], report: Callable[[], None] = lambda: None) -> None:
    cancelled = None
    pending = set(futures)
    while pending:
        try:
            _, pending = await asyncio.wait(pending, timeout=PROGRESS_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
        if pending:
            report()
    if cancelled is not None:
        raise cancelled
