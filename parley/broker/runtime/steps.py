"""Work in steps: a small amount of work is done immediately, and a large amount in several turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

from parley.broker.runtime.turns import next_turn

T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]
"""Work that yields after each step, and finally returns its result."""


def each_of(items: Iterable[T], size: int, act: Callable[[T], object]) -> Steps[None]:
    """Call ``act`` with each of the items, ``size`` items per step."""
    for number, item in enumerate(items, 1):
        act(item)
        if not number % size:
            yield


def run_now(steps: Steps[R]) -> R:
    """Do all steps now, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def in_turns(steps: Steps[R], per_turn: int = 1) -> R:
    """Do ``per_turn`` steps now, and as many in each further turn of the event loop. Returns the result."""
    while True:
        try:
            for _ in range(per_turn):
                next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await next_turn()


def now_or_in_turns(steps: Steps[Any], per_turn: int = 1) -> Any:
    """Do ``per_turn`` steps now. Returns the result, or a coroutine that does the rest in turns and returns it.

    If the result is itself a coroutine, the returned coroutine awaits it.
    """
    try:
        for _ in range(per_turn):
            next(steps)
    except StopIteration as end:
        return end.value
    return _rest_in_turns(steps, per_turn)


async def _rest_in_turns(steps: Steps[Any], per_turn: int) -> Any:
    await next_turn()
    result = await in_turns(steps, per_turn)
    return await result if asyncio.iscoroutine(result) else result
