"""A broker whose membership in the cluster ends for good."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from parley import Broker
from parley.broker.metrics.health import State
from parley.broker.startup.registration import COORDINATION


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
