"""``python -m bench.connect``: the cost of many Connect tasks in a worker.

Each topic has one sink task. The output is the CPU time of idle tasks, the latency from producing a record to its
arrival in the task, and the records per second of CPU time. The CPU time is that of all processes of the worker,
without the broker.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer

from bench.clusters import Parley
from bench.figures import OURS, Found, report
from bench.pipeline import tree_cpu_seconds
from parley.pipeline.connect import ConfigDef, ConfigType, SinkConnector, SinkRecord, SinkTask
from parley.pipeline.connect.herder_results import State, TargetState, TaskId
from parley.pipeline.connect.offset_stores import FileOffsetStore
from parley.pipeline.connect.plugins import Plugins
from parley.pipeline.connect.worker import Worker
from parley.pipeline.connect.worker_config import STANDALONE, WorkerConfig

IDLE_SECONDS = 10.0
ROUNDS = 20
ROUND_SECONDS = 0.25
VALUE_BYTES = 100


class TimingTask(SinkTask):
    """Measures the age of records that contain a time, and counts the other records."""

    def start(self, props: Mapping[str, str]) -> None:
        name = f"{os.getpid()}-{id(self)}"
        self._ages = (Path(props["folder"]) / f"ages-{name}").open("w", buffering=1)
        self._count_file = Path(props["folder"]) / f"count-{name}"
        self._count = 0

    def put(self, records: Sequence[SinkRecord]) -> None:
        now = time.time()
        counted = self._count
        for record in records:
            if record.value.startswith("x"):
                self._count += 1
            else:
                self._ages.write(f"{now - float(record.value)}\n")
        if self._count != counted:
            fresh = self._count_file.with_suffix(".new")
            fresh.write_text(str(self._count))
            os.replace(fresh, self._count_file)

    def stop(self) -> None:
        self._ages.close()


class Timing(SinkConnector):
    task_class = TimingTask
    config_def = ConfigDef().define("folder", ConfigType.STRING)


class Running:
    """Records which tasks run."""

    def __init__(self) -> None:
        self.tasks: set[TaskId] = set()
        self.changed = threading.Condition()

    def connector_state(self, name: str, state: State, trace: str | None) -> None:
        if trace:
            print(trace, file=sys.stderr)

    def task_state(self, task: TaskId, state: State, trace: str | None) -> None:
        with self.changed:
            self.tasks.add(task)
            self.changed.notify_all()

    def reconfigure(self, name: str) -> None:
        return

    def topic_used(self, task: TaskId, topic: str) -> None:
        return

    def fence(self, task: TaskId) -> None:
        return

    def verify(self, task: TaskId, generation: int) -> None:
        return


def measure(tasks: int, records: int, broker: Parley, folder: Path) -> dict[str, float]:
    """Run the tasks. Returns the figures, by label."""
    given = {
        "bootstrap.servers": broker.bootstrap,
        "key.converter": "StringConverter",
        "value.converter": "StringConverter",
        "offset.storage.file.filename": str(folder / "offsets"),
    }
    config, running = WorkerConfig.parse(given, STANDALONE), Running()
    worker = Worker(config, Plugins(), FileOffsetStore(folder / "offsets"), running)
    worker.start()
    try:
        topics = [f"topic-{number}" for number in range(tasks)]
        began = time.perf_counter()
        for topic in topics:
            broker.create_topic(topic, 1)
            own = {"name": topic, "connector.class": "bench.connect.Timing", "topics": topic, "folder": str(folder)}
            worker.start_connector(topic, own, TargetState.STARTED)
            worker.start_task(TaskId(topic, 0), 1, own, worker.task_configs(topic)[0], TargetState.STARTED)
        with running.changed:
            running.changed.wait_for(lambda: len(running.tasks) == tasks)
        ready = time.perf_counter() - began
        idle = _cpu(broker, lambda: time.sleep(IDLE_SECONDS)) / IDLE_SECONDS
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        _send_times(producer, topics)
        ages = sorted(float(age) for file in folder.glob("ages-*") for age in file.read_text().split())
        bulk = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": records + 1})
        producing = _cpu(broker, lambda: _send_bulk(bulk, topics, records))
        rest = _cpu(broker, lambda: _until_counted(folder, records))
        return {
            f"{tasks} tasks: seconds until all run": ready,
            f"{tasks} idle tasks: CPU ms/s a task": 1000 * idle / tasks,
            "from record to task: p50, ms": 1000 * ages[len(ages) // 2],
            "from record to task: p99, ms": 1000 * ages[len(ages) * 99 // 100],
            "k records per CPU s, producing included": records / (producing + rest) / 1000,
        }
    finally:
        worker.stop()


def _cpu(broker: Parley, work: Callable[[], None]) -> float:
    """Return the CPU time of this process and its descendants except the broker, in seconds."""
    before = tree_cpu_seconds(os.getpid()) - broker.cpu_seconds()
    work()
    return tree_cpu_seconds(os.getpid()) - broker.cpu_seconds() - before


def _send_times(producer: Producer, topics: Sequence[str]) -> None:
    for _ in range(ROUNDS):
        for topic in topics:
            producer.produce(topic, str(time.time()))
        producer.flush()
        time.sleep(ROUND_SECONDS)
    time.sleep(1)


def _send_bulk(producer: Producer, topics: Sequence[str], records: int) -> None:
    for number in range(records):
        producer.produce(topics[number % len(topics)], "x" * VALUE_BYTES)
    producer.flush()


def _until_counted(folder: Path, records: int) -> None:
    while True:
        files = [file for file in folder.glob("count-*") if file.suffix != ".new"]
        if sum(int(file.read_text()) for file in files) >= records:
            return
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=64, help="how many sink tasks, each of a connector of its own")
    parser.add_argument("--records", type=int, default=200_000, help="how many records for the throughput")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-connect-") as name:
        broker = Parley(Path(name) / "broker")
        broker.start()
        try:
            measured = measure(options.tasks, options.records, broker, Path(name))
        finally:
            broker.stop()
    report(Found({(label, OURS): [figure] for label, figure in measured.items()}))


if __name__ == "__main__":
    main()
