"""Handles the failure of a log directory's disk: takes the directory and all its logs offline until the broker
restarts.

Rules (docs/storage.md has them all):

1. Any ``OSError`` is a failure of the disk, unless the process has run out of file descriptors or memory
   (``parley.storage.resource_exhaustion``).
2. A directory fails only once. Its logs are removed from the table on the event loop, and their files are closed later.
3. If no directory is online, the broker must stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from parley.protocol.errors import ErrorCode, KafkaError
from parley.storage.clean_shutdown import release_all
from parley.storage.io_threads import IoThreads
from parley.storage.log import Log
from parley.storage.log_directory import FULL, LogDirectory
from parley.storage.log_locations import LogLocations
from parley.storage.log_maintenance import StartTask
from parley.storage.resource_exhaustion import reserve_for

_log = logging.getLogger(__name__)


class LogDirectoryFailures:
    """Takes directories offline while the broker's logs are open. Used on the event loop, unless a method says
    otherwise."""

    def __init__(
        self,
        locations: LogLocations,
        threads: IoThreads,
        start_task: StartTask,
        *,
        is_open: Callable[[], bool],
        on_offline: Callable[[LogDirectory, list[Log]], None],
        on_all_offline: Callable[[], None],
    ) -> None:
        """Ignores failures while ``is_open`` returns False. Calls ``on_offline`` for each directory that fails, with
        its logs, and ``on_all_offline`` after the last one."""
        self._locations = locations
        self._threads = threads
        self._start_task = start_task
        self._is_open = is_open
        self._on_offline = on_offline
        self._on_all_offline = on_all_offline
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self) -> None:
        """Handle the failures that threads report, on the running event loop. Reports before this call are ignored."""
        self._loop = asyncio.get_running_loop()

    def failed(self, directory: LogDirectory, error: OSError) -> KafkaError:
        """Take the directory offline, unless ``error`` means that the process has run out of a resource. Returns the
        KAFKA_STORAGE_ERROR for the caller to raise."""
        reserve = reserve_for(error)
        if reserve is not None:
            reserve.make_room()
        else:
            self._fail(directory, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory}: {error}")

    def on_io_error(self, directory: LogDirectory, error: OSError) -> None:
        """Take the directory offline because ``error`` occurred in one of its logs. Any thread may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fail, directory, error)

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        if not self._is_open() or not directory.fail(error):
            return
        logs = self._locations.lose(directory)
        remedy = "Make room on its disk" if error.errno in FULL else "Repair or replace its disk"
        rest = "The other log directories stay online" if self._is_any_online() else "No other log directory is online"
        facts = directory, len(logs), error, rest, remedy
        _log.error("%s is offline, and its %d logs with it: %s. %s. %s, then restart the broker", *facts)
        directory.close()
        self._start_task(self.release(logs), name=f"release of {directory}")
        self._on_offline(directory, logs)
        if not self._is_any_online():
            self._on_all_offline()

    def _is_any_online(self) -> bool:
        return any(each.online for each in self._locations.directories)

    async def release(self, logs: list[Log]) -> None:
        """Close the files of logs without flushing them."""
        await self._threads.run_all([partial(release_all, logs)])
