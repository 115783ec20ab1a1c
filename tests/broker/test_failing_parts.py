"""What happens to a broker when one of its parts fails under it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from parley import Broker
from parley.broker.metrics.health import State
from parley.broker.runtime.purgatory import Delayed, Purgatory
from parley.broker.startup.registration import COORDINATION


async def test_a_broker_that_lost_its_store_says_so_and_asks_to_be_stopped(tmp_path: Path) -> None:
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


async def test_one_failed_answer_keeps_nobody_else_waiting() -> None:
    class Failing(Delayed[str]):
        def on_change(self, key: object, amount: int) -> bool:
            raise RuntimeError("planted")

        def expired(self) -> None:
            self.complete("late")

    class Fine(Failing):
        def on_change(self, key: object, amount: int) -> bool:
            self.complete("fine")
            return True

    purgatory = Purgatory()
    failing, fine = Failing(), Fine()
    for delayed in (failing, fine):
        purgatory.watch(delayed, ["k"], 60)
    purgatory.notify("k")
    assert await fine == "fine"
    assert isinstance(failing.exception(), RuntimeError)
    assert purgatory.waiting == 0
