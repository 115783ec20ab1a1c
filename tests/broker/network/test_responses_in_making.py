"""Responses being built share a memory limit. Beyond it, only the one nearest to its end and the oldest continue."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.network.responses_in_making import FIRST_PART_BYTES, ResponseInMaking, ResponsesInMaking

MIB = 1 << 20


async def _waiting(making: ResponsesInMaking, response: ResponseInMaking) -> asyncio.Task[None]:
    """Return the wait for the next part, which has begun."""
    task = asyncio.create_task(making.begin_part(response))
    await asyncio.sleep(0)
    return task


async def test_within_the_limit_no_part_waits() -> None:
    making = ResponsesInMaking(bytes_max=3 * FIRST_PART_BYTES)
    responses = [making.begin(2) for _ in range(3)]
    for _ in range(2):
        for each in responses:
            await making.begin_part(each)
            making.part_made(each, 1000)
    assert making.bytes_held == 6000
    for each in responses:
        making.end(each)
    assert making.bytes_held == 0


async def test_beyond_the_limit_the_nearest_to_its_end_and_the_oldest_proceed_by_turns() -> None:
    making = ResponsesInMaking(bytes_max=0)
    first = making.begin(9)
    await making.begin_part(first)  # one always proceeds
    old, middle, near = making.begin(9), making.begin(5), making.begin(2)
    waits = {each: await _waiting(making, each) for each in (middle, old, near)}
    assert not any(each.done() for each in waits.values())
    order = []
    making.end(first)
    while waits:
        (chosen,) = [each for each, wait in waits.items() if await _is_done(wait)]
        order.append(chosen)
        del waits[chosen]
        making.part_made(chosen, MIB)
    assert order == [old, near, middle]


async def _is_done(task: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    return task.done()


async def test_the_end_of_a_response_makes_room_for_those_that_wait() -> None:
    making = ResponsesInMaking(bytes_max=2 * MIB)
    full, beyond, waiting = making.begin(3), making.begin(2), making.begin(2)
    await making.begin_part(full)
    making.part_made(full, 2 * MIB)
    await making.begin_part(beyond)
    wait = await _waiting(making, waiting)
    assert not wait.done()
    making.end(full)
    await wait
    assert making.bytes_held == 2 * FIRST_PART_BYTES


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_cancelled_wait_holds_up_nobody(is_admitted: bool) -> None:
    making = ResponsesInMaking(bytes_max=0)
    beyond, cancelled, last = making.begin(1), making.begin(1), making.begin(1)
    await making.begin_part(beyond)
    waits = [await _waiting(making, each) for each in (cancelled, last)]
    if is_admitted:
        making.end(beyond)
    waits[0].cancel()
    await asyncio.gather(waits[0], return_exceptions=True)
    making.end(cancelled)
    if not is_admitted:
        making.end(beyond)
    await waits[1]
    making.end(last)
    assert making.bytes_held == 0
