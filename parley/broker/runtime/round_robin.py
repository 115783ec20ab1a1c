"""A queue in which clients take turns: the next element is the oldest one of the client that has waited longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Elements of several clients. With a single queue, a client with many elements would keep the others waiting."""

    def __init__(self) -> None:
        self._by_client: dict[Hashable, deque[T]] = {}  # the client whose turn is next is first
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, client: Hashable, element: T) -> None:
        """Add an element to those of a client."""
        elements = self._by_client.get(client)
        if elements is None:
            elements = self._by_client[client] = deque()
        elements.append(element)
        self._size += 1

    def pop(self) -> T:
        """Remove and return the next element. Raises StopIteration if there is none."""
        return self._take(next(iter(self._by_client)))

    def pop_allowed(self, is_allowed: Callable[[Hashable], bool]) -> tuple[Hashable, T] | None:
        """Remove the next element that belongs to a client for which ``is_allowed`` returns True. Returns the client
        and the element; None if there is no such element."""
        client = next(filter(is_allowed, self._by_client), None)
        return None if client is None else (client, self._take(client))

    def _take(self, client: Hashable) -> T:
        elements = self._by_client.pop(client)
        element = elements.popleft()
        if elements:
            self._by_client[client] = elements  # its next turn comes after those of the others
        self._size -= 1
        return element
