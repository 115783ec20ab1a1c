"""Measures how long a coroutine occupies the event loop: the duration of its steps, without the waits between them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class TimedSteps(Generic[T]):
    """An awaitable that wraps ``work``, and calls ``spent`` with the seconds that each step has taken."""

    __slots__ = ("_monotonic", "_spent", "_work")

    def __init__(self, work: Awaitable[T], monotonic: Callable[[], float], spent: Callable[[float], None]) -> None:
        self._work = work
        self._monotonic = monotonic
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, T]:
        steps: Any = self._work.__await__()
        resume = partial(steps.send, None)
        while True:
            began = self._monotonic()
            try:
                awaited = resume()
            except StopIteration as ended:
                result: T = ended.value
                return result
            finally:
                self._spent(self._monotonic() - began)
            try:
                resume = partial(steps.send, (yield awaited))
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                resume = partial(steps.throw, error)
