"""The steps of an exactly-once source task, without a broker: what is written and committed, and in which order."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parley.pipeline.connect import ConnectError, SourceRecord, SourceTask
from parley.pipeline.connect.herder_results import TaskId
from parley.pipeline.connect.tasks.boundaries import Boundary, ByInterval, ByPoll, ByTask, Requests
from parley.pipeline.connect.tasks.conversion import Outgoing
from parley.pipeline.connect.tasks.exactly_once import ExactlyOnceRun
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.spec import ExactlyOnce, TaskSpec
from parley.protocol.errors import ErrorCode, KafkaError

SPEC = TaskSpec(
    id=TaskId("src", 0),
    tasks=1,
    is_sink=False,
    connector_config={},
    task_config={},
    exactly_once=ExactlyOnce("group-src-0", "offsets", 1),
)


class Task(SourceTask):
    """Returns the given batches in turn; raises those that are errors."""

    def __init__(self, done: list[str]) -> None:
        self.batches: list[Sequence[SourceRecord] | Exception] = []
        self._done = done

    def start(self, props: Mapping[str, str]) -> None:
        self._done.append("start")

    def poll(self) -> Sequence[SourceRecord] | None:
        batch = self.batches.pop(0) if self.batches else None
        if isinstance(batch, Exception):
            raise batch
        return batch

    def commit_record(self, record: SourceRecord) -> None:
        self._done.append(f"of {record.key}")

    def stop(self) -> None:
        self._done.append("stop")


class Bench:
    """A run of a task; `done` records all its external actions."""

    def __init__(self, boundary: Boundary | None = None, requests: Requests | None = None) -> None:
        self.done: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.stopping = threading.Event()
        self.now_ms = 0
        self.task = Task(self.done)
        self.guard = Guard(SPEC, cast(Any, self), lambda: cast(Any, self))
        self._is_open = False
        conversion = SimpleNamespace(outgoing=outgoing, close=lambda: None)
        tolerance = SimpleNamespace(stopping=self.stopping, now_ms=lambda: self.now_ms)
        topics = SimpleNamespace(make=lambda topic: None)
        self.run = ExactlyOnceRun(
            SPEC,
            self.task,
            cast(Any, conversion),
            cast(Any, tolerance),
            cast(Any, self),
            cast(Any, topics),
            self.guard,
            offsets_topic="offsets",
            boundary=boundary or ByPoll(),
            requests=requests,
        )

    def note(self, what: str) -> None:
        self.done.append(what)
        error = self.errors.get(what.split(" ")[0])
        if error is not None:
            raise error

    def step(self, *batches: Sequence[SourceRecord] | Exception) -> list[str]:
        """Return the actions for these batches, with one step for each."""
        self.done.clear()
        self.task.batches.extend(batches)
        for _ in batches:
            self.run.step(0)
        return self.done

    def finish(self) -> list[str]:
        self.done.clear()
        self.run.finish()
        return self.done

    # As WorkerEvents.

    def topic_used(self, task: TaskId, topic: str) -> None: ...

    def fence(self, task: TaskId) -> None:
        self.note("fence")

    def verify(self, task: TaskId, generation: int) -> None:
        self.note("verify")

    # As TopicOffsetStore.

    def encoded(self, connector: str, offsets: Sequence[Any]) -> list[tuple[bytes, bytes | None]]:
        return [(b"key", str(offset["next"]).encode()) for _, offset in offsets]

    # As TransactionWriter.

    def claim(self) -> None:
        self.note("claim")

    def write(self, records: Sequence[Outgoing]) -> None:
        if records:
            self._is_open = True
            self.note("write " + " ".join(str(one.key, "utf-8") for one in records if one.key is not None))

    def write_keyed(self, topic: str, records: Sequence[tuple[bytes, bytes]]) -> None:
        self._is_open = True
        self.note(f"{topic} " + " ".join(str(value, "utf-8") for _, value in records))

    def flush(self) -> None:
        self.note("flush")

    def commit(self) -> None:
        self._is_open = False
        self.note("commit")

    def abort(self) -> bool:
        was_open, self._is_open = self._is_open, False
        if was_open:
            self.note("abort")
        return was_open

    def close(self) -> None:
        self.note("close" if not self._is_open else "close, and abort")


def outgoing(record: SourceRecord, _: object) -> Outgoing | None:
    """Return the record unchanged, or nothing if a filter drops it."""
    if record.value == "drop":
        return None
    return Outgoing(record.topic, None, None, record.key.encode(), None, ())


def records(*keys: int, topic: str = "t", value: str = "") -> list[SourceRecord]:
    return [
        SourceRecord(topic=topic, key=str(key), value=value, source_partition={"p": 1}, source_offset={"next": key + 1})
        for key in keys
    ]


def begun(*arguments: Any) -> Bench:
    bench = Bench(*arguments)
    bench.run.begin()
    assert bench.done == ["fence", "claim", "verify", "start"]
    return bench


def test_each_batch_is_committed_with_the_offset_behind_it() -> None:
    bench = begun()
    assert bench.step(records(0, 1)) == ["write 0 1", "offsets 2", "commit", "of 0", "of 1"]
    assert bench.step([]) == ["flush"]
    assert bench.step(records(2), records(3)) == [
        *("write 2", "offsets 3", "commit", "of 2"),
        *("write 3", "offsets 4", "commit", "of 3"),
    ]
    assert bench.finish() == ["commit", "close", "stop"]


def test_an_interval_commits_several_batches_together() -> None:
    bench = begun(ByInterval(100, 0))
    assert bench.step(records(0), records(1)) == ["write 0", "flush", "write 1", "flush"]
    bench.now_ms = 100
    assert bench.step([]) == ["offsets 2", "commit", "of 0", "of 1"]
    assert bench.step(records(2)) == ["write 2", "flush"]
    assert bench.finish() == ["offsets 3", "commit", "of 2", "close", "stop"]


def test_a_task_ends_transactions_within_a_batch_and_loses_aborted_records() -> None:
    requests = Requests()
    bench = begun(ByTask(requests), requests)
    batch = records(0, 1, 2, 3)
    requests.commit_transaction(batch[0])
    requests.abort_transaction(batch[2])
    assert bench.step(batch) == [
        *("write 0", "offsets 1", "commit", "of 0"),
        *("write 1 2", "abort", "offsets 3", "commit", "of 1", "of 2"),
        *("write 3", "flush"),
    ]
    assert bench.finish() == ["close, and abort", "stop"]  # the task has not requested more


def test_offsets_of_dropped_records_are_stored_too() -> None:
    assert begun().step(records(0, value="drop")) == ["offsets 1", "commit", "of 0"]


@pytest.mark.parametrize("what", ["write", "offsets", "commit", "flush"])
def test_nothing_is_committed_after_a_failure(what: str) -> None:
    bench = begun(ByInterval(100, 0))
    bench.step(records(0))
    bench.errors[what] = KafkaError(ErrorCode.PRODUCER_FENCED)
    bench.now_ms = 0 if what == "flush" else 100
    with pytest.raises(ConnectError, match="Failed to flush offsets and/or records for task src-0: PRODUCER_FENCED"):
        bench.step(records(1))
    assert bench.finish()[-2:] == ["close, and abort" if what != "commit" else "close", "stop"]
    assert not {"commit", "offsets 2"} & set(bench.done)


def test_nothing_is_committed_after_a_failure_of_the_task() -> None:
    bench = begun(ByInterval(100, 0))
    bench.step(records(0))
    with pytest.raises(ValueError, match="by itself"):
        bench.step(ValueError("by itself"))
    assert bench.finish() == ["close, and abort", "stop"]


def test_an_expired_transaction_is_explained() -> None:
    bench = begun()
    bench.errors["commit"] = KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    with pytest.raises(ConnectError, match="was unable to finish writing records to Kafka before its producer"):
        bench.step(records(0))


def test_a_task_that_may_not_act_any_longer_commits_nothing() -> None:
    bench = begun(ByInterval(100, 0))
    bench.step(records(0))
    bench.guard.abandon()
    assert bench.finish() == ["close, and abort", "stop"]


def test_a_task_that_is_stopped_before_it_begins_claims_nothing() -> None:
    bench = Bench()
    bench.stopping.set()
    bench.run.begin()
    assert bench.done == ["fence"]
    assert bench.finish() == ["close"]


@pytest.mark.parametrize(("what", "done"), [("fence", 1), ("claim", 2), ("verify", 3)])
def test_a_task_that_may_not_begin_is_not_started(what: str, done: int) -> None:
    bench = Bench()
    bench.errors[what] = ConnectError("newer tasks")
    with pytest.raises(ConnectError, match="newer tasks"):
        bench.run.begin()
    assert bench.done == ["fence", "claim", "verify"][:done]
    assert bench.finish() == ["close"]


def test_no_records_go_to_the_topic_of_offsets() -> None:
    bench = begun()
    with pytest.raises(ConnectError, match="may not produce to their own offsets topics"):
        bench.step(records(0, topic="offsets"))
    assert bench.finish() == ["close", "stop"]
