"""Clients take turns, however many elements or long requests each of them has."""

from __future__ import annotations

import asyncio

from parley.broker.runtime.round_robin import RoundRobin
from parley.broker.runtime.turns import CLIENT, next_turn


def test_clients_take_turns_and_the_elements_of_each_keep_their_order() -> None:
    queue: RoundRobin[str] = RoundRobin()
    for element in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(element[0], element)
    assert [queue.pop() for _ in range(4)] == ["a1", "b1", "c1", "a2"]
    queue.add("c", "c2")
    assert [queue.pop() for _ in range(len(queue))] == ["b2", "a3", "c2"]
    assert not queue


def test_clients_that_are_not_allowed_keep_their_turn() -> None:
    queue: RoundRobin[str] = RoundRobin()
    for element in ("a1", "b1", "b2", "c1"):
        queue.add(element[0], element)
    assert queue.pop_allowed(lambda client: client != "a") == ("b", "b1")
    assert queue.pop_allowed(lambda client: client == "d") is None
    assert [queue.pop() for _ in range(len(queue))] == ["a1", "c1", "b2"]


async def test_the_steps_of_one_request_do_not_wait_for_hundreds_of_another_client() -> None:
    order: list[str] = []

    async def work(client: str, steps: int) -> None:
        for _ in range(steps):
            await next_turn()
            order.append(client)

    def begin(client: str, steps: int) -> asyncio.Task[None]:
        before = CLIENT.set(client)
        task = asyncio.create_task(work(client, steps))
        CLIENT.reset(before)
        return task

    tasks = [begin("eve", 3) for _ in range(100)]
    tasks.append(begin("alice", 3))
    await asyncio.gather(*tasks)
    assert len(order) == 303
    assert [at for at, client in enumerate(order) if client == "alice"][-1] < 8
