"""Responses being built share a memory limit. Beyond it, only the one nearest to its end and the oldest continue."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.network.unfinished_responses import FIRST_PART_BYTES, UnfinishedResponse, UnfinishedResponses

MIB = 1 << 20


async def _waiting(unfinished: UnfinishedResponses, response: UnfinishedResponse) -> asyncio.Task[None]:
    """Return the wait for the next part, which has begun."""
    task = asyncio.create_task(unfinished.begin_part(response))
    await asyncio.sleep(0)
    return task


async def test_within_the_limit_no_part_waits() -> None:
    unfinished = UnfinishedResponses(bytes_max=3 * FIRST_PART_BYTES)
    responses = [unfinished.begin(2) for _ in range(3)]
    for _ in range(2):
        for each in responses:
            await unfinished.begin_part(each)
            unfinished.part_made(each, 1000)
    assert unfinished.bytes_held == 6000
    for each in responses:
        unfinished.end(each)
    assert unfinished.bytes_held == 0


async def test_beyond_the_limit_the_nearest_to_its_end_and_the_oldest_proceed_by_turns() -> None:
    unfinished = UnfinishedResponses(bytes_max=0)
    first = unfinished.begin(9)
    await unfinished.begin_part(first)  # one always proceeds
    old, middle, near = unfinished.begin(9), unfinished.begin(5), unfinished.begin(2)
    waits = {each: await _waiting(unfinished, each) for each in (middle, old, near)}
    assert not any(each.done() for each in waits.values())
    order = []
    unfinished.end(first)
    while waits:
        (chosen,) = [each for each, wait in waits.items() if await _is_done(wait)]
        order.append(chosen)
        del waits[chosen]
        unfinished.part_made(chosen, MIB)
    assert order == [old, near, middle]


async def _is_done(task: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0)
    return task.done()


async def test_the_end_of_a_response_makes_room_for_those_that_wait() -> None:
    unfinished = UnfinishedResponses(bytes_max=2 * MIB)
    full, beyond, waiting = unfinished.begin(3), unfinished.begin(2), unfinished.begin(2)
    await unfinished.begin_part(full)
    unfinished.part_made(full, 2 * MIB)
    await unfinished.begin_part(beyond)
    wait = await _waiting(unfinished, waiting)
    assert not wait.done()
    unfinished.end(full)
    await wait
    assert unfinished.bytes_held == 2 * FIRST_PART_BYTES


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_cancelled_wait_holds_up_nobody(is_admitted: bool) -> None:
    unfinished = UnfinishedResponses(bytes_max=0)
    beyond, cancelled, last = unfinished.begin(1), unfinished.begin(1), unfinished.begin(1)
    await unfinished.begin_part(beyond)
    waits = [await _waiting(unfinished, each) for each in (cancelled, last)]
    if is_admitted:
        unfinished.end(beyond)
    waits[0].cancel()
    await asyncio.gather(waits[0], return_exceptions=True)
    unfinished.end(cancelled)
    if not is_admitted:
        unfinished.end(beyond)
    await waits[1]
    unfinished.end(last)
    assert unfinished.bytes_held == 0
