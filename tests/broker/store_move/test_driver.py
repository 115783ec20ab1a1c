"""The states of the driver of store moves: an illegal step raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.runtime.states import IllegalStep
from parley.broker.store_move.driver import DriverEvent, DriverState, StoreMoveDriver
from parley.consensus.errors import Unavailable
from parley.consensus.memory import MemoryBackend
from parley.consensus.registry import BackendFactory
from parley.protocol.errors import KafkaError


async def test_a_driver_moves_nothing_outside_a_term() -> None:
    nothing: Any = None
    driver = StoreMoveDriver(nothing, nothing, Random(1))
    driver._on(DriverEvent.TERM_BEGAN)
    driver._on(DriverEvent.MOVE_REQUESTED)
    driver._on(DriverEvent.MOVE_BEGAN)
    driver._on(DriverEvent.TERM_ENDED)
    with pytest.raises(IllegalStep, match="MOVE_ENDED is not legal in the state NOT_CONTROLLER"):
        driver._on(DriverEvent.MOVE_ENDED)


@asynccontextmanager
async def in_office(backend_at: BackendFactory) -> AsyncIterator[StoreMoveDriver]:
    """A driver whose broker is the controller of a cluster without members."""

    async def members() -> list[str]:
        return []

    backend = MemoryBackend()
    await backend.open()
    participant: Any = SimpleNamespace(store=SimpleNamespace(backend=backend))
    driver = StoreMoveDriver(participant, backend_at, Random(1))
    term = asyncio.ensure_future(driver.run(await backend.open_session(60_000), members))
    while driver._state is not DriverState.IDLE:  # noqa: ASYNC110
        await asyncio.sleep(0)
    yield driver
    term.cancel()
    await asyncio.wait({term})
    await backend.close()


async def test_a_failed_move_is_reported_when_another_may_begin() -> None:
    """An operator who reads that a move has failed may request the next one at once."""
    closing, may_close = asyncio.Event(), asyncio.Event()

    class Target:
        async def open(self) -> None:
            raise Unavailable("refused")

        async def close(self) -> None:
            closing.set()
            await may_close.wait()

    async def backend_at(url: str) -> Any:
        return Target()

    async with in_office(backend_at) as driver:
        await driver.start("memory://other")
        await closing.wait()
        assert (await driver.progress()).state == "under way"
        may_close.set()
        while (await driver.progress()).state == "under way":  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await driver.progress()).state == "failed"
        assert (await driver.progress()).detail == "refused"
        await driver.start("memory://other")


async def test_a_defect_is_the_reason_of_a_failed_move(caplog: pytest.LogCaptureFixture) -> None:
    class Target:
        async def open(self) -> None:
            raise RuntimeError("a defect")

        async def close(self) -> None:
            pass

    async def backend_at(url: str) -> Any:
        return Target()

    async with in_office(backend_at) as driver:
        await driver.start("memory://other")
        while (await driver.progress()).state == "under way":  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await driver.progress()).detail == "RuntimeError('a defect')"
    (warning,) = [each for each in caplog.records if each.message == "the cluster has not moved to another store"]
    assert vars(warning)["reason"] == "RuntimeError('a defect')"


async def test_a_move_is_aborted_before_it_begins() -> None:
    async def backend_at(url: str) -> Any:
        return None

    async with in_office(backend_at) as driver:
        move = await driver.start("memory://other")
        driver.abort()
        progress = await driver.progress()
        assert (progress.move, progress.state, progress.detail) == (move, "failed", "abandoned")
        with pytest.raises(KafkaError, match="No move is under way"):
            driver.abort()
        await driver.start("memory://other")
