"""Runs the tasks of a worker, each in a thread, so that a failed or stuck task delays no other.

Tasks of a host share connections: a cluster for requests, and a feed for reading for each isolation level. A task that
does not stop in time is abandoned: its thread may continue, but nothing it does is reported, stored or committed
(``guard``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Final, TypeVar

from parley.pipeline.client.cluster import Cluster, Connection, Isolation
from parley.pipeline.connect.connector import SinkTask, SourceTask
from parley.pipeline.connect.errors import ConnectError, stack_trace
from parley.pipeline.connect.herder_results import State, TaskId
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.tasks.boundaries import Boundary, ByInterval, ByPoll, ByTask, Requests
from parley.pipeline.connect.tasks.conversion import Conversion
from parley.pipeline.connect.tasks.dead_letter_topic import DeadLetterTopic
from parley.pipeline.connect.tasks.exactly_once import ExactlyOnceRun
from parley.pipeline.connect.tasks.feed import Feed
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.sink_run import SinkRun
from parley.pipeline.connect.tasks.source_run import SourceRun, TopicMaker
from parley.pipeline.connect.tasks.spec import ClientSettings, ExactlyOnce, TaskSpec
from parley.pipeline.connect.tasks.tolerance import Tolerance
from parley.pipeline.connect.tasks.topic_writing import TopicWriter, TransactionWriter
from parley.pipeline.connect.worker_config import WorkerConfig

_STEP_S: Final = 0.5
"""How long (s) one step of a task may wait for work."""
_log = logging.getLogger(__name__)

K = TypeVar("K")
C = TypeVar("C", Cluster, Feed)


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class _Clients:
    """The connections of a process's tasks. Tasks that connect to the same cluster with the same settings share them.

    Connections without a task are closed.
    """

    def __init__(self) -> None:
        self._clusters: dict[Connection, Cluster] = {}
        self._feeds: dict[tuple[Connection, Isolation], Feed] = {}
        self._users: Counter[object] = Counter()
        self._is_closed = False
        self._lock = threading.Lock()

    def cluster(self, connection: Connection, held: ExitStack) -> Cluster:
        """Return the cluster of this connection, shared with other tasks. It stays open until ``held`` is closed.

        Raises ConnectError if the host has been closed.
        """
        return self._use(self._clusters, connection, lambda: Cluster(connection), held)

    def feed(self, connection: Connection, isolation: Isolation, held: ExitStack) -> Feed:
        """Return the feed of this connection, shared with other tasks. It stays open until ``held`` is closed.

        Raises ConnectError if the host has been closed.
        """
        return self._use(self._feeds, (connection, isolation), lambda: Feed(connection, isolation), held)

    def _use(self, shared: dict[K, C], key: K, make: Callable[[], C], held: ExitStack) -> C:
        with self._lock:
            if self._is_closed:
                raise ConnectError("the host of the task has ended")
            found = shared.get(key) or shared.setdefault(key, make())
            self._users[found] += 1
        held.callback(self._give_back, shared, key, found)
        return found

    def _give_back(self, shared: dict[K, C], key: K, found: C) -> None:
        with self._lock:
            self._users[found] -= 1
            if self._users[found] or shared.get(key) is not found:
                return
            del shared[key], self._users[found]
        found.close()

    def close(self) -> None:
        """Close all connections, even those that abandoned tasks use."""
        with self._lock:
            self._is_closed = True
            feeds, clusters = list(self._feeds.values()), list(self._clusters.values())
            self._feeds.clear()
            self._clusters.clear()
        for feed in feeds:
            feed.close()
        for cluster in clusters:
            cluster.close()


class _Running:
    """A task and its thread."""

    def __init__(self, spec: TaskSpec, make: Callable[[_Running], SinkRun | SourceRun], guard: Guard) -> None:
        self.spec = spec
        self.stopping = threading.Event()
        self.guard = guard
        self.held = ExitStack()
        """The task's connections."""
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
            with self.held:
                self._work()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"  # the worker reports the trace
            _log.error("Task %s failed. It stays stopped until it is restarted: %s", self.spec.id, text)
            if not self.stopping.is_set():
                self.guard.state(State.FAILED, stack_trace(error))

    def _work(self) -> None:
        if not self._may_run.is_set():
            self.guard.state(State.PAUSED, None)
            self._may_run.wait()
        if self.stopping.is_set():
            return
        run = self._run = self._make(self)
        try:
            run.begin()
            self.guard.state(State.RUNNING, None)
            while not self.stopping.is_set() and self.guard.may_act:
                if self._may_run.is_set():
                    run.step(_STEP_S)
                else:
                    self._wait_paused(run)
        except BaseException:
            self._finish_after_failure(run)
            raise
        run.finish()

    def _finish_after_failure(self, run: SinkRun | SourceRun) -> None:
        """Finish a task that has failed. Errors that this causes are only logged: the first error is the
        one to report.
        """
        try:
            run.finish()
        except Exception as error:
            _log.warning("Task %s did not stop cleanly: %s", self.spec.id, error)

    def _wait_paused(self, run: SinkRun | SourceRun) -> None:
        run.commit()
        self.guard.state(State.PAUSED, None)
        self._may_run.wait()
        if not self.stopping.is_set():
            self.guard.state(State.RUNNING, None)


