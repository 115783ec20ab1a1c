"""Resources named in a request: handle repetitions, and serve many resources in slices.

A name costs a client a few bytes, but the response about it may have thousands. So a request that reads gets one
result for a resource that it names several times, as in Kafka; ShareGroupDescribe, too, for which Kafka has a result
each. A request that changes something is rejected for such a resource, since it is unclear which entry was meant. A
response about many resources is built in slices; between them the event loop serves other requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from parley.broker.runtime.turns import next_turn
from parley.protocol.errors import ErrorCode, KafkaError

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

SLICE = 200
"""Resources described before the event loop serves other requests, which takes one or two milliseconds."""


def more_than_once(what: str) -> KafkaError:
    """The error for a resource that a request names more than once; ``what`` is its kind.

    A new exception each time: one that is raised repeatedly keeps the frames of every raise.
    """
    return KafkaError(ErrorCode.INVALID_REQUEST, f"The request names this {what} more than once.")


def named_twice(keys: Iterable[K]) -> set[K]:
    """The keys that occur more than once."""
    return {key for key, count in Counter(keys).items() if count > 1}


def once(named: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], N]) -> dict[K, dict[N, T]]:
    """Group the named things (partitions) by heading (topic), each once, in the order of their first occurrence.

    Of several things with the same key the last one counts. Repeated headings are merged.
    """
    found: dict[K, dict[N, T]] = {}
    for heading, things in named:
        below = found.setdefault(heading, {})
        for thing in things:
            below[key(thing)] = thing
    return found


async def in_slices(answer: Callable[[T], R], asked: Iterable[T], size: int = SLICE) -> list[R]:
    """Return ``answer`` of each item, and let the event loop serve other requests after every ``size`` items.

    The data must not change meanwhile: use an image of the metadata, not a live table.
    """
    answers: list[R] = []
    for number, each in enumerate(asked, 1):
        answers.append(answer(each))
        if not number % size:
            await next_turn()
    return answers
