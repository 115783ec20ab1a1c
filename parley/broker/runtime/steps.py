"""Work in steps: a small amount is done immediately, a large one with turns of the event loop between the steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from parley.broker.runtime.turns import next_turn

T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]
"""Work that pauses after each step, and finally returns its result."""


def each_of(items: Iterable[T], size: int, act: Callable[[T], object]) -> Steps[None]:
    """Call ``act`` with each of the items, ``size`` items per step."""
    for number, item in enumerate(items, 1):
        act(item)
        if not number % size:
            yield


def at_once(steps: Steps[R]) -> R:
    """Do all steps now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


async def in_turns(steps: Steps[R]) -> R:
    """Do the first step now, and each further step in a separate turn of the event loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await next_turn()
