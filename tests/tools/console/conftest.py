"""A console in the test's event loop, in front of a cluster in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from parley import Broker
from parley.tools.cli.store_client import store_address
from parley.tools.console.app import Console
from parley.tools.console.settings import ConsoleSettings


class Browser:
    """Sends what a browser would send: the cookie, and the token with every change."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.token = ""

    async def open(self) -> dict[str, Any]:
        """Load the session."""
        found: dict[str, Any] = (await self.client.get("/api/session")).json()
        self.token = found["csrf"]
        return found

    async def get(self, path: str, **query: Any) -> Any:
        """Return the response to a request, which must succeed."""
        answer = await self.client.get(f"/api/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def change(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response to a change, which must succeed."""
        answer = await self.try_change(method, path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def try_change(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a change."""
        return await self.client.request(method, f"/api/{path}", json=body, headers={"x-csrf-token": self.token})


@asynccontextmanager
async def browsing(settings: ConsoleSettings) -> AsyncIterator[Browser]:
    """Yield a browser of a new console."""
    console = Console(settings)
    transport = httpx.ASGITransport(console.app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8090") as client:
            browser = Browser(client)
            await browser.open()
            yield browser
    finally:
        await console.close()


@pytest.fixture(scope="session")
def stored_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """Yield a broker, and the address of its coordination store."""
    url = f"local://{tmp_path_factory.mktemp('store') / 'coordination'}"
    settings = {"coordination.url": url, "offsets.topic.num.partitions": "3", "log.retention.ms": "-1"}
    with Broker(settings) as running:
        yield running, url


@pytest.fixture
async def browser(stored_broker: tuple[Broker, str]) -> AsyncIterator[Browser]:
    """Yield a browser of a console for the broker."""
    broker, url = stored_broker
    settings = ConsoleSettings(broker.bootstrap_servers, store=store_address(url, None))
    async with browsing(settings) as found:
        yield found


def no_store(path: Path) -> str:
    """Return the address of a store that does not exist."""
    return f"local://{path / 'nothing'}"
