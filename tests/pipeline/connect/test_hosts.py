"""Processes with tasks, as Spark begins them, but without Spark: one that is silent, one that dies, and strangers."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from parley import Broker
from parley.pipeline.connect import placement
from parley.pipeline.connect.herder import State, TargetState, TaskId
from parley.pipeline.connect.offsets import FileOffsetStore, OffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.spark import SparkEngine
from parley.pipeline.connect.tasks import peer
from parley.pipeline.connect.tasks.spec import Reports
from parley.pipeline.connect.worker import Worker, WorkerEvents
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig
from tests.pipeline.connect.driving import Driven, Told, create, produce, until
from tests.pipeline.connect.workers import Reader, counter, group_worker
from tests.pipeline.connect.workers import until as until_async

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SILENCE_S, BEAT_S, STOP_S, FENCE_S = 5.0, 0.2, 0.5, 7.0
"""The silence where a host falls silent; the fence is longer than that, and as long as is needed for hosts that die."""
SINKS = 4
COUNT = 4_000


def program(silence_s: float) -> str:
    """What a host runs."""
    return (
        "import pickle, sys; from parley.pipeline.connect.tasks import peer, remote; "
        f"peer.SILENCE_S, peer.BEAT_S, remote.STOP_S = {silence_s}, {BEAT_S}, {STOP_S}; "
        "remote.host_tasks(pickle.load(sys.stdin.buffer))"
    )


class HostsEngine(SparkEngine):
    """The engine with processes of this machine in the place of Spark's."""

    def __init__(self, worker: WorkerConfig) -> None:
        super().__init__(worker)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, reports: Reports) -> None:
        self._wanted = 2
        self._open(reports, "127.0.0.1")
        for _ in range(self._wanted):
            self.add()

    @property
    def port(self) -> int:
        return self._plan.address[1]

    def add(self) -> None:
        """Begin another process."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-c", program(peer.SILENCE_S)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(self._plan))
        process.stdin.close()
        process.stdin = None  # else `communicate` would write to it
        self.processes.append(process)

    def begun(self) -> int:
        """How many have come."""
        return len(self._placement.hosts)


class Run:
    """A worker on such processes, and sinks that all write what one topic has."""

    def __init__(self, engine: HostsEngine, driven: Driven, bootstrap: str, folder: Path) -> None:
        self.engine = engine
        self.driven = driven
        self.topic = f"hosts-{uuid4().hex[:8]}"
        self._bootstrap = bootstrap
        self._folder = folder
        self.names = [f"ranges{number}" for number in range(SINKS)]
        create(bootstrap, self.topic)
        for name in self.names:
            (folder / name).mkdir()
            driven.run(name, "Ranges", topics=self.topic, folder=folder / name)
        for name in self.names:
            driven.told.wait(TaskId(name, 0), State.RUNNING)

    def goes_on(self, *values: str) -> None:
        """More comes, and each sink writes it once."""
        produce(self._bootstrap, self.topic, values)
        for name in self.names:
            until(lambda name=name: self.written(name), lambda found: {*values} <= {*found})  # type: ignore[misc]
            assert len(set(self.written(name))) == len(self.written(name))

    def written(self, name: str) -> list[str]:
        files = (self._folder / name).glob("*.range")
        return [value for file in files for _, value in json.loads(file.read_text())]


@pytest.fixture
def silence_s() -> float:
    """After how long a host counts as dead: as it is, where no host falls silent but by the slowness of the machine."""
    return peer.SILENCE_S


@pytest.fixture
def run(connect_broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence_s: float) -> Iterator[Run]:
    monkeypatch.setattr(peer, "SILENCE_S", silence_s)
    monkeypatch.setattr(placement, "FENCE_S", FENCE_S)
    monkeypatch.setattr(peer, "BEAT_S", BEAT_S)
    given = {
        "bootstrap.servers": connect_broker.bootstrap_servers,
        "key.converter": "StringConverter",
        "value.converter": "StringConverter",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
    }
    config = WorkerConfig.parse(given, STANDALONE)
    engine, told = HostsEngine(config), Told()
    worker = Worker(config, Plugins(), FileOffsetStore(tmp_path / "offsets"), engine, told)
    worker.start()
    try:
        until(engine.begun, lambda found: found == 2)
        yield Run(engine, Driven(worker, told), connect_broker.bootstrap_servers, tmp_path)
    finally:
        worker.stop()
        for process in engine.processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("silence_s", [SILENCE_S])
def test_a_silent_host_loses_its_tasks_and_harms_nothing_when_it_is_back(run: Run) -> None:
    run.goes_on("a", "b")
    silent, _ = run.engine.processes
    silent.send_signal(signal.SIGSTOP)
    until(lambda: [state for _, state in run.driven.told.events].count(State.RESTARTING), lambda n: n == SINKS // 2)
    run.goes_on("c", "d")
    run.engine.add()  # as Spark does once it knows
    silent.send_signal(signal.SIGCONT)
    _, said = silent.communicate(timeout=60)
    assert silent.returncode != 0  # Spark must begin another one in its place
    assert b"PeerLost: the worker is gone, or took this host for dead" in said
    run.goes_on("e", "f")
    for name in run.names:
        run.driven.told.wait(TaskId(name, 0), State.RUNNING)


def test_a_host_that_dies_is_replaced(run: Run) -> None:
    run.goes_on("a")
    run.driven.worker.set_target_state(run.names[0], TargetState.PAUSED)
    run.driven.told.wait(TaskId(run.names[0], 0), State.PAUSED)
    run.driven.worker.set_target_state(run.names[0], TargetState.STARTED)
    for process in run.engine.processes:
        process.kill()
    until(run.engine.begun, lambda found: found == 0)
    for name in run.names:
        run.driven.told.was(TaskId(name, 0), State.RESTARTING)
    # Its fence is over, and no other process has come.
    for name in run.names:
        reason = run.driven.told.wait(TaskId(name, 0), State.UNASSIGNED)
        assert reason is not None
        assert "none of its processes for tasks has connected" in reason
    run.engine.add()
    run.goes_on("b", "c")
    for name in run.names:
        run.driven.told.wait(TaskId(name, 0), State.RUNNING)


def test_a_host_that_has_lost_its_worker_ends_under_a_task_that_is_stuck(
    run: Run, connect_broker: Broker, tmp_path: Path
) -> None:
    topic = f"stuck-{uuid4().hex[:8]}"
    create(connect_broker.bootstrap_servers, topic)
    produce(connect_broker.bootstrap_servers, topic, ["wait"])
    run.driven.run("stuck", "Notes", topics=topic, folder=tmp_path)
    until((tmp_path / "waits").exists, bool)
    for host in list(run.engine._placement.hosts):
        host.peer.close()
    said = [process.communicate(timeout=60)[1] for process in run.engine.processes]
    assert all(process.returncode for process in run.engine.processes)
    assert [b"A task does not stop" in one for one in said].count(True) == 1


def test_strangers_get_nothing_and_hold_up_nobody(run: Run) -> None:
    strangers = [socket.create_connection(("127.0.0.1", run.engine.port)) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(len(b"n" * 32).to_bytes(4, "big") + b"n" * 32 + pickle.dumps(Any))
    strangers[2].close()
    run.engine.add()
    until(run.engine.begun, lambda found: found == 3)
    run.goes_on("a")
    for stranger in strangers:
        stranger.close()
    assert run.engine.begun() == 3


async def test_a_source_in_hosts_that_die_writes_exactly_once(
    connect_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "FENCE_S", FENCE_S)
    bootstrap, group = connect_broker.bootstrap_servers, f"hosts-{uuid4().hex[:8]}"
    engines: list[HostsEngine] = []

    def make(config: WorkerConfig, plugins: Plugins, offsets: OffsetStore, events: WorkerEvents) -> Worker:
        engines.append(HostsEngine(config))
        return Worker(config, plugins, offsets, engines[-1], events)

    async with group_worker(bootstrap, group, make, exactly_once_source_support="enabled") as worker:
        [engine] = engines
        try:
            await worker.ask("PUT", "/connectors/src/config", counter(group, COUNT))
            reader = Reader(bootstrap, group)
            await until_async(reader.read, lambda keys: len(keys) > COUNT // 4)
            for process in engine.processes:
                process.kill()
            await until_async(lambda: asyncio.to_thread(engine.begun), lambda found: found == 0)
            engine.add()
            keys = await until_async(reader.read, lambda keys: len(keys) >= COUNT)
            assert keys == [f"0-{number}" for number in range(COUNT)]
            reader.close()
        finally:
            for process in engine.processes:
                process.kill()
                process.communicate()
