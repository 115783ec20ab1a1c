"""The engine that gives tasks to hosts, with hosts that only note what they are told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pytest

from parley.pipeline.connect import placement, spark
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder import State, TaskId
from parley.pipeline.connect.offsets import SourceOffset
from parley.pipeline.connect.spark import SparkEngine, _Host, _Told
from parley.pipeline.connect.tasks.peer import Peer, PeerLost
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig
from tests.pipeline.connect.driving import until

WAIT_S = 60.0
GIVEN = {
    "bootstrap.servers": "nowhere:1",
    "key.converter": "StringConverter",
    "value.converter": "StringConverter",
    "offset.storage.file.filename": "nothing",
}
TASK = TaskId("c", 0)


def spec(incarnation: int = 1, task: TaskId = TASK) -> TaskSpec:
    return TaskSpec(id=task, tasks=9, incarnation=incarnation, is_sink=True, connector_config={}, task_config={})


class Clock:
    """A clock that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Noted:
    """Reports, noted."""

    def __init__(self) -> None:
        self.states: list[tuple[TaskId, State, str | None]] = []
        self.stored_offsets: list[Any] = []

    def state(self, spec: TaskSpec, state: State, trace: str | None) -> None:
        self.states.append((spec.id, state, trace))

    def topic_used(self, spec: TaskSpec, topic: str) -> None:
        return

    def encoded(self, spec: TaskSpec, offsets: Sequence[Any]) -> list[tuple[bytes, bytes | None]]:
        return []

    def fence(self, spec: TaskSpec) -> None:
        return

    def verify(self, spec: TaskSpec) -> None:
        return

    def stored(self, spec: TaskSpec, partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        return [None for _ in partitions]

    def store(self, spec: TaskSpec, offsets: Sequence[SourceOffset]) -> None:
        self.stored_offsets.append(offsets)


class NotingPeer:
    """The other end of no connection."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.on_tell: Callable[[], object] = lambda: None
        self.is_lost = False

    def tell(self, method: str, *arguments: Any) -> None:
        self.on_tell()
        self.said.append((method, arguments[0].incarnation if method == "start" else arguments[0]))

    def call(self, method: str, *arguments: Any) -> None:
        if self.is_lost:
            raise PeerLost("gone")
        self.said.append((method, arguments[0]))

    def close(self) -> None:
        self.is_lost = True


class Engine(SparkEngine):
    """The engine without Spark."""

    def __init__(self) -> None:
        super().__init__(WorkerConfig.parse(GIVEN, STANDALONE))
        self.noted = self._reports = Noted()
        self._gathered = True
        self.house = threading.Thread(target=self._house, daemon=True)
        self.house.start()

    def host(self) -> tuple[_Host, NotingPeer]:
        """One more host."""
        host, peer = _Host(), NotingPeer()
        host.peer = cast(Peer, peer)
        with self._changed:
            self._placement.hosts.append(host)
            self._changed.notify_all()
        return host, peer

    def told(self, host: _Host) -> _Told:
        return _Told(partial(self._owns, host), partial(self._failed, host), self._reports)

    def wake(self) -> None:
        """As when the time has come."""
        with self._changed:
            self._changed.notify_all()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(spark, "clock_s", clock)
    return clock


@pytest.fixture
def engine(clock: Clock) -> Iterator[Engine]:
    engine = Engine()
    yield engine
    engine._stopping.set()
    engine.wake()
    engine.house.join(WAIT_S)


def test_what_is_told_of_a_task_comes_in_order(engine: Engine) -> None:
    _, peer = engine.host()
    begins, goes_on = threading.Event(), threading.Event()

    def wait() -> None:
        begins.set()
        goes_on.wait(WAIT_S)

    peer.on_tell = wait
    engine.start_task(spec())
    assert begins.wait(WAIT_S)
    assert not engine._changed.acquire(blocking=False)  # nobody can say anything of the task in between
    stopping = threading.Thread(target=engine.stop_tasks, args=([TASK], 1000))
    stopping.start()
    goes_on.set()
    stopping.join(WAIT_S)
    assert peer.said == [("start", 1), ("stop", [TASK])]


def test_a_restart_waits_until_the_lost_host_cannot_run_the_task_any_more(engine: Engine, clock: Clock) -> None:
    lost, old = engine.host()
    engine.start_task(spec())
    until(lambda: old.said, bool)
    _, other = engine.host()
    engine._lost(lost)
    assert engine.noted.states == [(TASK, State.RESTARTING, None)]

    def restart() -> None:
        engine.stop_tasks([TASK], 1000)
        engine.start_task(spec(2))

    restarting = threading.Thread(target=restart)
    restarting.start()
    clock.now_s += placement.FENCE_S - 1
    engine.wake()
    engine.start_task(spec(9, TaskId("another", 0)))
    until(lambda: other.said, bool)
    assert other.said == [("start", 9)]
    assert restarting.is_alive()
    clock.now_s += 1
    engine.wake()
    restarting.join(WAIT_S)
    until(lambda: other.said, lambda said: said[1:] == [("start", 2)])


def test_a_stop_that_is_not_answered_waits_as_well(engine: Engine, clock: Clock) -> None:
    _, peer = engine.host()
    engine.start_task(spec())
    until(lambda: peer.said, bool)
    peer.is_lost = True
    stopping = threading.Thread(target=engine.stop_tasks, args=([TASK], 1000))
    stopping.start()
    until(lambda: engine._placement.hosts, lambda hosts: not hosts)
    clock.now_s += placement.FENCE_S - 1
    engine.wake()
    assert stopping.is_alive()
    clock.now_s += 1
    engine.wake()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()


def test_a_lost_host_stores_and_says_nothing_more(engine: Engine) -> None:
    host, peer = engine.host()
    engine.start_task(spec())
    until(lambda: peer.said, bool)
    told = engine.told(host)
    told.store(spec(), [])
    engine._lost(host)
    with pytest.raises(ConnectError, match="another host"):
        told.store(spec(), [])
    for ask in (told.fence, told.verify):
        with pytest.raises(ConnectError, match="another host"):
            ask(spec())
    told.state(spec(), State.RUNNING, None)
    assert len(engine.noted.stored_offsets) == 1
    assert State.RUNNING not in [state for _, state, _ in engine.noted.states]


def test_a_task_that_kills_its_hosts_fails_and_says_why(engine: Engine, clock: Clock) -> None:
    engine.start_task(spec())
    for _ in range(placement.DEATHS_MAX):
        host, peer = engine.host()
        until(lambda peer=peer: peer.said, bool)  # type: ignore[misc]
        clock.now_s += 1
        engine._lost(host)
        clock.now_s += placement.FENCE_S
        engine.wake()
    task, state, trace = engine.noted.states[-1]
    assert (task, state) == (TASK, State.FAILED)
    assert "executor" in str(trace)
    _, peer = engine.host()
    engine.start_task(spec(7, TaskId("another", 0)))
    until(lambda: peer.said, lambda said: said == [("start", 7)])


def test_an_engine_that_has_stopped_takes_in_nobody(engine: Engine) -> None:
    """Not even those of the next one, whose socket may have the same number."""

    def threads() -> set[threading.Thread]:  # brokers of other tests start threads of other names at any time
        return {each for each in threading.enumerate() if each.name == "connect on spark"}

    before = threads()
    engine._open(engine.noted, "127.0.0.1")
    assert threads() - before
    engine.stop(0)
    until(lambda: threads() - before, lambda left: not left)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(engine._plan.address)


def test_a_host_that_cannot_be_taken_in_is_not_the_last(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_ACCEPT_PAUSE_S", 0)
    errors: list[OSError] = []

    class Listener:
        def accept(self) -> None:
            errors.append(OSError(24, "Too many open files"))
            if len(errors) == 3:
                engine._stopping.set()
            raise errors[-1]

    engine._accept(cast(Any, Listener()))
    assert len(errors) == 3
