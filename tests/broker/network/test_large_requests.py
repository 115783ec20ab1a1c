"""Large requests of one client delay its own large requests, and no others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import pytest

from parley.broker.network import large_requests
from parley.broker.network.dispatch import ON_LOOP_ELEMENTS_MAX
from parley.broker.network.large_requests import PLACES, PLACES_OF_A_CLIENT, LargeRequests
from parley.broker.network.request_context import Disconnect, RequestContext
from parley.broker.runtime.places import Place
from parley.broker.security.principal import user
from parley.broker.security.session import ClientSession, anonymous
from parley.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tests.broker.network.harness import RawClient, eventually, serving


def session_of(name: str) -> ClientSession:
    return ClientSession(user(name), "10.0.0.1", "SASL_SSL", "PLAIN")


class Asking:
    """Requests that wait for a place, and those that have one."""

    def __init__(self) -> None:
        self.requests = LargeRequests()
        self.places: list[tuple[str, Place]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, names: Iterable[str], size_bytes: int = 1) -> None:
        """Let clients ask for places in this order."""
        for name in names:
            self.tasks.append(asyncio.create_task(self._hold(name, size_bytes)))
            await asyncio.sleep(0)

    async def _hold(self, name: str, size_bytes: int) -> None:
        session = anonymous(name, "PLAINTEXT") if name.startswith("10.") else session_of(name)
        self.places.append((name, await self.requests.begin(session, size_bytes)))

    @property
    def holders(self) -> list[str]:
        return [name for name, _ in self.places]

    async def end(self, index: int = 0) -> None:
        self.places.pop(index)[1].end()
        await asyncio.sleep(0)


async def test_a_client_has_some_of_the_places_and_clients_take_turns() -> None:
    asking = Asking()
    await asking.ask(["eve"] * 10)
    assert asking.holders == ["eve"] * PLACES_OF_A_CLIENT
    await asking.ask(["alice", "alice", "alice"])
    assert asking.holders == ["eve", "eve", "alice", "alice"]
    await asking.ask([f"user{n}" for n in range(PLACES - 4)])
    await asking.ask(["bob", "10.0.0.7", "10.0.0.7", "10.0.0.8"])
    assert len(asking.holders) == PLACES
    granted = []
    while asking.places:
        known = len(asking.places)
        await asking.end()
        granted += asking.holders[known - 1 :]
        assert max(Counter(asking.holders).values(), default=0) <= PLACES_OF_A_CLIENT
    assert Counter(granted) == {"eve": 8, "alice": 1, "bob": 1, "10.0.0.7": 2, "10.0.0.8": 1}
    assert {"bob", "10.0.0.7", "10.0.0.8"} <= set(granted[:5])
    assert all(task.done() for task in asking.tasks)


async def test_a_request_that_is_cancelled_takes_no_place() -> None:
    asking = Asking()
    await asking.ask(["eve"] * (PLACES_OF_A_CLIENT + 3))
    first, second, _ = asking.tasks[PLACES_OF_A_CLIENT:]
    first.cancel()
    await asyncio.sleep(0)
    asking.places.pop()[1].end()
    second.cancel()  # it has a place, and does not know it yet
    await asyncio.gather(*asking.tasks, return_exceptions=True)
    assert asking.holders == ["eve"] * PLACES_OF_A_CLIENT
    await asking.end()
    await asking.end()
    places = asking.requests._places
    assert not places._in_progress
    assert not places._waiting


async def test_a_request_that_is_cancelled_keeps_no_other_waiting() -> None:
    asking = Asking()
    await asking.ask(["eve"] * (PLACES_OF_A_CLIENT + 2))
    asking.tasks[PLACES_OF_A_CLIENT].cancel()  # it is the next one, and leaves later
    for _, place in asking.places:
        place.end()
    await asyncio.gather(*asking.tasks, return_exceptions=True)
    assert asking.holders == ["eve"] * (PLACES_OF_A_CLIENT + 1)


async def test_the_waiting_requests_of_a_client_take_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "WAITING_BYTES_MAX", 100)
    asking = Asking()
    await asking.ask(["eve"] * PLACES_OF_A_CLIENT)
    await asking.ask(["eve", "alice", "alice", "alice"], size_bytes=200)  # one may always wait
    with pytest.raises(Disconnect, match="too many large requests"):
        await asking.requests.begin(session_of("eve"), 1)
    await asking.end()
    assert asking.holders.count("eve") == PLACES_OF_A_CLIENT


async def test_large_requests_keep_no_other_request_from_beginning() -> None:
    """``queued.max.requests`` does not count them. They are decoded when they have a place."""
    release, decoded = asyncio.Event(), 0

    async def answer(context: RequestContext, request: MetadataRequest) -> MetadataResponse:
        nonlocal decoded
        if len(request.topics or ()) > 1:
            decoded += 1
            await release.wait()
        return MetadataResponse(brokers=[], topics=[])

    asked = [MetadataRequest.MetadataRequestTopic(name=f"t{each}") for each in range(ON_LOOP_ELEMENTS_MAX + 1)]
    async with serving({3: answer}, queued_requests=3) as listener:
        clients = [await RawClient.connect(listener) for _ in range(10)]
        for client in clients:
            await client.send(MetadataRequest(topics=asked), 1)
        await eventually(lambda: decoded == PLACES_OF_A_CLIENT)
        other = await RawClient.connect(listener)
        await other.ask(MetadataRequest(topics=asked[:1]), 1)
        assert decoded == PLACES_OF_A_CLIENT
        release.set()
        for client in clients:
            await client.answer(MetadataRequest, 1)
        assert decoded == len(clients)
        for client in (*clients, other):
            await client.close()
