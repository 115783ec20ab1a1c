"""Small connectors for tests: their configurations determine what they do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from parley.pipeline.connect import (
    ConfigDef,
    ConfigType,
    ConnectError,
    ExactlyOnceSinkTask,
    OffsetRange,
    RetriableError,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceConnector,
    SourceRecord,
    SourceTask,
    TopicPartition,
)

FOLDER = ConfigDef().define("folder", ConfigType.STRING)


class CounterTask(SourceTask):
    """Produces the numbers from 0 up to `count`, ten at a time. Raises at `fail.at`, unless the file
    `repaired` exists."""

    def start(self, props: Mapping[str, str]) -> None:
        self._props = props
        self._partition = {"counter": props["counter"]}
        stored = self.context.offsets.offset(self._partition)
        self._next = stored["next"] if stored else 0

    def poll(self) -> Sequence[SourceRecord] | None:
        if self._next == int(self._props.get("fail.at", "-1")) and not Path(self._props["repaired"]).exists():
            raise ValueError(f"cannot count beyond {self._next}")
        end = min(self._next + 10, int(self._props["count"]))
        begin, self._next = self._next, end
        return [
            SourceRecord(
                topic=self._props["topic"],
                key=str(number),
                value=f"{self._props['counter']}-{number}",
                source_partition=self._partition,
                source_offset={"next": number + 1},
            )
            for number in range(begin, end)
        ]


class Counter(SourceConnector):
    """A source of `tasks.max` counters."""

    task_class = CounterTask
    config_def = ConfigDef().define("topic", ConfigType.STRING).define("count", ConfigType.INT)

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [{**self.props, "counter": str(number)} for number in range(max_tasks)]


class BoundedTask(CounterTask):
    """Counts like `CounterTask`, and ends transactions: it commits after 4, 12 and 19, and aborts after 7."""

    def poll(self) -> Sequence[SourceRecord] | None:
        records = super().poll()
        assert self.context.transactions is not None
        for record in records or ():
            if record.key in ("4", "12", "19"):
                self.context.transactions.commit_transaction(record)
            if record.key == "7":
                self.context.transactions.abort_transaction(record)
        return records


class Bounded(Counter):
    task_class = BoundedTask

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        return True


class Unsure(Counter):
    """A connector that fails when it is asked for its exactly-once support."""

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        raise ValueError("unsure")

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        raise ValueError("unsure")


class NotesTask(SinkTask):
    """Writes a line of JSON for each record into its own file.

    A value "raise" fails the task, "later" fails it until the file `repaired` exists, "errant" is reported, "die" kills
    the process unless the file exists, and "wait" waits for the file.
    """

    def start(self, props: Mapping[str, str]) -> None:
        self._folder = Path(props["folder"])
        self._file = (self._folder / f"notes-{os.getpid()}-{id(self)}").open("a")

    def put(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            if record.value == "later" and not (self._folder / "repaired").exists():
                self.context.timeout(20)
                raise RetriableError("not yet")
        for record in records:
            if record.value == "raise":
                raise ValueError("told to")
            if record.value == "die" and not (self._folder / "repaired").exists():
                (self._folder / "repaired").touch()
                os._exit(1)
            if record.value == "wait":
                (self._folder / "waits").touch()
            while record.value == "wait" and not (self._folder / "repaired").exists():
                time.sleep(0.01)
            if record.value == "errant":
                assert self.context.errant_records is not None
                self.context.errant_records.report(record, ValueError("errant"))
                continue
            noted = [record.topic, record.original_kafka_partition, record.original_kafka_offset, record.value]
            self._file.write(json.dumps(noted) + "\n")
        self._file.flush()

    def stop(self) -> None:
        self._file.close()


class Notes(SinkConnector):
    task_class = NotesTask
    config_def = FOLDER


class RangesTask(ExactlyOnceSinkTask):
    """Writes a file for each range. Its name contains the range, and it appears atomically."""

    def start(self, props: Mapping[str, str]) -> None:
        self._folder = Path(props["folder"])
        self.range_records = int(props.get("records", "10"))
        self.range_ms = int(props.get("ms", "0"))

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for file in self._folder.glob("*.range"):
            topic, partition, _, end = file.stem.split("+")
            here = TopicPartition(topic, int(partition))
            found[here] = max(found.get(here, 0), int(end))
        return {one: end for one, end in found.items() if one in partitions}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        name = f"{offsets.topic}+{offsets.partition}+{offsets.start}+{offsets.end}.range"
        fresh = self._folder / f"{name}.{os.getpid()}.new"
        fresh.write_text(json.dumps([[record.original_kafka_offset, record.value] for record in records]))
        os.replace(fresh, self._folder / name)
        if any(record.value == "raise after" for record in records) and not (self._folder / "repaired").exists():
            raise ConnectError("told to fail behind the range")


class Ranges(SinkConnector):
    task_class = RangesTask
    config_def = FOLDER
