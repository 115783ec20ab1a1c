"""Peers as tasks of this process, for a store that only one process can use.

In place of SIGKILL and SIGSTOP, a task is disconnected from the store and takes no further step.
"""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any

from parley.consensus.backend import Backend
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.roles import play


class TaskPeer(Peer):
    """A peer in a task.

    :param client: the peer's client, already open.
    :param cut: disconnects the client from the store immediately.
    :param restore: reconnects it immediately.
    """

    def __init__(
        self,
        client: Backend,
        role: str,
        arguments: Mapping[str, Any],
        cut: Callable[[], None],
        restore: Callable[[], None],
    ) -> None:
        self._cut = cut
        self._restore = restore
        self._words: asyncio.Queue[str | None] = asyncio.Queue()
        self._going = asyncio.Event()
        self._going.set()
        self._ended = False
        part = play(role, client, lambda words: self._words.put_nowait(json.dumps(words)), arguments)
        self._task = asyncio.get_running_loop().create_task(_while_going(part, self._going), name=f"peer {role}")
        self._task.add_done_callback(self._on_end)

    async def said(self) -> list[Any]:
        line = None if self._ended and self._words.empty() else await self._words.get()
        if line is None:
            self._ended = True
            error = None if self._task.cancelled() else self._task.exception()
            raise EOFError(f"the peer has ended: {error!r}") from error
        words: list[Any] = json.loads(line)
        return words

    async def kill(self) -> None:
        self._cut()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        self._going.clear()
        self._cut()

    async def resume(self) -> None:
        self._restore()
        self._going.set()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._words.put_nowait(None)


async def _while_going(part: Coroutine[Any, Any, None], going: asyncio.Event) -> None:
    """Run a coroutine, but only while an event is set. It can always be cancelled."""
    await _steps(part, going)  # from Python 3.12 on, a task cannot run a generator itself


@types.coroutine
def _steps(part: Coroutine[Any, Any, None], going: asyncio.Event) -> Generator[Any, Any, None]:
    try:
        step = part.send(None)
        while True:
            try:
                answer = yield step
                if not going.is_set():
                    yield from going.wait().__await__()
            except BaseException as error:
                step = part.throw(error)
            else:
                step = part.send(answer)
    except StopIteration:
        return
