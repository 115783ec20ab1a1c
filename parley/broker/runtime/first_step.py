"""Runs a coroutine without a task until it first waits.

A task starts in a later turn of the event loop, and its result arrives in yet another turn. Under load a turn takes
milliseconds, so a request that does not need to wait is handled immediately. Only the rest of a coroutine that waits
needs a task.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def at_once(work: Coroutine[Any, Any, T]) -> T | Coroutine[Any, Any, T]:
    """Run ``work`` until it ends or waits. Returns its result, or a coroutine that continues it and must be awaited in
    a task.

    Raises the errors that ``work`` raises before it waits. Until then ``work`` runs outside a task, so it must not use
    ``asyncio.timeout`` or ``asyncio.current_task``.
    """
    try:
        awaited = work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    return _Rest(work, awaited)


class _Rest(Coroutine[Any, Any, T]):
    """The rest of a coroutine that has already started. It first waits for ``awaited``."""

    __slots__ = ("_awaited", "_has_begun", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._has_begun = False

    def send(self, value: Any) -> Any:
        if self._has_begun:
            return self._work.send(value)
        self._has_begun = True
        return self._awaited

    def throw(self, *error: Any) -> Any:
        self._has_begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> _Rest[T]:
        return self

    def __iter__(self) -> _Rest[T]:
        return self

    def __next__(self) -> Any:
        return self.send(None)
