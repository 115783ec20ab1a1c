"""A process with many tasks: a thread for each, so that one that fails, or is stuck, holds up no other.

Tasks of a host share connections: one cluster for requests, one feed for reading for each isolation level. What
happens goes to `Reports`. A task that does not stop in time is abandoned: its thread may run on, but nothing it does is
reported or stored any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.cluster import Cluster, Connection, Isolation
from pipeline.connect.connector import SinkTask, SourceTask
from pipeline.connect.errors import ConnectError, stack_trace
from pipeline.connect.herder import State, TaskId
from pipeline.connect.offsets import SourceOffset
from pipeline.connect.plugins import Plugins
from pipeline.connect.tasks.conversion import Conversion
from pipeline.connect.tasks.feed import Feed
from pipeline.connect.tasks.sink import SinkRun
from pipeline.connect.tasks.source import SourceRun, TopicMaker
from pipeline.connect.tasks.spec import ClientSettings, Reports, TaskSpec
from pipeline.connect.tasks.tolerance import Tolerance
from pipeline.connect.tasks.writing import DeadLetterTopic, TopicWriter
from pipeline.connect.worker_config import WorkerConfig

__all__ = ["TaskHost"]

_STEP_S: Final = 0.5
"""How long a step of a task waits for something to do."""
_log = logging.getLogger(__name__)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Clients:
    """The connections of all tasks of a process."""

    def __init__(self) -> None:
        self._clusters: dict[Connection, Cluster] = {}
        self._feeds: dict[tuple[Connection, Isolation], Feed] = {}
        self._lock = threading.Lock()

    def cluster(self, connection: Connection) -> Cluster:
        with self._lock:
            return self._clusters.setdefault(connection, Cluster(connection))

    def feed(self, connection: Connection, isolation: Isolation) -> Feed:
        with self._lock:
            if (connection, isolation) not in self._feeds:
                self._feeds[connection, isolation] = Feed(connection, isolation)
            return self._feeds[connection, isolation]

    def close(self) -> None:
        with self._lock:
            for feed in self._feeds.values():
                feed.close()
            for cluster in self._clusters.values():
                cluster.close()
            self._feeds.clear()
            self._clusters.clear()


class _Guarded:
    """Reports of one task, which end when it is told to stop being heard."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._is_heard = True

    def silence(self) -> None:
        self._is_heard = False

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        if self._is_heard:
            self._reports.state(spec, state, trace)

    def topic_used(self, spec: TaskSpec, topic: str) -> None:
        if self._is_heard:
            self._reports.topic_used(spec, topic)

    def stored(self, connector: str, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        return self._reports.stored(connector, partitions)

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        if not self._is_heard:
            raise ConnectError("the task was abandoned")
        self._reports.store(spec, offsets)


class _Running:
    """A task and its thread."""

    def __init__(self, spec: TaskSpec, make: Callable[[_Running], SinkRun | SourceRun], reports: Reports) -> None:
        self.spec = spec
        self.stopping = threading.Event()
        self.reports = _Guarded(reports)
        self._make = make
        self._may_run = threading.Event()
        self._changed = threading.Event()
        self._run: SinkRun | SourceRun | None = None
        if not spec.is_paused:
            self._may_run.set()
        self.thread = threading.Thread(target=self._live, name=f"task {spec.id}", daemon=True)

    def pause(self) -> None:
        self._may_run.clear()
        self.wake()

    def resume(self) -> None:
        self._may_run.set()

    def stop(self) -> None:
        self.stopping.set()
        self._may_run.set()
        self.wake()

    def wake(self) -> None:
        if isinstance(self._run, SinkRun):
            self._run.inbox.wake()

    def _live(self) -> None:
        try:
            self._work()
        except Exception as error:
            _log.error("Task %s failed and is stopped until it is started again.", self.spec.id, exc_info=error)
            if not self.stopping.is_set():
                self.reports.state(self.spec, State.FAILED, stack_trace(error))

    def _work(self) -> None:
        if not self._may_run.is_set():
            self.reports.state(self.spec, State.PAUSED, None)
            self._may_run.wait()
        if self.stopping.is_set():
            return
        run = self._run = self._make(self)
        try:
            run.begin()
            self.reports.state(self.spec, State.RUNNING, None)
            while not self.stopping.is_set():
                if self._may_run.is_set():
                    run.step(_STEP_S)
                else:
                    self._wait_paused(run)
        except BaseException:
            self._finish_after_failure(run)
            raise
        run.finish()

    def _finish_after_failure(self, run: SinkRun | SourceRun) -> None:
        """What fails now is only a consequence: the first failure is what is told."""
        try:
            run.finish()
        except Exception as error:
            _log.warning("Task %s could not be stopped in order: %s", self.spec.id, error)

    def _wait_paused(self, run: SinkRun | SourceRun) -> None:
        run.commit()
        self.reports.state(self.spec, State.PAUSED, None)
        self._may_run.wait()
        if not self.stopping.is_set():
            self.reports.state(self.spec, State.RUNNING, None)


class TaskHost:
    """Runs tasks in threads; see the module's rules. Its methods may come from any thread."""

    def __init__(self, worker: WorkerConfig, reports: Reports, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._worker = worker
        self._reports = reports
        self._now_ms = now_ms
        self._plugins = Plugins(worker["plugin.path"])
        self._clients = _Clients()
        self._running: dict[TaskId, _Running] = {}
        self._lock = threading.Lock()

    def start(self, spec: TaskSpec) -> None:
        """Start a task. What becomes of it is reported. Raises ConnectError if it runs already."""
        running = _Running(spec, self._make, self._reports)
        with self._lock:
            if spec.id in self._running:
                raise ConnectError(f"Task already exists in this worker: {spec.id}")
            self._running[spec.id] = running
        running.thread.start()

    def pause(self, task: TaskId) -> None:
        """Let it do nothing, once its present call is done; it keeps what it holds."""
        if running := self._running.get(task):
            running.pause()

    def resume(self, task: TaskId) -> None:
        if running := self._running.get(task):
            running.resume()

    def stop(self, tasks: Iterable[TaskId], timeout_ms: int) -> None:
        """Stop these, all at once; those that take longer are abandoned."""
        with self._lock:
            ended = [self._running.pop(one) for one in tasks if one in self._running]
        for running in ended:
            running.stop()
        deadline = time.monotonic() + timeout_ms / 1000
        for running in ended:
            running.thread.join(max(0.0, deadline - time.monotonic()))
            if running.thread.is_alive():
                _log.error("Task %s did not stop within %s ms and is abandoned.", running.spec.id, timeout_ms)
            running.reports.silence()

    def close(self, timeout_ms: int) -> None:
        """Stop everything and end the connections."""
        self.stop(list(self._running), timeout_ms)
        self._clients.close()

    def _make(self, running: _Running) -> SinkRun | SourceRun:
        """What a task needs, made in its own thread. Raises ConfigError, ConnectError."""
        spec, worker = running.spec, self._worker
        conversion = Conversion(spec, worker, self._plugins)
        producer = ClientSettings.of("producer", worker, spec)
        client_id = worker["client.id"] or "connect"
        cluster = self._clients.cluster(producer.connection(worker, client_id))
        interval_ms = worker["offset.flush.interval.ms"]
        settings = spec.settings()
        tolerance = Tolerance(spec.id, settings, None, running.stopping, now_ms=self._now_ms)
        writer = TopicWriter(cluster, producer)
        task_class = spec.task_config["task.class"]
        if not spec.is_sink:
            source: SourceTask = self._plugins.make(task_class, SourceTask)  # type: ignore[type-abstract]
            topics = TopicMaker(cluster, spec.connector_config, is_enabled=worker["topic.creation.enable"])
            return SourceRun(
                spec, source, conversion, tolerance, writer, topics, running.reports, commit_interval_ms=interval_ms
            )
        sink: SinkTask = self._plugins.make(task_class, SinkTask)  # type: ignore[type-abstract]
        if settings["errors.deadletterqueue.topic.name"]:
            tolerance.dead_letters = DeadLetterTopic(cluster, writer, settings)
        consumer = ClientSettings.of("consumer", worker, spec)
        connection = consumer.connection(worker, client_id)
        feed = self._clients.feed(connection, consumer.isolation)
        return SinkRun(
            spec,
            sink,
            conversion,
            tolerance,
            consumer,
            self._clients.cluster(connection),
            feed,
            running.reports,
            commit_interval_ms=interval_ms,
        )
