"""Tasks on Spark: all connectors of a worker in one streaming query, whose micro-batches are leases on Spark's slots.

A query for each connector collapses past eight; so there is one. Its batch is a job with a partition for each of
``spark.hosts`` slots, and each partition is a host of tasks (:mod:`pipeline.connect.tasks.remote`): a process that runs
tasks in threads, as this worker tells it over a connection. Rules:

1. A batch lasts as long as the worker wants its tasks to run. Starting, pausing or stopping one task is a message to
   its host and touches no other task; there is no round that a slow task could hold up.
2. A host that dies (its executor, its machine) is begun anew by Spark, which retries the partition; its tasks start on
   the hosts that are left, from the offsets committed last. Until a lost host must have noticed that it is lost, its
   tasks are not started elsewhere.
3. If the query itself fails it is started again, after a pause, and all tasks with it; Spark too, if it has stopped
   or its Java has ended, unless somebody else has started it.
4. Progress is kept in Kafka and in the offset store, never in the query's checkpoint, which is a temporary folder.
"""

from __future__ import annotations

import logging
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, Listener
from typing import TYPE_CHECKING, Any, Final

from pipeline.connect.errors import ConnectError
from pipeline.connect.herder import State, TaskId
from pipeline.connect.tasks.peer import SILENCE_S, Peer, PeerLost
from pipeline.connect.tasks.remote import HostPlan, host_tasks
from pipeline.connect.tasks.sealed import sealed
from pipeline.connect.tasks.spec import Reports, TaskSpec
from pipeline.connect.worker_config import WorkerConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkEngine"]

QUERY_NAME: Final = "parley-connect"
_GATHER_S: Final = 10.0
"""How long tasks wait for all hosts, so that they are spread evenly."""
_RESTART_S: Final = 5.0
_ACCEPT_PAUSE_S: Final = 1.0
_GREETINGS_AT_ONCE: Final = 64
_LOOPBACK: Final = "127.0.0.1"
_OWN_KEYS: Final = frozenset({"spark.master", "spark.hosts"})
_log = logging.getLogger(__name__)


class _Host:
    """A host as the worker sees it. Everything but the peer belongs to the engine's lock."""

    peer: Peer

    def __init__(self) -> None:
        self.tasks: dict[TaskId, TaskSpec] = {}
        self.failed: set[int] = set()
        """Incarnations that have failed: they are started again by whoever asks for it, not because a host is lost."""


class _Told:
    """What a host may call: the worker's reports, failures noted."""

    def __init__(self, host: _Host, reports: Reports) -> None:
        self._host = host
        self.topic_used = reports.topic_used
        self.stored = reports.stored
        self.store = reports.store
        self._state = reports.state

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        if state is State.FAILED:
            self._host.failed.add(spec.incarnation)
        self._state(spec, state, trace)


