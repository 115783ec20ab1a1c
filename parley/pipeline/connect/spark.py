"""Tasks on Spark: all connectors of a worker in one streaming query, whose micro-batches are leases on Spark's slots.

A query for each connector collapses past eight; so there is one. Its batch is a job with a partition for each of
``spark.hosts`` slots, and each partition is a host of tasks (:mod:`parley.pipeline.connect.tasks.remote`): a process
that runs tasks in threads, as this worker tells it over a connection. Rules:

1. A batch lasts as long as the worker wants its tasks to run. Starting, pausing or stopping one task is a message to
   its host and touches no other task; there is no round that a slow task could hold up.
2. A task runs in one host at most. A host acts for its tasks only as long as the worker has answered it within the
   last `SILENCE_S`, by the host's own clock and by when it asked: one that comes back from a long pause, or reads old
   answers from its buffers, knows that its time is over before it does anything. Then it has `STOP_S` to stop its
   tasks, or ends with them. A worker that takes a host for lost (nothing heard, or the connection ended) answers it no
   more, and starts its tasks elsewhere, or lets another worker of the group start them, only after `FENCE_S`, which is
   longer than both together by a margin for what is under way. That holds for whoever asks: a restart, a stop, a
   rebalance (:mod:`parley.pipeline.connect.placement` decides, :mod:`parley.pipeline.connect.tasks.peer` has the times,
   :mod:`parley.pipeline.connect.tasks.guard` is asked by each task). Two things no worker can fence: what a call that
   hangs
   has already given to a target, which exactly-once sinks settle with the target; and a group that gives away the tasks
   of a worker that it does not hear: ``session.timeout.ms`` and ``scheduled.rebalance.max.delay.ms`` together must be
   longer than what its hosts need to notice, as they are by default.
   A host that dies (its executor, its machine) is begun anew by Spark, which retries the partition. A task whose hosts
   die again and again has failed, so that it does not take the others with it for ever.
3. If the query itself fails it is started again, after a pause, and all tasks with it; Spark too, if it has stopped
   or its Java has ended, unless somebody else has started it.
   A task that no host can take yet is UNASSIGNED, and its status says why (:mod:`parley.pipeline.connect.spark_share`).
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
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any, Final

from parley.pipeline.connect import placement
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder import State, TaskId
from parley.pipeline.connect.offsets import SourceOffset
from parley.pipeline.connect.placement import Host, Placement
from parley.pipeline.connect.spark_share import bounded, hosts_wanted, why_tasks_wait
from parley.pipeline.connect.tasks.peer import Peer, PeerLost, clock_s
from parley.pipeline.connect.tasks.remote import HostPlan, host_tasks
from parley.pipeline.connect.tasks.sealed import sealed
from parley.pipeline.connect.tasks.spec import Reports, TaskSpec
from parley.pipeline.connect.worker_config import WorkerConfig
from parley.pipeline.shipping import Shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkEngine"]

QUERY_NAME: Final = "parley-connect"
_GATHER_S: Final = 10.0
"""How long tasks wait for all hosts, so that they are spread evenly."""
_RESTART_S: Final = 5.0
_LOOK_S: Final = 1.0
"""How often the tasks that wait are looked at."""
_ACCEPT_PAUSE_S: Final = 1.0
_GREETINGS_AT_ONCE: Final = 64
_LOOPBACK: Final = "127.0.0.1"
_KILLED: Final = (
    "The process that ran this task has ended or fallen silent each time shortly after it had begun the task, which is "
    "not started again by itself since it would take the other tasks of the process with it. The log of Spark's "
    "executor says how the process ended: often its memory was at an end. Restart the task once that is mended."
)
_OWN_KEYS: Final = frozenset({"spark.master", "spark.hosts"})
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True, kw_only=True)
class _Host(Host):
    """A host with the connection to it. Everything else belongs to the engine's lock."""

    peer: Peer = field(init=False)


