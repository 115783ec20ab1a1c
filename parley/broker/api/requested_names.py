"""What a request names: once each, however often it is named, and a slice at a time where it is much.

A name costs a client a few bytes, and what it stands for may be thousands. So whatever reads collapses repetitions, as
Kafka's own tables of topics and partitions do; whatever changes something refuses them, since nobody can say which
naming was meant. And an answer about many things is made in slices between which the event loop serves others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

SLICE = 200
"""Things of which an answer tells before the event loop serves others: one or two milliseconds."""


def named_twice(keys: Iterable[K]) -> set[K]:
    """What is named more than once, for requests that are to refuse it."""
    return {key for key, count in Counter(keys).items() if count > 1}


def once(named: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], N]) -> dict[K, dict[N, T]]:
    """The things named under each heading (partitions of topics), in the order of their first naming.

    Of several namings the last one counts. Headings named several times are one.
    """
    found: dict[K, dict[N, T]] = {}
    for heading, things in named:
        below = found.setdefault(heading, {})
        for thing in things:
            below[key(thing)] = thing
    return found


async def in_slices(answer: Callable[[T], R], asked: Iterable[T], size: int = SLICE) -> list[R]:
    """``answer`` of each, letting the loop serve others after every ``size``.

    What is asked of must stay as it is meanwhile: an image of the metadata, not a live table.
    """
    answers: list[R] = []
    for number, each in enumerate(asked, 1):
        answers.append(answer(each))
        if not number % size:
            await asyncio.sleep(0)
    return answers
