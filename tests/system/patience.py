"""Requests that a test repeats while a server is not ready. They fail after a time, and name what they waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from parley.protocol.errors import KafkaError

T = TypeVar("T")

WAIT_S = 120
"""How long a test repeats a request. The limit ends tests that hang, and says nothing of a server's speed."""
POLL_S = 0.01
"""The interval at which a request is repeated. Constant polling would take the CPU that the server needs."""


async def until(
    is_final: Callable[[T], bool], ask: Callable[[], Awaitable[T]], *, who: str, wait_s: float = WAIT_S
) -> T:
    """Repeat a request until its response is final, and return that. ``who`` names the seed and the request.

    Raises ``AssertionError`` with ``who`` and the last response if that takes ``wait_s`` seconds, or if there is no
    response.
    """
    response: T | None = None
    try:
        async with asyncio.timeout(wait_s):
            while not is_final(response := await ask()):  # noqa: ASYNC110  a server sets no event
                await asyncio.sleep(POLL_S)
    except (TimeoutError, KafkaError) as error:
        raise AssertionError(f"{who}: no final response within {wait_s} s. The last one: {response}") from error
    assert response is not None
    return response
