"""A sink task step by step: which records are put again, and in which order, after a failure at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from parley import Broker
from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.connect import (
    ExactlyOnceSinkTask,
    OffsetRange,
    RetriableError,
    SinkRecord,
    SinkTask,
    TopicPartition,
    groups,
)
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder_results import TaskId
from parley.pipeline.connect.offset_stores import FileOffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.host import TaskHost, _Running
from parley.pipeline.connect.tasks.sink_run import SinkRun
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig
from tests.pipeline.connect.driving import Told, create, produce, until

HERE = "tests.pipeline.connect.test_sink_steps"
STEP_S = 0.1


class BufferingTask(SinkTask):
    """Buffers records until it is told to flush. A failed flush loses the buffer."""

    done: ClassVar[list[str]] = []
    put_fails = flush_fails = False
    order: ClassVar[list[str]] = []

    def start(self, props: Mapping[str, str]) -> None:
        self.context.timeout(0)
        self._kept: list[str] = []

    def put(self, records: Sequence[SinkRecord]) -> None:
        if self.put_fails and records:
            self.order.append("refused")
            self.context.timeout(0)
            raise RetriableError("later")
        self._kept += [str(one.value) for one in records]
        self.order.extend(str(one.value) for one in records)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        kept, self._kept = self._kept, []
        if self.flush_fails:
            self.order.append("lost")
            raise ValueError("told to")
        self.done.extend(kept)


class TransactionsTask(ExactlyOnceSinkTask):
    """Writes to a target that can be unavailable."""

    is_down = False
    ranges: ClassVar[list[tuple[int, int]]] = []
    asked = 0

    def start(self, props: Mapping[str, str]) -> None:
        return

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        type(self).asked += 1
        self._reach()
        return {one: self.ranges[-1][1] for one in partitions if self.ranges}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        self._reach()
        self.ranges.append((offsets.start, offsets.end))

    def _reach(self) -> None:
        if self.is_down:
            self.context.timeout(0)
            raise RetriableError("away")


def silent(spec: TaskSpec) -> Guard:
    """Return a guard whose events reach no herder."""
    return Guard(spec, Told(), lambda: FileOffsetStore("unused"))


@pytest.fixture(scope="module")
def bootstrap(connect_broker: Broker) -> str:
    return connect_broker.bootstrap_servers


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    with Cluster(Connection(bootstrap=bootstrap)) as cluster:
        yield cluster


Begin = Callable[..., SinkRun]


@pytest.fixture
def begin(bootstrap: str, tmp_path: Path) -> Iterator[Begin]:
    """Start a task on a topic that acts only when the test takes a step."""
    given = {
        "bootstrap.servers": bootstrap,
        "key.converter": "StringConverter",
        "value.converter": "StringConverter",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "offset.flush.interval.ms": "100000000",
    }
    host = TaskHost(WorkerConfig.parse(given, STANDALONE), Plugins(), silent)

    def begin(topic: str, task: type[SinkTask], guard: Guard | None = None) -> SinkRun:
        spec = TaskSpec(
            id=TaskId(topic, 0),
            tasks=1,
            is_sink=True,
            connector_config={"name": topic, "connector.class": f"{HERE}.Nothing", "topics": topic},
            task_config={"task.class": f"{HERE}.{task.__name__}", "topics": topic},
        )
        run = host._make(_Running(spec, host._make, silent(spec) if guard is None else guard))
        assert isinstance(run, SinkRun)
        run.begin()
        return run

    yield begin
    host.close(0)


def stepped(run: SinkRun, is_right: Callable[[], bool]) -> None:
    def step() -> bool:
        run.step(STEP_S)
        return is_right()

    until(step, bool)


def test_a_batch_to_be_put_again_includes_the_lost_records(
    bootstrap: str, cluster: Cluster, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = BufferingTask
    monkeypatch.setattr(task, "done", [])
    monkeypatch.setattr(task, "order", [])
    create(bootstrap, "steps")
    run = begin("steps", task)
    produce(bootstrap, "steps", ["1", "2"])
    stepped(run, lambda: task.order == ["1", "2"])
    monkeypatch.setattr(task, "put_fails", True)
    produce(bootstrap, "steps", ["3", "4"])
    stepped(run, lambda: "refused" in task.order)
    monkeypatch.setattr(task, "flush_fails", True)
    run.commit()
    assert task.order[-1] == "lost"
    assert groups.committed(cluster, "connect-steps") == {}
    monkeypatch.setattr(task, "put_fails", False)
    monkeypatch.setattr(task, "flush_fails", False)
    stepped(run, lambda: "4" in task.order)
    run.commit()
    assert task.done == ["1", "2", "3", "4"]
    assert groups.committed(cluster, "connect-steps") == {TopicPartition("steps", 0): 4}
    run.finish()


def test_a_target_that_is_away_for_a_while_fails_no_exactly_once_task(
    bootstrap: str, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TransactionsTask
    monkeypatch.setattr(task, "ranges", [])
    monkeypatch.setattr(task, "is_down", True)
    create(bootstrap, "away")
    run = begin("away", task)
    produce(bootstrap, "away", ["a"])
    for _ in range(3):
        run.step(STEP_S)
    monkeypatch.setattr(task, "is_down", False)
    stepped(run, lambda: task.ranges == [(0, 1)])
    monkeypatch.setattr(task, "is_down", True)
    produce(bootstrap, "away", ["b"])
    asked = task.asked
    stepped(run, lambda: task.asked > asked + 1)
    # The operation that failed had succeeded after all: it is not repeated.
    task.ranges.append((1, 2))
    monkeypatch.setattr(task, "is_down", False)
    produce(bootstrap, "away", ["c"])
    stepped(run, lambda: len(task.ranges) == 3)
    assert task.ranges == [(0, 1), (1, 2), (2, 3)]
    run.finish()


def test_who_may_act_no_longer_puts_and_commits_nothing(
    bootstrap: str, cluster: Cluster, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = BufferingTask
    monkeypatch.setattr(task, "done", [])
    monkeypatch.setattr(task, "order", [])
    create(bootstrap, "over")
    guard = silent(TaskSpec(id=TaskId("over", 0), tasks=1, is_sink=True, connector_config={}, task_config={}))
    run = begin("over", task, guard)
    produce(bootstrap, "over", ["1"])
    stepped(run, lambda: task.order == ["1"])
    guard.abandon()
    with pytest.raises(ConnectError, match="abandoned"):
        run.step(STEP_S)
    run.commit()
    run.finish()
    assert task.order == ["1"]
    assert groups.committed(cluster, "connect-over") == {}
