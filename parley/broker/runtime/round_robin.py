"""A queue in which clients take turns: the next element is the oldest one of the client that has waited longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
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
        """Add an element of a client."""
        elements = self._by_client.get(client)
        if elements is None:
            elements = self._by_client[client] = deque()
        elements.append(element)
        self._size += 1

    def pop(self) -> T:
        """Remove and return the next element. Raises StopIteration if there is none."""
        client, elements = next(iter(self._by_client.items()))
        del self._by_client[client]
        element = elements.popleft()
        if elements:
            self._by_client[client] = elements
        self._size -= 1
        return element
