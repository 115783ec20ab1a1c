"""A host of tasks in an executor: what a Spark task runs, for as long as the worker wants it to.

It connects to the worker, does what it is told, and ends when the worker says so or is gone. Its tasks may act as long
as it is leased (:mod:`parley.pipeline.connect.tasks.peer`): no longer than `SILENCE_S` after the worker has given it
up. Then it has `STOP_S` to stop them; if one is stuck, the process ends under it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client
from typing import Any

from parley.pipeline.connect.errors import stack_trace
from parley.pipeline.connect.herder import State, TaskId
from parley.pipeline.connect.offsets import SourceOffset
from parley.pipeline.connect.tasks.host import TaskHost
from parley.pipeline.connect.tasks.peer import STOP_S, Peer, PeerLost
from parley.pipeline.connect.tasks.sealed import sealed
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.worker_config import WorkerConfig

__all__ = ["HostPlan", "host_tasks"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What a host is told before it begins. Can be pickled."""

    address: tuple[str, int]
    key: bytes = field(repr=False)
    worker: WorkerConfig


class _Reports:
    """What tasks report, sent to the worker."""

    peer: Peer

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        self.peer.tell("state", spec, state, trace)

    def topic_used(self, spec: TaskSpec, topic: str) -> None:
        self.peer.tell("topic_used", spec, topic)

    def stored(self, spec: TaskSpec, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        found: list[Mapping[str, Any] | None] = self.peer.call("stored", spec, partitions)
        return found

    def encoded(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> list[tuple[bytes, bytes | None]]:
        found: list[tuple[bytes, bytes | None]] = self.peer.call("encoded", spec, offsets)
        return found

    def fence(self, spec: TaskSpec) -> None:
        self.peer.call("fence", spec)

    def verify(self, spec: TaskSpec) -> None:
        self.peer.call("verify", spec)

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        self.peer.call("store", spec, offsets)


class _Calls:
    """What the worker may call."""

    def __init__(self, host: TaskHost, reports: _Reports, over: threading.Event) -> None:
        self._host = host
        self._reports = reports
        self._over = over
        self.is_ended = False

    def start(self, spec: TaskSpec) -> None:
        try:
            self._host.start(spec)
        except Exception as error:
            self._reports.state(spec, State.FAILED, stack_trace(error))

    def pause(self, task: TaskId) -> None:
        self._host.pause(task)

    def resume(self, task: TaskId) -> None:
        self._host.resume(task)

    def stop(self, tasks: Sequence[TaskId], timeout_ms: int) -> None:
        self._host.stop(tasks, timeout_ms)

    def end(self) -> None:
        self.is_ended = True
        self._over.set()


def host_tasks(plan: HostPlan) -> None:
    """Run tasks until the worker ends it. Raises OSError where it cannot be reached, PeerLost where it is gone."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    over = threading.Event()
    reports = _Reports()
    host = TaskHost(plan.worker, reports, is_leased=lambda: reports.peer.is_leased)
    connection = Client(plan.address)
    calls = _Calls(host, reports, over)
    reports.peer = Peer(sealed(connection, plan.key, is_worker=False), calls, over.set)
    reports.peer.start()
    try:
        over.wait()
    finally:
        have_ended = host.close(int(STOP_S * 1000))
        reports.peer.close()
    if not calls.is_ended:
        if not have_ended:
            _log.error("A task does not stop, and its worker may start it elsewhere: this process ends.")
            os._exit(1)
        raise PeerLost("the worker is gone, or took this host for dead: Spark begins another host in its place")
