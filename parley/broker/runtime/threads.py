"""The threads of a broker, made in one place: an executor for each purpose, so that no work keeps other kinds waiting.

With one executor for all, the upkeep of a slow disk would hold the threads that fetches need.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

READS, RECORDS, UPKEEP = 8, 4, 4
"""Threads of each purpose at most; they are started when there is work for them."""


@dataclass(frozen=True, slots=True)
class Threads:
    """Where work is done that would hold up the event loop. None: in the loop's own executor."""

    reads: Executor | None = None
    """Waiting for the disk on behalf of clients."""
    records: Executor | None = None
    """Decompressing, compressing and converting records, which keeps processors busy."""
    upkeep: Executor | None = None
    """What the logs themselves need: opening, recovery, flushing, deletion, checkpoints."""

    @classmethod
    def made(cls, recovering: int) -> Threads:
        """Executors of a broker's own, ``recovering`` threads for the recovery of its logs; ``close`` ends them."""
        return cls(
            reads=ThreadPoolExecutor(READS, "reads"),
            records=ThreadPoolExecutor(RECORDS, "records"),
            upkeep=ThreadPoolExecutor(max(UPKEEP, recovering), "upkeep"),
        )

    async def close(self) -> None:
        """Wait for the work under way, and end the threads."""
        executors = [each for each in (self.reads, self.records, self.upkeep) if each is not None]

        def shut_down() -> None:
            for executor in executors:
                executor.shutdown()

        await asyncio.get_running_loop().run_in_executor(None, shut_down)


LOOPS_OWN = Threads()
