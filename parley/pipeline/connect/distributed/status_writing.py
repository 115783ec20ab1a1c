"""What connectors and tasks do, on its way into the status log: the latest of each, until it is written.

A broker that is away holds up what is said, and loses none of it; what is said again meanwhile takes the place of what
was said before, so that no more waits than there are connectors, tasks and topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.herder import Status, TaskId
from parley.protocol.errors import KafkaError

__all__ = ["Telling"]

_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class Telling:
    """See the module. All calls are the loop's."""

    def __init__(self, statuses: StatusStore) -> None:
        self._statuses = statuses
        self._waiting: dict[Hashable, Write] = {}
        self._said = asyncio.Event()
        self._told = asyncio.Event()
        self._told.set()

    def state(self, of: str | TaskId, status: Status, *, unless_newer: bool) -> None:
        """Tell what a connector (by name) or a task does."""
        self._say(of, lambda: self._statuses.put(of, status, unless_newer=unless_newer))

    def topic(self, task: TaskId, topic: str, now_ms: int) -> None:
        """Tell that a task uses a topic."""
        self._say((task.connector, topic, "topic"), lambda: self._statuses.put_topic(task, topic, now_ms))

    async def told(self) -> None:
        """Comes back when all that was said is written."""
        await self._told.wait()

    async def run(self) -> None:
        """Write what is said, until cancelled."""
        while True:
            await self._said.wait()
            of, write = next(iter(self._waiting.items()))
            try:
                await write()
            except KafkaError as error:
                _log.warning("what %s does cannot be told just now: %s", of, error)
                await asyncio.sleep(_PAUSE_S)
                continue
            if self._waiting.get(of) is write:
                del self._waiting[of]
            if not self._waiting:
                self._said.clear()
                self._told.set()

    def _say(self, of: Hashable, write: Write) -> None:
        self._waiting.pop(of, None)
        self._waiting[of] = write
        self._said.set()
        self._told.clear()