class _Told:
    """What a host may call: the worker's reports, as long as the host has the task that they are of."""

    def __init__(self, owns: Callable[[TaskSpec], bool], failed: Callable[[TaskSpec], None], reports: Reports) -> None:
        self._owns = owns
        self._failed = failed
        self._reports = reports
        self.stored = reports.stored
        self.encoded = reports.encoded

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        if self._owns(spec):
            if state is State.FAILED:
                self._failed(spec)
            self._reports.state(spec, state, trace)

    def topic_used(self, spec: TaskSpec, topic: str) -> None:
        if self._owns(spec):
            self._reports.topic_used(spec, topic)

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        self._check(spec)
        self._reports.store(spec, offsets)

    def fence(self, spec: TaskSpec) -> None:
        self._check(spec)
        self._reports.fence(spec)

    def verify(self, spec: TaskSpec) -> None:
        self._reports.verify(spec)
        self._check(spec)

    def _check(self, spec: TaskSpec) -> None:
        if not self._owns(spec):
            raise ConnectError(f"task {spec.id} has been given to another host")


class SparkEngine:
    """See the module's rules."""

    def __init__(self, worker: WorkerConfig) -> None:
        self._worker = worker
        self._placement = Placement[_Host]()
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._greeting = threading.Semaphore(_GREETINGS_AT_ONCE)
        self._gathered = False
        self._leased = False
        self._wanted = 1
        self._failure: Exception | None = None
        """What the query failed of, until a host comes."""
        self._session: SparkSession | None = None
        self._listener: Listener | None = None
        self._supervisor: threading.Thread | None = None

    # The engine's life.

    def start(self, reports: Reports) -> None:
        """Start Spark and the query. Raises SparkMissing, SparkFailed and JavaMissing, whose texts are for the user."""
        from parley.pipeline.session import require_spark

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
        self._plan = HostPlan((address, int(self._listener.address[1])), secrets.token_bytes(32), self._worker.of_tasks)
        for one in (_thread(self._accept, self._listener), _thread(self._house), _thread(self._tell_waiting)):
            one.start()

    def _start_spark(self) -> SparkSession:
        from parley.pipeline.session import spark_session

        given = {key: value for key, value in self._worker.given.items() if key.startswith("spark.")}
        master, hosts = self._worker["spark.master"], self._worker["spark.hosts"]
        settings = bounded({key: value for key, value in given.items() if key not in _OWN_KEYS}, master, hosts)
        self._session = spark_session("parley-connect", master=master, settings=settings)
        self._wanted = hosts_wanted(self._session.sparkContext, hosts)
        return self._session

    def stop(self, timeout_ms: int) -> None:
        """Stop all tasks, the query, and Spark if it was started here."""
        with self._changed:
            self._stopping.set()
            hosts = list(self._placement.hosts)
            self._changed.notify_all()
        for one in hosts:
            with suppress(PeerLost):
                one.peer.tell("end")
        if self._supervisor is not None:
            self._supervisor.join(timeout_ms / 1000 + _GATHER_S)
        if self._listener is not None:
            with suppress(OSError):  # who waits in `accept` does not notice that the socket is closed, and keeps it
                Client(self._plan.address).close()
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
                        self._failure = error
                        _log.error("The query of the connectors failed and is started again: %s", error)
            self._stopping.wait(_RESTART_S)

    def _running_spark(self) -> SparkSession:
        """Spark, started again if it does not run any longer and was started here."""
        from parley.pipeline.session import forget_session, is_running

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
            context.parallelize(range(self._wanted), self._wanted).foreachPartition(Shipped(partial(_host, self._plan)))
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
                if self._stopping.is_set():
                    connection.close()
                    return
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
        if not greeted.is_encrypted and self._plan.address[0] != _LOOPBACK:
            _log.warning("Messages to a host of tasks are not encrypted: install cryptography on all machines.")
        host = _Host()
        told = _Told(partial(self._owns, host), partial(self._failed, host), self._reports)
        host.peer = Peer(greeted, told, partial(self._lost, host))
        with self._changed:
            self._placement.hosts.append(host)
            self._failure = None
            self._changed.notify_all()
        host.peer.start()
        if self._stopping.is_set():
            with suppress(PeerLost):
                host.peer.tell("end")

    def _owns(self, host: _Host, spec: TaskSpec) -> bool:
        with self._changed:
            return self._placement.owns(host, spec)

    def _failed(self, host: _Host, spec: TaskSpec) -> None:
        with self._changed:
            self._placement.failed(host, spec)

    def _lost(self, host: _Host) -> None:
        """A host is gone: its tasks need another one, once it must know that itself."""
        with self._changed:
            tasks = [spec for spec in host.tasks.values() if spec.id not in host.failed]
            guilty = self._placement.lost(host, clock_s())
            self._changed.notify_all()
        if not tasks or self._stopping.is_set():
            return
        _log.warning("A host of tasks was lost; its %s tasks start elsewhere in %g s.", len(tasks), placement.FENCE_S)
        for spec in tasks:
            state, trace = (State.FAILED, _KILLED) if spec in guilty else (State.RESTARTING, None)
            self._reports.state(spec, state, trace)

    def _house(self) -> None:
        """Give tasks that wait to hosts, once all hosts are there."""
        with self._changed:
            while not self._stopping.is_set():
                placed = None
                if self._placement.has_waiting and self._placement.hosts:
                    self._gather()
                    placed = self._placement.next(clock_s())
                if placed is None:
                    self._changed.wait(self._placement.wait_s(clock_s()))
                    continue
                host, spec = placed
                with suppress(PeerLost):
                    host.peer.tell("start", spec)  # under the lock: what is told later of the task comes later

    def _tell_waiting(self) -> None:
        """Report why tasks wait that no host can take, and report it again when the reason changes."""
        told: dict[TaskId, tuple[int, str]] = {}
        while not self._stopping.wait(_LOOK_S):
            if not self._placement.has_waiting:
                told.clear()
                continue
            context = None if self._session is None else self._session.sparkContext
            reason = why_tasks_wait(context, self._plan.address, self._failure)
            with self._changed:  # so that a host reports the state of the task only after this
                for spec in self._placement.without_host(clock_s()):
                    if told.get(spec.id) != (spec.incarnation, reason):
                        told[spec.id] = spec.incarnation, reason
                        self._reports.state(spec, State.UNASSIGNED, reason)

    def _gather(self) -> None:
        """Wait a while for all hosts when they have just been begun."""
        if not self._gathered:
            self._changed.wait_for(
                lambda: self._stopping.is_set() or len(self._placement.hosts) >= self._wanted, _GATHER_S
            )
            self._gathered = True

    # Tasks.

    def start_task(self, spec: TaskSpec) -> None:
        with self._changed:
            self._placement.want(spec)
            self._changed.notify_all()

    def pause_task(self, task: TaskId) -> None:
        self._set_paused(task, is_paused=True)

    def resume_task(self, task: TaskId) -> None:
        self._set_paused(task, is_paused=False)

    def _set_paused(self, task: TaskId, *, is_paused: bool) -> None:
        with self._changed, suppress(PeerLost):
            host = self._placement.set_paused(task, is_paused=is_paused)
            if host is not None:
                host.peer.tell("pause" if is_paused else "resume", task)

    def stop_tasks(self, tasks: Sequence[TaskId], timeout_ms: int) -> None:
        """As TaskEngine; comes back only when those of hosts that were lost run no longer."""
        with self._changed:
            by_host = self._placement.give_up(tasks)
        stops = [
            threading.Thread(target=self._stop_on, args=(host, ones, timeout_ms)) for host, ones in by_host.items()
        ]
        for one in stops:
            one.start()
        for one in stops:
            one.join()
        with self._changed:
            while not self._stopping.is_set() and (fence_s := self._placement.fence_s(tasks, clock_s())) > 0:
                self._changed.wait(fence_s)

    def _stop_on(self, host: _Host, tasks: list[TaskId], timeout_ms: int) -> None:
        try:
            host.peer.call("stop", tasks, timeout_ms)
        except ConnectError as error:  # what became of the tasks is not known
            _log.warning("A host of tasks does not stop some, and is given up: %s", error)
            host.peer.close()
            self._lost(host)
        with self._changed:
            self._placement.stopped(host, tasks)


def _thread(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    return threading.Thread(target=work, args=arguments, name="connect on spark", daemon=True)


def _host(plan: HostPlan, _: Any) -> None:
    host_tasks(plan)
