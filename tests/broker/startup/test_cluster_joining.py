"""A broker whose membership in the cluster ends permanently, or before it has begun."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from parley import Broker
from parley.broker.metrics.health import State
from parley.broker.startup.cluster_joining import COORDINATION, join_cluster


async def test_a_broker_whose_store_was_deleted_reports_it_and_asks_to_be_stopped(tmp_path: Path) -> None:
    async with Broker(data_dir=tmp_path) as broker:
        fine, _ = broker.server.health.report()
        assert fine
        shutil.rmtree(tmp_path / "coordination")
        await asyncio.wait_for(broker.server.failed.wait(), 30)
        fine, report = broker.server.health.report()
        assert not fine
        assert broker.server.health.problem(COORDINATION).startswith("no longer a member of the cluster: ")
        assert COORDINATION in report["problems"]
        assert broker.server.health.state is State.READY


async def test_a_start_that_is_cancelled_leaves_no_task_behind() -> None:
    waiting = asyncio.Event()

    async def forever() -> None:
        waiting.set()
        await asyncio.Event().wait()

    parts: Any = MagicMock()
    parts.identity.broker_id = 0
    parts.lifecycle.store.get = AsyncMock(return_value=None)
    parts.lifecycle.run = parts.lifecycle.until_registered = forever
    parts.peers.close = AsyncMock()
    before = asyncio.all_tasks()
    async with AsyncExitStack() as undo:
        environment: Any = MagicMock(undo=undo)
        life = asyncio.ensure_future(forever())
        environment.membership.start = lambda run, **_: (run.close(), life)[1]
        environment.membership.close = environment.tasks.close = AsyncMock()
        starting = asyncio.ensure_future(join_cluster(environment, parts))
        await waiting.wait()
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        life.cancel()
    for _ in range(3):  # a cancelled task ends in the next turn of the loop
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
