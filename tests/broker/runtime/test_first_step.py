"""Coroutines that begin without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from parley.broker.runtime.first_step import at_once


class Refused(Exception):
    """Raised by the work."""


class Work:
    """Waits for each of its futures, and returns their results."""

    def __init__(self, *waits: asyncio.Future[str] | None) -> None:
        self.waits = waits
        self.has_ended = False

    async def run(self) -> list[str]:
        results = []
        try:
            for wait in self.waits:
                try:
                    results.append("slept" if wait is None else await wait)
                except Refused as error:
                    results.append(str(error))
                if wait is None:
                    await asyncio.sleep(0)
        finally:
            self.has_ended = True
        return results


def future() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


def task(rest: list[str] | Coroutine[Any, Any, list[str]]) -> asyncio.Task[list[str]]:
    assert not isinstance(rest, list)
    return asyncio.get_running_loop().create_task(rest)


async def test_work_that_does_not_wait_ends_at_once() -> None:
    done = future()
    done.set_result("a")
    assert at_once(Work(done, done).run()) == ["a", "a"]


async def test_an_error_before_the_first_wait_is_raised() -> None:
    async def refuse() -> None:
        raise Refused

    with pytest.raises(Refused):
        at_once(refuse())


async def test_work_that_waits_goes_on_in_a_task() -> None:
    first, second = future(), future()
    work = Work(first, None, second)
    going_on = task(at_once(work.run()))
    await asyncio.sleep(0)
    first.set_result("a")
    for _ in range(5):
        await asyncio.sleep(0)
    assert not going_on.done()
    second.set_exception(Refused("b"))
    assert await going_on == ["a", "slept", "b"]


async def test_a_result_may_arrive_before_the_task_of_the_work_begins() -> None:
    wait = future()
    going_on = task(at_once(Work(wait).run()))
    wait.set_result("a")
    assert await going_on == ["a"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_work_is_cancelled_with_its_task(has_begun: bool) -> None:
    wait = future()
    work = Work(wait)
    going_on = task(at_once(work.run()))
    if has_begun:
        await asyncio.sleep(0)
    going_on.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going_on
    assert work.has_ended
    assert wait.cancelled() is has_begun


async def test_the_rest_can_be_awaited_and_closed() -> None:
    wait = future()

    async def outer() -> list[str]:
        rest = at_once(Work(wait).run())
        assert not isinstance(rest, list)
        return await rest

    waiting = asyncio.ensure_future(outer())
    await asyncio.sleep(0)
    wait.set_result("a")
    assert await waiting == ["a"]
    work = Work(future())
    rest = at_once(work.run())
    assert not isinstance(rest, list)
    rest.close()
    assert work.has_ended


async def test_an_error_after_a_wait_reaches_the_task() -> None:
    wait = future()

    async def refuse() -> list[str]:
        await wait
        raise Refused

    going_on = task(at_once(refuse()))
    wait.set_result("a")
    with pytest.raises(Refused):
        await going_on
