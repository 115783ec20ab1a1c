"""Base class of objects that run for the duration of a ``with`` or ``async with`` block, and can be entered again.

In an ``async with`` block the object runs in the current event loop, in a plain ``with`` block in a separate thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from parley.broker.embedded.loop_thread import LoopThread


class ReentrantBlock(ABC):
    """An object that runs while its block is active. Entering the block again while it is active raises RuntimeError.

    Subclasses must call ``__init__``.
    """

    _thread_name: ClassVar[str]

    def __init__(self) -> None:
        self._thread: LoopThread | None = None
        self._entered = False

    @abstractmethod
    async def _start(self) -> None:
        """Start the object. If this fails, the implementation must undo what it has done before it raises."""

    @abstractmethod
    async def _end(self) -> None:
        """Stop everything that ``_start`` has started."""

    async def __aenter__(self) -> Self:
        self._claim()
        try:
            await self._start()
        except BaseException:
            self._entered = False
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._end()
        finally:
            self._entered = False

    def __enter__(self) -> Self:
        self._claim()
        self._thread = LoopThread(self._thread_name, self._start, self._end)
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            self._entered = False
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        try:
            self._thread.stop()
        finally:
            self._thread = None
            self._entered = False

    def _claim(self) -> None:
        if self._entered:
            name = type(self).__name__
            raise RuntimeError(f"this {name} is already running: create another {name}() to run a second one")
        self._entered = True
