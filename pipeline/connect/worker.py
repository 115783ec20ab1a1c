"""A worker: the connectors and tasks that run here, started and stopped by a herder.

Rules:

1. A herder (standalone or distributed) decides what runs; the worker runs it and says what becomes of it, through the
   herder's `WorkerEvents`. Every call blocks and may come from any thread; calls for one connector or task must not
   overlap. From a loop call them by ``asyncio.to_thread``.
2. A connector object lives in this process. Tasks run on a `TaskEngine`: in Spark's executors, or in threads here.
3. Events come from threads of the worker, in order for each connector and task, and must return quickly: a herder with
   a loop hands them over (``loop.call_soon_threadsafe``). A task that was stopped sends no event afterwards.
4. A connector or task that fails stays known, as FAILED, until it is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from pipeline.connect.config import ConfigInfos
from pipeline.connect.herder import State, TargetState, TaskId
from pipeline.connect.offsets import SourceOffset

__all__ = ["Worker", "WorkerEvents"]


class WorkerEvents(Protocol):
    """What a worker tells its herder."""

    def connector_state(self, name: str, state: State, trace: str | None) -> None:
        """The connector has come into this state; `trace` says why it failed."""
        ...

    def task_state(self, task: TaskId, state: State, trace: str | None) -> None:
        """The task has come into this state; `trace` says why it failed."""
        ...

    def reconfigure(self, name: str) -> None:
        """The connector wants its tasks configured anew: ask `Worker.task_configs`, and restart what has changed."""
        ...

    def topic_used(self, task: TaskId, topic: str) -> None:
        """The task has used the topic, for the first time since it was started (KIP-558)."""
        ...


class Worker(Protocol):
    """Runs connectors and tasks; see the rules of the module."""

    def start(self) -> None:
        """Begin: the offset store and the engine are started. Raises ConnectError."""
        ...

    def stop(self) -> None:
        """Stop all connectors and tasks within ``task.shutdown.graceful.timeout.ms``, then the engine."""
        ...

    def start_connector(self, name: str, config: Mapping[str, str], target: TargetState) -> None:
        """Start a connector; in PAUSED and STOPPED its object is made but not started.

        What becomes of it comes as an event: a connector that raises is FAILED. Raises ConnectError if there is one.
        """
        ...

    def stop_connector(self, name: str) -> None:
        """Stop a connector, not its tasks; nothing if there is none."""
        ...

    def set_target_state(self, name: str, target: TargetState) -> None:
        """Pause, stop or start the connector here, if there is one, and pause or resume its tasks here."""
        ...

    def task_configs(self, name: str) -> list[dict[str, str]]:
        """Ask a running connector for its tasks' configurations (at most ``tasks.max``), ready for `start_task`.

        Raises ConnectError if the connector does not run, and whatever the connector raises.
        """
        ...

    def start_task(
        self,
        task: TaskId,
        tasks: int,
        connector_config: Mapping[str, str],
        task_config: Mapping[str, str],
        target: TargetState,
    ) -> None:
        """Start a task, one of so many that its connector has; its state comes as events.

        The tasks of a sink share its partitions by that number: where it changes, all of them have to be stopped before
        the first is started anew. Raises ConnectError if there is one of this id.
        """
        ...

    def stop_tasks(self, tasks: Iterable[TaskId]) -> None:
        """Stop tasks, their offsets committed, all at once; those that do not stop in time are abandoned."""
        ...

    def validate(self, plugin: str, config: Mapping[str, str | None]) -> ConfigInfos:
        """Look through a connector's configuration, with those of its converters, transforms and predicates.

        Raises ConfigError if there is no such connector class.
        """
        ...

    def offsets(self, name: str, config: Mapping[str, str]) -> list[SourceOffset]:
        """How far a connector has come, as the REST API shows it: for a sink its group's offsets (KIP-875)."""
        ...

    def alter_offsets(self, name: str, config: Mapping[str, str], offsets: Sequence[SourceOffset] | None) -> str:
        """Set offsets of a connector none of whose tasks run; None: forget all. A text that says what came of it.

        Raises BadRequest (:mod:`pipeline.connect.herder`) where the offsets make no sense, or the connector refuses.
        """
        ...
