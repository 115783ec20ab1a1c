"""The threads of a broker: one executor per purpose, so that one kind of work does not block the others.

With a single executor, maintenance on a slow disk would occupy the threads that fetch requests need.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import fields

from parley.light_dataclasses import dataclass
from parley.storage.clean_shutdown import CLOSERS

READS, RECORDS, UPKEEP, GROUPS, MESSAGES, COMPACTION = 8, 4, 4, 1, 1, 16
HANDSHAKES = max(1, (os.cpu_count() or 1) - 1)  # one core is left for the event loop
"""The maximum number of threads per purpose. They are started on demand."""
RECOVERING_MAX = 64
"""The maximum number of threads for recovery, even if more are configured."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The executors for work that would block the event loop. None means the default executor of the loop."""

    reads: Executor | None = None
    """Disk reads for clients."""
    records: Executor | None = None
    """Decompressing, compressing and converting records (CPU-bound)."""
    upkeep: Executor | None = None
    """Maintenance of the logs: opening, recovery, flushing, deletion and checkpoints."""
    handshakes: Executor | None = None
    """TLS handshakes (CPU-bound)."""
    groups: Executor | None = None
    """Slow work of the group coordinator: assignments, and regular expressions, whose cost depends on clients."""
    messages: Executor | None = None
    """Decoding and encoding of messages with very many elements, in one thread that takes turns with the event loop."""
    compaction: Executor | None = None
    """The workers of the log cleaner. Each occupies a thread for the whole compaction of a log."""
    closing: Executor | None = None
    """Closing the logs during a clean shutdown. Its threads wait for the disk, which processes many syncs
    concurrently."""

    @classmethod
    def made(cls, recovering: int) -> Threads:
        """Create the executors of a broker. Recovery gets ``recovering`` threads, but at least ``UPKEEP`` and at most
        ``RECOVERING_MAX``."""
        return cls(
            reads=ThreadPoolExecutor(READS, "reads"),
            records=ThreadPoolExecutor(RECORDS, "records"),
            upkeep=ThreadPoolExecutor(max(UPKEEP, min(recovering, RECOVERING_MAX)), "upkeep"),
            handshakes=ThreadPoolExecutor(HANDSHAKES, "handshakes"),
            groups=ThreadPoolExecutor(GROUPS, "groups"),
            messages=ThreadPoolExecutor(MESSAGES, "messages"),
            compaction=ThreadPoolExecutor(COMPACTION, "compaction"),
            closing=ThreadPoolExecutor(CLOSERS, "closing"),
        )

    async def close(self) -> None:
        """Wait for the work in progress, and stop the threads."""
        executors = [each for field in fields(self) if (each := getattr(self, field.name)) is not None]

        def shut_down() -> None:
            for executor in executors:
                executor.shutdown()

        await asyncio.get_running_loop().run_in_executor(None, shut_down)


LOOP_THREADS = Threads()
"""No separate threads: all work runs in the default executor of the event loop."""