class SparkEngine:
    """See the module's rules."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._worker = worker
        self._hosts: list[_Host] = []
        self._homeless: dict[TaskId, TaskSpec] = {}
        """Tasks that wait for a host."""
        self._live: dict[TaskId, int] = {}
        """Tasks that are to run, with their incarnations."""
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._greeting = threading.Semaphore(_GREETINGS_AT_ONCE)
        self._gathered = False
        self._leased = False
        self._wanted = 1
        self._session: SparkSession | None = None
        self._listener: Listener | None = None
        self._supervisor: threading.Thread | None = None

    # The engine's life.

    def start(self, reports: Reports) -> None:
        """Start Spark and the query. Raises SparkMissing, SparkFailed and JavaMissing, whose texts are for the user."""
        from pipeline.session import require_spark

        require_spark()
        from pyspark import SparkContext

        self._owns_session = SparkContext._active_spark_context is None
        context = self._start_spark().sparkContext
        address = _LOOPBACK
        if not context.master.startswith("local"):  # hosts may be on other machines
            address = context.getConf().get("spark.driver.host", "") or socket.gethostname()
        self._open(reports, address)
        self._supervisor = _thread(self._supervise)
        self._supervisor.start()

    def _open(self, reports: Reports, address: str) -> None:
        """Let hosts come, to this address, and give them tasks."""
        self._reports = reports
        self._listener = Listener((address, 0))
        self._plan = HostPlan((address, int(self._listener.address[1])), secrets.token_bytes(32), self._worker)
        for one in (_thread(self._accept, self._listener), _thread(self._house)):
            one.start()

    def _start_spark(self) -> SparkSession:
        from pipeline.session import spark_session

        given = {key: value for key, value in self._worker.given.items() if key.startswith("spark.")}
        settings = {key: value for key, value in given.items() if key not in _OWN_KEYS}
        self._session = spark_session("parley-connect", master=self._worker["spark.master"], settings=settings)
        self._wanted = self._worker["spark.hosts"] or self._session.sparkContext.defaultParallelism
        return self._session

    def stop(self, timeout_ms: int) -> None:
        """Stop all tasks, the query, and Spark if it was started here."""
        with self._changed:
            self._stopping.set()
            hosts = list(self._hosts)
            self._changed.notify_all()
        for one in hosts:
            with suppress(PeerLost):
                one.peer.tell("end")
        if self._supervisor is not None:
            self._supervisor.join(timeout_ms / 1000 + _GATHER_S)
        if self._listener is not None:
            self._listener.close()
        if self._session is not None and self._owns_session:
            self._session.stop()

    def _supervise(self) -> None:
        """Keep the query running, and Spark."""
        while not self._stopping.is_set():
            with tempfile.TemporaryDirectory(prefix="parley-connect-", ignore_cleanup_errors=True) as checkpoint:
                try:
                    query = self._query(self._running_spark(), checkpoint)
                    while not query.awaitTermination(1):
                        if self._stopping.is_set():
                            self._end(query)
                except Exception as error:
                    if not self._stopping.is_set():
                        _log.error("The query of the connectors failed and is started again: %s", error)
            self._stopping.wait(_RESTART_S)

    def _running_spark(self) -> SparkSession:
        """Spark, started again if it does not run any longer and was started here."""
        from pipeline.session import forget_session, is_running

        assert self._session is not None
        if is_running(self._session) or not self._owns_session:
            return self._session
        _log.error("Spark has ended, and is started again with all tasks of this worker.")
        forget_session(self._session)
        return self._start_spark()

    def _query(self, session: SparkSession, checkpoint: str) -> Any:
        ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = ticks.writeStream.queryName(QUERY_NAME).foreachBatch(self._lease)
        return writer.option("checkpointLocation", checkpoint).start()

    def _lease(self, tick: DataFrame, number: int) -> None:
        """A batch: hosts in Spark's slots, until they end."""
        if self._stopping.is_set():
            return
        context = tick.sparkSession.sparkContext
        context.setJobDescription(f"tasks of Connect in {self._wanted} hosts")
        with self._changed:
            self._leased, self._gathered = True, False
        try:
            context.parallelize(range(self._wanted), self._wanted).foreachPartition(partial(_host, self._plan))
        finally:
            with self._changed:
                self._leased = False
                self._changed.notify_all()

    def _end(self, query: Any) -> None:
        """End the query, once its hosts have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._leased, _GATHER_S)
        with suppress(Exception):
            query.stop()

    # Hosts.

    def _accept(self, listener: Listener) -> None:
        """Take in hosts as they connect."""
        while not self._stopping.is_set():
            self._greeting.acquire()
            try:
                connection = listener.accept()
            except OSError as error:
                self._greeting.release()
                if not self._stopping.wait(_ACCEPT_PAUSE_S):
                    _log.warning("A host of tasks could not be taken in: %s", error)
                continue
            threading.Thread(target=self._take_in, args=(connection,), name="connect host", daemon=True).start()

    def _take_in(self, connection: Connection) -> None:
        """A host that proves that it knows the key; in a thread of its own, since a stranger may say nothing."""
        try:
            greeted = sealed(connection, self._plan.key, is_worker=True)
        except (OSError, EOFError) as error:
            _log.warning("Somebody who is no host of tasks has connected: %s", error)
            return
        finally:
            self._greeting.release()
        host = _Host()
        host.peer = Peer(greeted, _Told(host, self._reports), partial(self._lost, host))
        with self._changed:
            self._hosts.append(host)
            self._changed.notify_all()
        host.peer.start()
        if self._stopping.is_set():
            with suppress(PeerLost):
                host.peer.tell("end")

    def _lost(self, host: _Host) -> None:
        """A host is gone: its tasks need another one, once it must know that itself."""
        with self._changed:
            if host in self._hosts:
                self._hosts.remove(host)
            tasks = {task: spec for task, spec in host.tasks.items() if spec.incarnation not in host.failed}
            host.tasks = {}
            self._changed.notify_all()
        if not tasks or self._stopping.is_set():
            return
        _log.warning("A host of tasks was lost; its %s tasks are started elsewhere.", len(tasks))
        for spec in tasks.values():
            self._reports.state(spec, State.RESTARTING, None)
        if host.peer.was_silent:
            self._stopping.wait(SILENCE_S)
        with self._changed:
            wanted = {task: spec for task, spec in tasks.items() if self._live.get(task) == spec.incarnation}
            self._homeless.update(wanted)
            self._changed.notify_all()

    def _house(self) -> None:
        """Give tasks that wait to the host that has the fewest, once all hosts are there."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping.is_set() or (self._homeless and self._hosts))
                if self._stopping.is_set():
                    return
                if not self._gathered:
                    self._changed.wait_for(
                        lambda: self._stopping.is_set() or len(self._hosts) >= self._wanted, _GATHER_S
                    )
                    self._gathered = True
                    continue
                task, spec = self._homeless.popitem()
                host = min(self._hosts, key=lambda one: len(one.tasks))
                host.tasks[task] = spec
            with suppress(PeerLost):
                host.peer.tell("start", spec)

    def _host_of(self, task: TaskId) -> _Host | None:
        return next((one for one in self._hosts if task in one.tasks), None)

    # Tasks.

    def start_task(self, spec: TaskSpec) -> None:
        with self._changed:
            self._live[spec.id] = spec.incarnation
            self._homeless[spec.id] = spec
            self._changed.notify_all()

    def pause_task(self, task: TaskId) -> None:
        self._set_paused(task, is_paused=True)

    def resume_task(self, task: TaskId) -> None:
        self._set_paused(task, is_paused=False)

    def _set_paused(self, task: TaskId, *, is_paused: bool) -> None:
        with self._changed:
            host = self._host_of(task)
            specs = self._homeless if host is None else host.tasks
            if task not in specs:
                return
            specs[task] = replace(specs[task], is_paused=is_paused)
        if host is not None:
            with suppress(PeerLost):
                host.peer.tell("pause" if is_paused else "resume", task)

    def stop_tasks(self, tasks: Sequence[TaskId], timeout_ms: int) -> None:
        by_host: dict[_Host, list[TaskId]] = {}
        with self._changed:
            for task in tasks:
                self._live.pop(task, None)
                self._homeless.pop(task, None)
                host = self._host_of(task)
                if host is not None:
                    by_host.setdefault(host, []).append(task)
        stops = [
            threading.Thread(target=self._stop_on, args=(host, ones, timeout_ms)) for host, ones in by_host.items()
        ]
        for one in stops:
            one.start()
        for one in stops:
            one.join()

    def _stop_on(self, host: _Host, tasks: list[TaskId], timeout_ms: int) -> None:
        with suppress(ConnectError):
            host.peer.call("stop", tasks, timeout_ms)
        with self._changed:
            for task in tasks:
                host.tasks.pop(task, None)


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    return threading.Thread(target=work, args=arguments, name="connect on spark", daemon=True)


def _host(plan: HostPlan, _: Any) -> None:
    host_tasks(plan)
