"""A worker that a test drives instead of a herder: its events are recorded, and the test can wait for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from parley.pipeline.connect.herder_results import State, TargetState, TaskId
from parley.pipeline.connect.offset_stores import FileOffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.worker import Worker
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig

WAIT_S = 120.0
_POLL_S = 0.02
HERE = "tests.pipeline.connect.sample"


class Told:
    """The events of a worker, as the latest state of each connector and task."""

    def __init__(self) -> None:
        self.states: dict[str | TaskId, State] = {}
        self.events: list[tuple[str | TaskId, State]] = []
        """All events, including states that do not last."""
        self.traces: dict[str | TaskId, str | None] = {}
        self.topics: set[tuple[TaskId, str]] = set()
        self.reconfigured: list[str] = []
        self._changed = threading.Condition()

    def connector_state(self, name: str, state: State, trace: str | None) -> None:
        self._note(name, state, trace)

    def task_state(self, task: TaskId, state: State, trace: str | None) -> None:
        self._note(task, state, trace)

    def reconfigure(self, name: str) -> None:
        with self._changed:
            self.reconfigured.append(name)
            self._changed.notify_all()

    def topic_used(self, task: TaskId, topic: str) -> None:
        self.topics.add((task, topic))

    def fence(self, task: TaskId) -> None:
        raise AssertionError("a worker that is alone fences nothing")

    def verify(self, task: TaskId, generation: int) -> None:
        raise AssertionError("a worker that is alone fences nothing")

    def _note(self, of: str | TaskId, state: State, trace: str | None) -> None:
        with self._changed:
            self.states[of], self.traces[of] = state, trace
            self.events.append((of, state))
            self._changed.notify_all()

    def wait(self, of: str | TaskId, state: State) -> str | None:
        """Wait until the connector or task is in the state. Returns the reason if it failed."""
        with self._changed:
            reached = self._changed.wait_for(lambda: self.states.get(of) is state, WAIT_S)
            assert reached, f"{of} is {self.states.get(of)}: {self.traces.get(of)}"
            return self.traces[of]

    def was(self, of: str | TaskId, state: State) -> None:
        """Wait until the connector or task is, or has been, in the state."""
        with self._changed:
            assert self._changed.wait_for(lambda: (of, state) in self.events, WAIT_S), f"{of} was never {state}"


def until(look: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    """Call `look` repeatedly, for a limited time, until the result is right. Returns the result."""
    waiting = threading.Event()
    found = None
    for _ in range(int(WAIT_S / _POLL_S)):
        found = look()
        if is_right(found):
            return found
        waiting.wait(_POLL_S)
    raise AssertionError(f"still {str(found)[:1000]}")


class Driven:
    """A worker and its recorded events."""

    def __init__(self, worker: Worker, told: Told) -> None:
        self.worker = worker
        self.told = told
        self._configs: dict[str, dict[str, str]] = {}

    def run(self, name: str, kind: str, **config: object) -> list[TaskId]:
        """Start a connector of `sample`, and its tasks. Underscores in keys stand for dots."""
        given = {"name": name, "connector.class": f"{HERE}.{kind}"}
        given |= {key.replace("_", "."): str(value) for key, value in config.items()}
        self._configs[name] = given
        self.worker.start_connector(name, given, TargetState.STARTED)
        self.told.wait(name, State.RUNNING)
        tasks = [TaskId(name, at) for at in range(len(self.worker.task_configs(name)))]
        for task in tasks:
            self.start(task)
        return tasks

    def start(self, task: TaskId, target: TargetState = TargetState.STARTED) -> None:
        configs = self.worker.task_configs(task.connector)
        self.told.states.pop(task, None)
        self.worker.start_task(task, len(configs), self._configs[task.connector], configs[task.task], target)

    def restart(self, task: TaskId) -> None:
        self.worker.stop_tasks([task])
        self.start(task)

    def offsets(self, name: str) -> Sequence[Any]:
        return self.worker.offsets(name, self._configs[name])


@contextmanager
def driven(bootstrap: str, folder: Path, **more: str) -> Iterator[Driven]:
    """Run a worker with its offsets in a file of the folder. Its tasks run in threads by default."""
    told = Told()
    given = {
        "bootstrap.servers": bootstrap,
        "key.converter": "StringConverter",
        "value.converter": "StringConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "100",
    } | {key.replace("_", "."): value for key, value in more.items()}
    config = WorkerConfig.parse(given, STANDALONE)
    worker = Worker(config, Plugins(), FileOffsetStore(folder / "offsets"), told)
    worker.start()
    try:
        yield Driven(worker, told)
    finally:
        worker.stop()


def create(bootstrap: str, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
    admin.create_topics([new])[topic].result()


def produce(bootstrap: str, topic: str, values: Sequence[str | bytes | None], **more: Any) -> None:
    """Produce records without keys, to partition 0 by default."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value, **{"partition": 0, **more})
    assert producer.flush(WAIT_S) == 0


def consume(bootstrap: str, topic: str, count: int) -> list[Any]:
    """Return the first ``count`` records of a topic."""
    settings: Mapping[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader-of-tests",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(dict(settings))
    consumer.subscribe([topic])
    found: list[Any] = []
    try:
        while len(found) < count:
            found += [one for one in consumer.consume(count - len(found), WAIT_S) if one.error() is None]
    finally:
        consumer.close()
    return found
