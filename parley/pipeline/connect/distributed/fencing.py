"""Rounds of fencing: all older tasks are fenced before new tasks of a source write in transactions (KIP-618).

A task writes under the transactional id ``<group>-<connector>-<number>``. A new task fences the earlier task with its
number. Unless there was and is only one task, all earlier tasks must be fenced before any new task starts. The leader
does this once for each commit of tasks, and records it in the log (``tasks-fencing-NAME``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from parley.pipeline.connect.distributed.blocking_calls import in_thread
from parley.pipeline.connect.distributed.configs import ConfigStore
from parley.pipeline.connect.herder_results import NotFound, Rebalancing

_log = logging.getLogger(__name__)


class Fencing:
    """The leader's rounds of fencing, one at a time for each connector.

    A caller that writes configurations must hold ``turn``. ``fence_tasks(name, config, n)`` fences the connector's
    first n tasks. It blocks, and raises KafkaError or ConnectError.
    """

    def __init__(
        self,
        configs: ConfigStore,
        turn: asyncio.Lock,
        fence_tasks: Callable[[str, Mapping[str, str], int], None],
    ) -> None:
        self._configs = configs
        self._turn = turn
        self._fence_tasks = fence_tasks
        self._rounds: dict[str, asyncio.Lock] = {}

    async def round(self, name: str) -> None:
        """Fence all tasks of the connector except those of the current commit. Does nothing if that has been done since
        the commit.

        Raises NotFound if the connector is deleted, Rebalancing if tasks are committed meanwhile, KafkaError, and
        ConnectError.
        """
        async with self._rounds.setdefault(name, asyncio.Lock()):
            await self._configs.refresh()
            state = self._configs.state
            if name not in state.unfenced:
                return
            config = state.connectors.get(name)
            if config is None:
                raise NotFound(f"Connector {name} not found")
            generation, count = state.generations.get(name, 0), len(state.tasks.get(name, ()))
            before = state.fenced_counts.get(name)
            # A single task itself fences the single task before it.
            if before is not None and (before, count) != (1, 1):
                _log.info("fencing %d earlier tasks of %s", before, name)
                await in_thread(self._fence_tasks, name, config, before)
            async with self._turn:
                await self._configs.refresh()
                if state.generations.get(name, 0) != generation:
                    raise Rebalancing("Fencing failed because new task configurations were generated for the connector")
                await self._configs.put_fenced(name, count)
