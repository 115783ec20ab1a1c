"""Functions for the resources that a request names: they find duplicates, and describe many resources in slices.

A name takes a few bytes in a request, but thousands in the response. If a read request repeats a name, the response
therefore contains only one result for it, as in Kafka. (For ShareGroupDescribe, Kafka repeats the result.) If a request
that makes changes repeats a name, it is rejected for this resource, because it is unclear which entry applies. A
response about many resources is built in slices, so that the event loop can serve other requests in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from parley.broker.runtime.steps import each_of, in_turns
from parley.protocol.errors import ErrorCode, KafkaError

K = TypeVar("K", bound=Hashable)
N = TypeVar("N", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")

SLICE = 200
"""The number of resources described before the event loop serves other requests. They take one or two milliseconds."""


def more_than_once(what: str) -> KafkaError:
    """Return the error for a resource that a request names more than once. ``what`` is the kind of resource.

    Returns a new exception each time, because an exception that is raised repeatedly keeps the frames of every raise.
    """
    return KafkaError(ErrorCode.INVALID_REQUEST, f"The request names this {what} more than once.")


def named_twice(keys: Iterable[K]) -> set[K]:
    """Return the keys that occur more than once."""
    return {key for key, count in Counter(keys).items() if count > 1}


def once(named: Iterable[tuple[K, Iterable[T]]], key: Callable[[T], N]) -> dict[K, dict[N, T]]:
    """Return the items of a request (such as partitions) by heading (such as their topic) and ``key(item)``, in order
    of first occurrence. ``named`` contains each heading with its items.

    If several items under a heading have the same key, the last one counts. Repeated headings are merged.
    """
    found: dict[K, dict[N, T]] = {}
    for heading, things in named:
        below = found.setdefault(heading, {})
        for thing in things:
            below[key(thing)] = thing
    return found


async def in_slices(describe: Callable[[T], R], requested: Iterable[T], size: int = SLICE) -> list[R]:
    """Return ``describe(item)`` for each item. The event loop serves other requests after every ``size`` items.

    The data must not change in the meantime: use an image of the metadata, not a live table.
    """
    results: list[R] = []
    await in_turns(each_of(requested, size, lambda each: results.append(describe(each))))
    return results
