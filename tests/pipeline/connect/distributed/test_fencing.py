"""Which earlier tasks are fenced before the tasks of a commit may write in transactions (KIP-618)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.distributed.fencing import Fencing
from parley.pipeline.connect.distributed.log import MemoryLog
from parley.pipeline.connect.herder_results import NotFound, Rebalancing
from parley.protocol.errors import ErrorCode, KafkaError

Tasks = list[Mapping[str, str]]


def tasks(count: int) -> Tasks:
    return [{"number": str(number)} for number in range(count)]


class Bench:
    """A leader with one connector; it records which tasks it fences."""

    def __init__(self) -> None:
        self.configs = ConfigStore(MemoryLog())
        self.fenced: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.meanwhile: Tasks | None = None
        self._loop = asyncio.get_running_loop()
        self.rounds = Fencing(self.configs, asyncio.Lock(), self._fence)

    async def start(self) -> Bench:
        await self.configs.start(lambda _: None)
        await self.configs.put_connector("src", {"name": "src"}, None)
        return self

    def _fence(self, name: str, config: Mapping[str, str], count: int) -> None:
        assert config == {"name": "src"}
        self.fenced.append((name, count))
        if self.error is not None:
            raise self.error
        if self.meanwhile is not None:
            work = self.configs.put_tasks(name, self.meanwhile)
            asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def commit(self, count: int) -> None:
        await self.configs.put_tasks("src", tasks(count))

    async def round(self) -> list[tuple[str, int]]:
        """Return the tasks that a round fences."""
        self.fenced.clear()
        await self.rounds.round("src")
        assert "src" not in self.configs.state.unfenced
        return self.fenced


async def test_all_tasks_before_a_commit_are_fenced_once() -> None:
    bench = await Bench().start()
    await bench.commit(3)
    assert await bench.round() == []  # there were none before
    assert bench.configs.state.fenced_counts == {"src": 3}
    assert await bench.round() == []
    await bench.commit(2)
    assert await bench.round() == [("src", 3)]
    assert await bench.round() == []
    await bench.commit(0)  # it is stopped, and its offsets are about to be changed
    assert await bench.round() == [("src", 2)]
    assert bench.configs.state.fenced_counts == {"src": 0}


async def test_a_single_task_fences_the_single_one_before_it() -> None:
    bench = await Bench().start()
    await bench.commit(1)
    await bench.round()
    await bench.commit(1)
    assert await bench.round() == []
    await bench.commit(2)
    assert await bench.round() == [("src", 1)]


async def test_tasks_that_begin_together_wait_for_one_round() -> None:
    bench = await Bench().start()
    await bench.commit(4)
    await bench.round()
    await bench.commit(2)
    bench.fenced.clear()
    await asyncio.gather(*(bench.rounds.round("src") for _ in range(2)))
    assert bench.fenced == [("src", 4)]


async def test_a_commit_in_the_midst_of_a_round_wants_another_round() -> None:
    bench = await Bench().start()
    await bench.commit(2)
    await bench.round()
    await bench.commit(3)
    bench.meanwhile = tasks(4)
    with pytest.raises(Rebalancing, match="new task configurations were generated"):
        await bench.round()
    assert "src" in bench.configs.state.unfenced
    bench.meanwhile = None
    assert await bench.round() == [("src", 2)]
    assert bench.configs.state.fenced_counts == {"src": 4}


async def test_tasks_that_cannot_be_fenced_are_not_recorded_as_fenced() -> None:
    bench = await Bench().start()
    await bench.commit(2)
    await bench.round()
    await bench.commit(3)
    bench.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    with pytest.raises(KafkaError):
        await bench.round()
    bench.error = None
    assert await bench.round() == [("src", 2)]


async def test_a_connector_made_again_fences_the_tasks_of_the_one_that_was_deleted() -> None:
    bench = await Bench().start()
    await bench.commit(2)
    await bench.round()
    await bench.commit(3)
    await bench.configs.delete_connector("src")
    with pytest.raises(NotFound, match="src not found"):
        await bench.round()  # a task that does not know the new generation yet
    await bench.configs.put_connector("src", {"name": "src"}, None)
    await bench.commit(1)
    assert await bench.round() == [("src", 2)]
