"""Slow compatibility checks do not delay registrations."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httpx
import pytest

from parley.pipeline.registry import decisions
from parley.pipeline.registry.api import RegistryApi
from parley.pipeline.registry.compatibility import Level
from parley.pipeline.registry.decisions import Change
from parley.pipeline.registry.state import State
from parley.pipeline.registry.store import Store

SCHEMA = {"schemaType": "JSON", "schema": json.dumps({"type": "object"})}


class InMemory:
    """A store without a topic."""

    state = State()

    async def change(self, decide: Callable[[State], Awaitable[Change]]) -> Any:
        return (await decide(self.state)).reply


async def test_registrations_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, running, most = threading.Event(), threading.Event(), 0, 0
    plain = decisions.check

    def check(*given: Any) -> list[str]:
        nonlocal running, most
        if given[3] is Level.FULL:  # the level of the checks
            running += 1
            most = max(most, running)
            begun.set()
            release.wait(60)
            running -= 1
        return plain(*given)

    monkeypatch.setattr(decisions, "check", check)
    store = cast(Store, InMemory())
    asked, api = RegistryApi(store, Level.FULL), RegistryApi(store, Level.BACKWARD)
    async with (
        httpx.AsyncClient(transport=httpx.ASGITransport(asked), base_url="http://asked") as asking,
        httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api") as client,
    ):
        questions = [
            asyncio.create_task(asking.post("/compatibility/subjects/s/versions", json=SCHEMA)) for _ in range(40)
        ]
        try:
            async with asyncio.timeout(20):
                await asyncio.to_thread(begun.wait, 20)
                assert (await client.post("/subjects/s/versions", json=SCHEMA)).status_code == 200
        finally:
            release.set()
        statuses = Counter(one.status_code for one in await asyncio.gather(*questions))
        assert statuses == {200: 32, 503: 8}  # requests beyond the limit are rejected
    assert most <= 2
