"""Clients of memory stores that take one step at a time, in every possible order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from parley.consensus.backend import LINEARIZABLE, Check, Entry, Op, Page, Read, Session, TxnResult
from parley.consensus.memory import MemoryBackend, MemoryStore

SETTLED = 12
"""The number of passes of the event loop after which every task waits for its next step."""


class Steps:
    """Decides which client takes the next step: ``order`` contains, for each step, an index into the clients that wait
    for it.

    If fewer clients wait, the last of them takes the step. After the end of ``order``, the first takes it.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = order
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self.choices: list[int] = []
        """For each step taken, the number of clients that could have taken it."""
        self.taken: list[str] = []
        """The client that took each step."""

    async def turn(self, who: str) -> None:
        """Wait until it is this client's turn."""
        waiting = self._waiting[who] = asyncio.get_running_loop().create_future()
        await waiting

    async def run(self, *actors: Awaitable[Any]) -> None:
        """Let the clients continue step by step until all are done."""
        tasks = [asyncio.ensure_future(each) for each in actors]
        try:
            while True:
                for _ in range(SETTLED):
                    await asyncio.sleep(0)
                if all(task.done() for task in tasks):
                    for task in tasks:
                        task.result()
                    return
                ready = sorted(who for who, waiting in self._waiting.items() if not waiting.done())
                assert ready, f"everybody waits for ever after {self.taken}"
                at = len(self.taken)
                chosen = ready[min(self._order[at] if at < len(self._order) else 0, len(ready) - 1)]
                self.choices.append(len(ready))
                self.taken.append(chosen)
                self._waiting.pop(chosen).set_result(None)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def every_order(choices: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Yield every order for ``Steps`` once. ``choices`` are those of the run with the previous order."""
    order: list[int] = []
    while True:
        yield order
        made = choices()
        order = [*order, *[0] * (len(made) - len(order))]
        while order and order[-1] + 1 >= made[len(order) - 1]:
            order.pop()
        if not order:
            return
        order[-1] += 1


class SteppedBackend(MemoryBackend):
    """A client whose calls are steps while ``steps`` is set. ``before`` is awaited with the number of each step."""

    def __init__(self, store: MemoryStore, who: str) -> None:
        super().__init__(store)
        self.who = who
        self.steps: Steps | None = None
        self.before: Callable[[int], Awaitable[None]] | None = None
        self._taken = 0

    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        await self._turn()
        return await super().get(key, read=read)

    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        await self._turn()
        return await super().list(prefix, limit=limit, after=after, read=read)

    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        await self._turn()
        return await super().txn(checks, ops)

    async def open_session(self, ttl_ms: int) -> Session:
        await self._turn()
        return await super().open_session(ttl_ms)

    async def _turn(self) -> None:
        if self.steps is not None:
            await self.steps.turn(self.who)
            if self.before is not None:
                await self.before(self._taken)
            self._taken += 1