class TaskHost:
    """Runs each task in a separate thread. Any thread may call the methods."""

    def __init__(
        self,
        worker: WorkerConfig,
        plugins: Plugins,
        guard_of: Callable[[TaskSpec], Guard],
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._worker = worker
        self._guard_of = guard_of
        self._now_ms = now_ms
        self._plugins = plugins
        self._clients = _Clients()
        self._running: dict[TaskId, _Running] = {}
        self._lock = threading.Lock()

    def start(self, spec: TaskSpec) -> None:
        """Start a task in its own thread. The task's ``Guard`` passes its events to the worker.

        Raises ConnectError if the task is already running or cannot start.
        """
        running = _Running(spec, self._make, self._guard_of(spec))
        with self._lock:
            if spec.id in self._running:
                raise ConnectError(f"Task already exists in this worker: {spec.id}")
            try:
                running.thread.start()
            except RuntimeError as error:  # the process may have no more threads
                raise ConnectError(f"Task {spec.id} cannot be started: {error}") from error
            self._running[spec.id] = running

    def pause(self, task: TaskId) -> None:
        """Pause a task after its current call. It keeps its partitions and connections."""
        if running := self._running.get(task):
            running.pause()

    def resume(self, task: TaskId) -> None:
        if running := self._running.get(task):
            running.resume()

    def stop(self, tasks: Iterable[TaskId], timeout_ms: int) -> None:
        """Stop these tasks, all at the same time. Tasks that are still running after ``timeout_ms`` are abandoned."""
        with self._lock:
            ended = [self._running.pop(one) for one in tasks if one in self._running]
        for running in ended:
            running.stop()
        deadline = time.monotonic() + timeout_ms / 1000
        for running in ended:
            running.thread.join(max(0.0, deadline - time.monotonic()))
            if running.thread.is_alive():
                _log.error("Task %s did not stop within %s ms and is abandoned.", running.spec.id, timeout_ms)
            running.guard.abandon()

    def close(self, timeout_ms: int) -> None:
        """Stop all tasks like ``stop``, and close the connections."""
        self.stop(list(self._running), timeout_ms)
        self._clients.close()

    def _make(self, running: _Running) -> SinkRun | SourceRun:
        """Create a task and its parts, in its own thread. Raises ConfigError, ConnectError."""
        spec, worker = running.spec, self._worker
        conversion = Conversion(spec, worker, self._plugins)
        producer = ClientSettings.of("producer", worker, spec.connector_config)
        client_id = worker["client.id"] or "connect"
        cluster = self._clients.cluster(producer.connection(worker, client_id), running.held)
        interval_ms = worker["offset.flush.interval.ms"]
        settings = spec.settings()
        tolerance = Tolerance(spec.id, settings, None, running.stopping, now_ms=self._now_ms)
        writer = TopicWriter(cluster, producer)
        task_class = spec.task_config["task.class"]
        if not spec.is_sink:
            source: SourceTask = self._plugins.make(task_class, SourceTask)  # type: ignore[type-abstract]
            topics = TopicMaker(cluster, spec.connector_config, is_enabled=worker["topic.creation.enable"])
            if spec.exactly_once is not None:
                own = TransactionWriter(cluster, producer, spec.exactly_once.transactional_id)
                return self._exactly_once(spec.exactly_once, spec, source, conversion, tolerance, own, topics, running)
            return SourceRun(
                spec, source, conversion, tolerance, writer, topics, running.guard, commit_interval_ms=interval_ms
            )
        sink: SinkTask = self._plugins.make(task_class, SinkTask)  # type: ignore[type-abstract]
        if settings["errors.deadletterqueue.topic.name"]:
            tolerance.send_dead = DeadLetterTopic(cluster, writer, settings).send
        consumer = ClientSettings.of("consumer", worker, spec.connector_config)
        connection = consumer.connection(worker, client_id)
        feed = self._clients.feed(connection, consumer.isolation, running.held)
        return SinkRun(
            spec,
            sink,
            conversion,
            tolerance,
            consumer,
            self._clients.cluster(connection, running.held),
            feed,
            running.guard,
            commit_interval_ms=interval_ms,
        )

    def _exactly_once(
        self,
        how: ExactlyOnce,
        spec: TaskSpec,
        task: SourceTask,
        conversion: Conversion,
        tolerance: Tolerance,
        writer: TransactionWriter,
        topics: TopicMaker,
        running: _Running,
    ) -> ExactlyOnceRun:
        settings = spec.settings()
        requests = Requests() if settings["transaction.boundary"].lower() == "connector" else None
        boundary: Boundary
        if requests is not None:
            boundary = ByTask(requests)
        elif settings["transaction.boundary"].lower() == "interval":
            given_ms = settings["transaction.boundary.interval.ms"]
            interval_ms = self._worker["offset.flush.interval.ms"] if given_ms is None else given_ms
            boundary = ByInterval(interval_ms, self._now_ms())
        else:
            boundary = ByPoll()
        return ExactlyOnceRun(
            spec,
            task,
            conversion,
            tolerance,
            writer,
            topics,
            running.guard,
            offsets_topic=how.offsets_topic,
            boundary=boundary,
            requests=requests,
        )
