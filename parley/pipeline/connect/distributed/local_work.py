"""The connectors and tasks of this worker: starts, stops and restarts them, and reports their states.

Rules:

1. Calls into the worker block, so they run in threads. For one connector they never overlap. Work that does not stop
   within ``stop_seconds`` is abandoned.
2. Events of connectors and tasks (``WorkerEvents``, from any thread) are reported (``StatusWriter``) with the group's
   generation at that time.
3. Stopped work is reported as UNASSIGNED, unless another worker has reported a later state or the work is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from parley.pipeline.connect.distributed.blocking_calls import in_thread
from parley.pipeline.connect.distributed.configs import ConfigState
from parley.pipeline.connect.distributed.protocol import NO_WORK, Work
from parley.pipeline.connect.distributed.statuses import StatusWriter
from parley.pipeline.connect.errors import ConnectError, stack_trace
from parley.pipeline.connect.herder_results import State, Status, TargetState, TaskId
from parley.pipeline.connect.worker import Worker

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Running:
    """The connectors and tasks of this worker. This object also receives the worker's events (``WorkerEvents``).

    ``version_of`` returns the version of a connector's class by its configuration. ``reconfigure`` is called with the
    name of a connector whose task configurations must be computed again.
    """

    def __init__(
        self,
        worker_id: str,
        status_writer: StatusWriter,
        state: Callable[[], ConfigState],
        *,
        version_of: Callable[[str], str | None],
        reconfigure: Callable[[str], None],
        fence: Callable[[TaskId], Coroutine[Any, Any, None]],
        verify: Callable[[TaskId, int], Coroutine[Any, Any, None]],
        now_ms: Callable[[], int],
        tracks_topics: bool,
        stop_seconds: float,
    ) -> None:
        self.work = NO_WORK
        """The work that was started here and has not been stopped."""
        self.allowed = NO_WORK
        """The work that the group has assigned to this worker. Nothing else is started."""
        self.generation = 0
        self._worker_id = worker_id
        self._status_writer = status_writer
        self._state = state
        self._version_of = version_of
        self._reconfigure = reconfigure
        self._fence = fence
        self._verify = verify
        self._now_ms = now_ms
        self._tracks_topics = tracks_topics
        self._stop_seconds = stop_seconds
        self._task_counts: dict[str, int] = {}
        """How many tasks each connector had when its tasks here were started."""
        self._started_with: dict[TaskId, tuple[dict[str, str], dict[str, str], int]] = {}
        """What each task was started with: its connector's configuration, its own configuration, and its generation."""
        self._locks: dict[str, asyncio.Lock] = {}
        self._loop = asyncio.get_running_loop()
        self._worker: Worker

    def use(self, worker: Worker) -> None:
        """Set the worker, which reports its events to this object. Call this once, before anything else."""
        self._worker = worker

    # Events of the worker: WorkerEvents.

    def connector_state(self, name: str, state: State, trace: str | None) -> None:
        self._loop.call_soon_threadsafe(self._report, name, state, trace)

    def task_state(self, task: TaskId, state: State, trace: str | None) -> None:
        self._loop.call_soon_threadsafe(self._report, task, state, trace)

    def reconfigure(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._reconfigure, name)

    def topic_used(self, task: TaskId, topic: str) -> None:
        if self._tracks_topics:
            self._loop.call_soon_threadsafe(self._status_writer.topic, task, topic, self._now_ms())

    def fence(self, task: TaskId) -> None:
        asyncio.run_coroutine_threadsafe(self._fence(task), self._loop).result()

    def verify(self, task: TaskId, generation: int) -> None:
        asyncio.run_coroutine_threadsafe(self._verify(task, generation), self._loop).result()

    def _report(self, of: str | TaskId, state: State, trace: str | None = None) -> None:
        """Report a state. If a connector is now running, request its task configurations."""
        name = of.connector if isinstance(of, TaskId) else of
        if state is State.FAILED:
            _log.error("%s %s has failed:\n%s", "task" if isinstance(of, TaskId) else "connector", of, trace)
        status = Status(state, self._worker_id, self.generation, trace, self._version_of(name))
        self._status_writer.state(of, status, unless_newer=state in (State.UNASSIGNED, State.FAILED))
        if state is State.RUNNING and not isinstance(of, TaskId):
            self._reconfigure(name)

    # Starting and stopping.

    async def start(self, work: Work) -> None:
        """Start those of these connectors and tasks that are assigned to this worker and not running yet.

        A connector or task that fails to start is reported as FAILED.
        """
        starting = [self._in_turn(name, self._start_connector, name) for name in work.connectors]
        starting += [self._in_turn(task.connector, self._start_task, task) for task in work.tasks]
        await asyncio.gather(*starting)

    async def stop(self, work: Work) -> None:
        """Stop these connectors and tasks. Returns when they no longer run, or are abandoned."""
        names = work.connectors | {task.connector for task in work.tasks}
        await asyncio.gather(*(self._stop_in_time(name, work) for name in names))

    async def stop_tasks_of(self, name: str) -> None:
        """Stop a connector's tasks here. Returns when their last offsets are committed, or when the tasks are
        abandoned.
        """
        await self.stop(Work(tasks=frozenset(task for task in self.work.tasks if task.connector == name)))

    async def _stop_in_time(self, name: str, work: Work) -> None:
        """Stop the part of ``work`` that belongs to a connector. If it takes too long, abandon it: a hanging connector
        must not delay other connectors or the group.
        """
        try:
            async with asyncio.timeout(self._stop_seconds):
                await self._in_turn(name, self._stop_of, name, work)
        except TimeoutError:
            _log.error("%s did not stop within %g s and is abandoned", name, self._stop_seconds)
            self._locks.pop(name, None)
            self._stopped(name, work & self.work)

    async def restart(self, work: Work) -> None:
        """Stop these connectors and tasks, if they run here, and start them again with their current configurations."""
        again = work & self.work
        await self.stop(again)
        for name in again.connectors:
            self._report(name, State.RESTARTING)
        for task in again.tasks:
            self._report(task, State.RESTARTING)
        await self.start(again)

    async def set_target_state(self, name: str, target: TargetState) -> None:
        """Pause, stop or resume the connector and its tasks, as far as they run here."""
        if name in self.work.connectors or any(task.connector == name for task in self.work.tasks):
            await self._in_turn(name, in_thread, self._worker.set_target_state, name, target)

    async def task_configs(self, name: str) -> list[dict[str, str]]:
        """Return the task configurations that the connector computes. Raises the connector's errors."""
        return await self._in_turn(name, in_thread, self._worker.task_configs, name)

    def outdated(self) -> Work:
        """Return the tasks here that must stop before new ones start: those whose connector now has a different number
        of tasks.

        For a source that writes exactly once, these include all tasks of an older generation.
        """
        state = self._state()
        changed = {name for name, count in self._task_counts.items() if len(state.tasks.get(name, ())) != count}
        generations = {name: self._generation(name, state.connectors.get(name)) for name in self._task_counts}
        return Work(
            tasks=frozenset(
                task
                for task in self.work.tasks
                if task.connector in changed or self._started_with[task][2] != generations[task.connector]
            )
        )

    def reconfigured(self, name: str) -> Work:
        """Return the tasks of a connector that were started here with configurations other than the current ones.

        For a source that writes exactly once, these are all tasks of an older generation, because they are fenced.
        """
        state = self._state()
        connector = state.connectors.get(name)
        tasks = [task for task in self.work.tasks if task.connector == name]
        return Work(
            tasks=frozenset(
                task
                for task in tasks
                if self._started_with[task] != (connector, state.task_config(task), self._generation(name, connector))
            )
        )

    def _generation(self, name: str, connector: dict[str, str] | None) -> int:
        """Return the only generation of a connector's tasks that may write now; 0 if the connector does not write
        exactly once.
        """
        try:
            counts = connector is not None and self._worker.writes_exactly_once(connector)
        except ConnectError:
            return 0
        return self._state().generations.get(name, 0) if counts else 0

    def failed(self, name: str, error: BaseException) -> None:
        """Report a connector of this worker as FAILED, with the error's stack trace."""
        self._report(name, State.FAILED, stack_trace(error))

    async def _in_turn(self, name: str, what: Callable[..., Awaitable[T]], *arguments: object) -> T:
        async with self._locks.setdefault(name, asyncio.Lock()):
            return await what(*arguments)

    async def _start_connector(self, name: str) -> None:
        config = self._state().connectors.get(name)
        if config is None or name not in (self.allowed - self.work).connectors:
            return
        self.work |= Work(connectors=frozenset((name,)))
        try:
            await in_thread(self._worker.start_connector, name, config, self._state().target(name))
        except Exception as error:
            self.failed(name, error)
            return
        if name not in self.work.connectors:  # it was stopped or abandoned meanwhile
            await in_thread(self._worker.stop_connector, name)

    async def _start_task(self, task: TaskId) -> None:
        state = self._state()
        connector, config = state.connectors.get(task.connector), state.task_config(task)
        if connector is None or config is None or task not in (self.allowed - self.work).tasks:
            return
        count = len(state.tasks[task.connector])
        self.work |= Work(tasks=frozenset((task,)))
        self._task_counts[task.connector] = count
        generation = self._generation(task.connector, connector)
        self._started_with[task] = (connector, config, generation)
        try:
            target = state.target(task.connector)
            start = partial(self._worker.start_task, task, count, connector, config, target, generation=generation)
            await in_thread(start)
        except Exception as error:
            self._report(task, State.FAILED, stack_trace(error))

    async def _stop_of(self, name: str, work: Work) -> None:
        tasks = sorted(task for task in work.tasks & self.work.tasks if task.connector == name)
        stops_connector = name in work.connectors & self.work.connectors
        try:
            if tasks:
                await in_thread(self._worker.stop_tasks, tasks)
            if stops_connector:
                await in_thread(self._worker.stop_connector, name)
        except ConnectError as error:
            _log.warning("%s failed while it stopped: %s", name, error)
        self._stopped(name, Work(frozenset((name,)) if stops_connector else frozenset(), frozenset(tasks)))

    def _stopped(self, name: str, work: Work) -> None:
        """Forget the work of a connector that no longer runs here."""
        connectors, tasks = work.connectors & {name}, frozenset(one for one in work.tasks if one.connector == name)
        self.work -= Work(connectors, tasks)
        for task in tasks:
            self._started_with.pop(task, None)
        if not any(task.connector == name for task in self.work.tasks):
            self._task_counts.pop(name, None)
        if name in self._state().connectors:
            wanted = set(self._state().task_ids(name))
            for task in tasks & wanted:
                self._report(task, State.UNASSIGNED)
            for one in connectors:
                self._report(one, State.UNASSIGNED)
