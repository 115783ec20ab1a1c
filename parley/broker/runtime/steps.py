"""Work in steps: done at once if there is little of it, else with turns of the event loop between the steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

from parley.broker.runtime.turns import next_turn

T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = Generator[None, None, R]
"""Work that stops after each of its steps, and returns its result."""


def each_of(items: Iterable[T], size: int, act: Callable[[T], object]) -> Steps[None]:
    """Call ``act`` with each of the items: ``size`` of them in a step."""
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
    """Do the steps, each in a turn of the event loop of its own but the first."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        await next_turn()
