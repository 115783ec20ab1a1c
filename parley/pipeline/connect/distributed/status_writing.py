"""Writes the states of connectors and tasks to the status log. The latest state of each waits until it is written.

If a broker is unavailable, states wait and are not lost. A newer state replaces the waiting one, so no more states wait
than there are connectors, tasks and topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from parley.pipeline.connect.distributed.statuses import StatusStore
from parley.pipeline.connect.herder import Status, TaskId
from parley.protocol.errors import KafkaError

_PAUSE_S: Final = 1.0
_log = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class Telling:
    """See the module. Only the loop calls it."""

    def __init__(self, statuses: StatusStore) -> None:
        self._statuses = statuses
        self._waiting: dict[Hashable, Write] = {}
        self._said = asyncio.Event()
        self._told = asyncio.Event()
        self._told.set()

    def state(self, of: str | TaskId, status: Status, *, unless_newer: bool) -> None:
        """Report the state of a connector (by name) or a task."""
        self._say(of, lambda: self._statuses.put(of, status, unless_newer=unless_newer))

    def topic(self, task: TaskId, topic: str, now_ms: int) -> None:
        """Report that a task uses a topic."""
        self._say((task.connector, topic, "topic"), lambda: self._statuses.put_topic(task, topic, now_ms))

    async def told(self) -> None:
        """Wait until all reports are written."""
        await self._told.wait()

    async def run(self) -> None:
        """Write the reports, until cancelled."""
        while True:
            await self._said.wait()
            of, write = next(iter(self._waiting.items()))
            try:
                await write()
            except KafkaError as error:
                _log.warning("the status of %s cannot be written at the moment: %s", of, error)
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
