"""Clients of one store, the embedded and the one in memory alike."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from consensus.backend import Backend
from consensus.registry import open_backend

Connect = Callable[[], Awaitable[Backend]]

_names = itertools.count()


@pytest.fixture(params=["memory", "local"])
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Each call opens one more client of the same store; all are closed at the end."""
    url = f"memory://test-{next(_names)}" if request.param == "memory" else f"local://{tmp_path}/coordination"
    clients: list[Backend] = []

    async def open_one() -> Backend:
        client = open_backend(url)
        await client.open()
        clients.append(client)
        return client

    yield open_one
    for client in clients:
        await client.close()


@pytest.fixture
async def backend(connect: Connect) -> Backend:
    """One client."""
    return await connect()
