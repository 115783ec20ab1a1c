"""Three ZooKeeper servers of which one fails: the service continues, and no confirmed write is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from parley.consensus.backend import Removed, Snapshot
from parley.consensus.errors import MaybeApplied, Unavailable
from parley.consensus.recipes.listeners import View
from parley.consensus.session import SessionState
from parley.consensus.zookeeper import ZookeeperBackend
from tests.support.stores.zookeeper import ZookeeperServers, zookeeper_servers

pytestmark = [pytest.mark.system, pytest.mark.slow]


@pytest.fixture(scope="module")
def servers() -> Iterator[ZookeeperServers]:
    with zookeeper_servers(3) as servers:
        yield servers


@pytest.fixture(params=["killed", "frozen"])
def lose_leader(request: pytest.FixtureRequest, servers: ZookeeperServers) -> Iterator[Callable[[], None]]:
    """Stop the leader. It is started again after the test."""
    lost: list[int] = []

    def lose() -> None:
        lost.append(servers.leader())
        if request.param == "killed":
            servers.kill(lost[0])
        else:
            servers.pause(lost[0])

    yield lose
    for number in lost:
        if request.param == "killed":
            servers.start(number)
        else:
            servers.resume(number)


async def test_the_ensemble_survives_a_lost_leader(servers: ZookeeperServers, lose_leader: Callable[[], None]) -> None:
    url = f"{servers.url}/{lose_leader.__name__}-{id(lose_leader)}"
    async with ZookeeperBackend.from_url(url) as one, ZookeeperBackend.from_url(url) as two:
        session = await one.open_session(45_000)
        await one.put("bound", b"", session=session)
        answered: list[str] = []
        stop = asyncio.Event()

        async def write() -> None:
            n = 0
            while not stop.is_set():
                n += 1
                try:
                    await one.put(f"w/{n:05}", b"")
                except (Unavailable, MaybeApplied):
                    continue
                answered.append(f"w/{n:05}")

        writing = asyncio.ensure_future(write())
        async with two.watch("w/") as watch:
            view = View()
            await _until(lambda: len(answered) > 50)
            await asyncio.to_thread(lose_leader)
            before = len(answered)
            await _until(lambda: len(answered) > before + 50)
            stop.set()
            await writing
            while not set(answered) <= view.entries.keys():
                view.apply(await asyncio.wait_for(anext(watch), 60))
        found = [entry.key for entry in (await two.list("w/", limit=1000)).entries]
        assert set(answered) <= set(found)
        assert await session.wait_for(SessionState.CONNECTED) is SessionState.CONNECTED
        async with two.watch("bound") as watch:
            assert isinstance(await anext(watch), Snapshot)
            with suppress(Unavailable):  # servers that stop and start may break the connection at this moment
                await session.close()
            assert await asyncio.wait_for(anext(watch), 60) == Removed("bound")  # otherwise by its timeout


async def _until(done: Callable[[], bool]) -> None:
    async def poll() -> None:
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    await asyncio.wait_for(poll(), 90)
