"""Tasks in threads of the worker's own process: no Spark, no Java (``tasks.engine=threads``)."""

from __future__ import annotations

from collections.abc import Sequence

from parley.pipeline.connect.herder import TaskId
from parley.pipeline.connect.tasks.host import TaskHost
from parley.pipeline.connect.tasks.spec import Reports, TaskSpec
from parley.pipeline.connect.worker_config import WorkerConfig

__all__ = ["ThreadEngine"]


class ThreadEngine:
    """One host of tasks in this process."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._worker = worker
        self._host: TaskHost | None = None

    def start(self, reports: Reports) -> None:
        self._host = TaskHost(self._worker, reports)

    def stop(self, timeout_ms: int) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.close(timeout_ms)

    def start_task(self, spec: TaskSpec) -> None:
        self._running.start(spec)

    def pause_task(self, task: TaskId) -> None:
        self._running.pause(task)

    def resume_task(self, task: TaskId) -> None:
        self._running.resume(task)

    def stop_tasks(self, tasks: Sequence[TaskId], timeout_ms: int) -> None:
        self._running.stop(tasks, timeout_ms)

    @property
    def _running(self) -> TaskHost:
        if self._host is None:
            raise RuntimeError("the engine was not started")
        return self._host
