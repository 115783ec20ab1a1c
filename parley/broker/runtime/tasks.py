"""The only place where tasks are created.

A task that is not awaited can fail unnoticed, and a task that is not stopped outlives its broker. A ``TaskSet`` holds
all tasks of its owner. It logs failures with their traceback, and ``close`` cancels the remaining tasks and waits for
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from parley.storage.resource_exhaustion import note_lost_work

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TaskSet:
    """The running tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in start order, which is also the order of cancellation
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, T], *, name: str, expected: tuple[type[Exception], ...] = ()
    ) -> asyncio.Task[T]:
        """Run ``work`` in the background. A failure is logged under ``name``, even if the caller awaits the task.

        Failures of the ``expected`` types are left to the caller. After ``close``, ``work`` does not start, and the
        returned task is already cancelled.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        if self._closed:
            task.cancel()
        self._tasks[task] = None
        task.add_done_callback(partial(self._done, expected))
        return task

    def _done(self, expected: tuple[type[Exception], ...], task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, expected):
            if note_lost_work(error):
                _log.error(
                    "a task ended for lack of memory or file descriptors",
                    extra={"task": task.get_name(), "reason": repr(error)},
                )
            else:
                _log.error("task failed", exc_info=error, extra={"task": task.get_name()})

    async def close(self) -> None:
        """Cancel every task and wait until each has ended. Idempotent."""
        self._closed = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def race(*works: Coroutine[Any, Any, object]) -> None:
    """Run all coroutines concurrently until the first one ends, then cancel the others and wait for them. Raises the
    error of the first one.

    Use it for coroutines that cannot continue without each other.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
