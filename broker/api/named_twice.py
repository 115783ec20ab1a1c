"""Requests that name the same thing more than once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def named_twice(keys: Iterable[K]) -> set[K]:
    """What is named more than once: it is refused, since nobody can say which naming was meant."""
    return {key for key, count in Counter(keys).items() if count > 1}
