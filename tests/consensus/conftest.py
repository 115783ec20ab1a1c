"""Clients of one store: the embedded store, the memory store and, marked ``system``, each real server.

Of the real servers, ``make test`` uses only etcd, except for the conformance kit, which it runs on all of them; ``make
soak`` uses the others.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from parley.consensus.backend import Backend
from parley.consensus.registry import create_backend
from tests.support.stores.running import STORES, below

Connect = Callable[[], Awaitable[Backend]]

_REAL = [
    pytest.param(scheme, marks=[pytest.mark.system] if scheme == "etcd" else [pytest.mark.system, pytest.mark.soak])
    for scheme in STORES
]


@pytest.fixture(scope="session")
def real_store() -> Iterator[Callable[[str], str]]:
    """Yield the address of a real store by its scheme. Each server is started when it is first used, and stopped at the
    end of the test run."""
    with ExitStack() as running:
        yield functools.cache(lambda scheme: running.enter_context(STORES[scheme]()))


@pytest.fixture(params=["memory", "local", *_REAL])
async def connect(
    request: pytest.FixtureRequest, tmp_path: Path, real_store: Callable[[str], str]
) -> AsyncIterator[Connect]:
    """Yield a function that opens one more client of the same store. All clients are closed at the end."""
    name = f"test-{secrets.token_hex(8)}"
    match request.param:
        case "memory":
            url = f"memory://{name}"
        case "local":
            url = f"local://{tmp_path}/coordination"
        case scheme:
            url = below(real_store(scheme), name)
    clients: list[Backend] = []

    async def open_one() -> Backend:
        client = create_backend(url)
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
