"""The thread that uses SQLite. It runs jobs in order and in batches, with one sync before any result is returned.

A job is a function of the database. Its result is delivered to the caller on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from parley.consensus.errors import Closed, CoordinationError, Unavailable, WrongStore
from parley.consensus.local.database import Database, News
from parley.light_dataclasses import dataclass

_T = TypeVar("_T")
_BATCH_MAX = 256


@dataclass(slots=True)
class _Job(Generic[_T]):
    run: Callable[[Database], _T]
    done: asyncio.Future[_T]
    result: _T | None = None
    error: BaseException | None = None

    def settle(self) -> None:
        if self.done.done():
            return  # cancelled
        if self.error is not None:
            self.done.set_exception(self.error)
        else:
            self.done.set_result(self.result)  # type: ignore[arg-type]


class DatabaseThread:
    """Runs jobs on a database that only its thread uses.

    ``on_news`` is called on the loop after each batch that changed something.
    """

    def __init__(self, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordination")
        self._database: Database | None = None
        self._waiting: list[_Job[Any]] = []
        self._running = False
        self._closed = False
        self._wrong_store: WrongStore | None = None

    async def open(self, connect: Callable[[], Database]) -> Database:
        """Call ``connect`` in the thread, and return the database that it returns. Raises the error that it raises."""
        self._database = await self._loop.run_in_executor(self._executor, connect)
        return self._database

    def submit(self, run: Callable[[Database], _T]) -> asyncio.Future[_T]:
        """Run a job after those submitted before it. It runs even if its future is cancelled.

        The future has the result or the error of the job. It raises Closed if this thread is closed, and MaybeApplied
        if the sync after the job fails. Once the store has been deleted or replaced, every job raises WrongStore.
        """
        job = _Job(run, self._loop.create_future())
        if self._closed or self._database is None:
            job.done.set_exception(Closed("the backend is closed"))
        else:
            self._waiting.append(job)
            if not self._running:
                self._start_batch()
        return job.done

    async def close(self) -> None:
        """Finish the submitted jobs, disconnect, and end the thread."""
        if self._database is not None and not self._closed:
            last = self.submit(lambda database: None)
            self._closed = True
            with suppress(CoordinationError):
                await last
            await self._loop.run_in_executor(self._executor, self._database.close)
        self._closed = True
        self._executor.shutdown(wait=False)

    def _start_batch(self) -> None:
        batch, self._waiting = self._waiting[:_BATCH_MAX], self._waiting[_BATCH_MAX:]
        self._running = True
        self._executor.submit(self._run, batch)

    def _run(self, batch: list[_Job[Any]]) -> None:
        database = self._database
        assert database is not None
        try:
            if self._wrong_store:
                raise self._wrong_store
            database.check_in_place()
            for job in batch:
                try:
                    job.result = job.run(database)
                except WrongStore:
                    raise
                except BaseException as error:
                    job.error = error
            database.sync()
        except WrongStore as error:  # final, even if the right store comes back later
            self._wrong_store = error
            for job in batch:
                job.error = error
        except CoordinationError as error:
            for job in batch:
                job.error = job.error or error
        except Exception as error:  # such as a failing stat; the callers must not wait forever
            for job in batch:
                job.error = job.error or Unavailable(str(error))
        with suppress(RuntimeError):  # the loop is closed, and all callers with it
            self._loop.call_soon_threadsafe(self._deliver, batch, database.take_news())

    def _deliver(self, batch: list[_Job[Any]], news: News) -> None:
        for job in batch:
            job.settle()
        if news.entries_changed or news.sessions_changed:
            self._on_news(news)
        if self._waiting:
            self._start_batch()
        else:
            self._running = False
