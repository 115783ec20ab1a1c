"""Tasks are referenced, their failures are logged, and none outlives its owner."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.runtime.tasks import TaskSet


async def test_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("boom")

    tasks = TaskSet()
    task = tasks.start(fails(), name="the work")
    await asyncio.wait([task])
    assert "boom" in caplog.text
    assert caplog.records[0].task == "the work"  # type: ignore[attr-defined]
    assert len(tasks) == 0


async def test_an_expected_failure_is_left_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ValueError("boom")

    task = TaskSet().start(fails(), name="the work", expected=(ValueError,))
    await asyncio.wait([task])
    assert not caplog.records
    assert isinstance(task.exception(), ValueError)


async def test_close_cancels_and_waits() -> None:
    ended = []

    async def works() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    tasks = TaskSet()
    tasks.start(works(), name="a")
    tasks.start(works(), name="b")
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == [True, True]
    late = tasks.start(works(), name="late")
    with pytest.raises(asyncio.CancelledError):
        await late
    assert ended == [True, True]
    await tasks.close()
