"""Runs one source task: from its ``poll`` to its topics, and to the stored source offsets.

Rules:

1. One thread calls ``begin``, then ``step`` repeatedly, and ``finish`` at the end.
2. An offset is stored only when every record up to it is in its topic (at least once). After a crash, the source is
   read again from the last stored offset.
3. Offsets are stored every ``offset.flush.interval.ms``, and when the task stops.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.connect.config import ConfigKey, ConfigType
from parley.pipeline.connect.connector import SourceTask, TransactionContext
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.java_notation import java_pattern
from parley.pipeline.connect.offset_stores import ConnectorOffsets, key_of
from parley.pipeline.connect.records import SourceRecord
from parley.pipeline.connect.tasks.conversion import Conversion, Outgoing
from parley.pipeline.connect.tasks.guard import Guard
from parley.pipeline.connect.tasks.spec import TaskSpec
from parley.pipeline.connect.tasks.tolerance import LeftOut, Stage, Tolerance
from parley.pipeline.connect.tasks.topic_writing import TopicWriter, TransactionWriter, create_topic
from parley.protocol.errors import KafkaError

_RETRY_S: Final = 1.0
_log = logging.getLogger(__name__)


class SourceContext:
    """The runtime's services for a source task."""

    def __init__(
        self, configs: Mapping[str, str], offsets: ConnectorOffsets, transactions: TransactionContext | None
    ) -> None:
        self.configs = configs
        self.offsets = offsets
        self.transactions = transactions


class SourceRun:
    """Runs a source task, and writes each of its records at least once."""

    def __init__(
        self,
        spec: TaskSpec,
        task: SourceTask,
        conversion: Conversion,
        tolerance: Tolerance,
        writer: TopicWriter | TransactionWriter,
        topics: TopicMaker,
        guard: Guard,
        *,
        commit_interval_ms: int = 0,
        transactions: TransactionContext | None = None,
    ) -> None:
        self._spec = spec
        self._task = task
        self._conversion = conversion
        self._tolerance = tolerance
        self._writer = writer
        self._requests = transactions
        self._topics = topics
        self._guard = guard
        self._now_ms = tolerance.now_ms
        self._interval_ms = commit_interval_ms
        self._commit_at_ms = 0
        self._used: set[str] = set()
        self._done: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        """The latest offset of each source partition whose records are in their topics, if it is not stored yet."""

    def begin(self) -> None:
        """Start the task. Raises the task's errors."""
        self._start()
        self._commit_at_ms = self._now_ms() + self._interval_ms

    def _start(self) -> None:
        self._task.initialize(SourceContext(self._spec.task_config, self._guard.offsets, self._requests))
        self._task.start(self._spec.task_config)

    def step(self, wait_s: float) -> None:
        """Poll once and write the records, or wait up to ``wait_s`` if there are none. Store offsets if that is due.

        Raises the task's errors and ConnectError.
        """
        polled = self._poll(wait_s)
        if polled:
            self._send(polled)
        if self._now_ms() >= self._commit_at_ms:
            self.commit()

    def _poll(self, wait_s: float) -> Sequence[SourceRecord]:
        begun_ms = self._now_ms()
        try:
            polled = self._task.poll()
        except RetriableError as error:
            _log.warning("%s: poll failed and is called again: %s", self._spec.id, error)
            self._tolerance.stopping.wait(_RETRY_S)
            return ()
        if not polled:
            waited_s = (self._now_ms() - begun_ms) / 1000
            self._tolerance.stopping.wait(max(0.0, wait_s - waited_s))
        return polled or ()

    def _send(self, polled: Sequence[SourceRecord]) -> None:
        outgoing = [one for one in (self._conversion.outgoing(record, self._tolerance) for record in polled) if one]
        self._use({one.topic for one in outgoing})
        self._write(outgoing)
        for record in polled:
            self._task.commit_record(record)
            if record.source_partition:
                key = key_of(self._spec.id.connector, record.source_partition)
                self._done[key] = (record.source_partition, record.source_offset)

    def _use(self, topics: Set[str]) -> None:
        """Create missing topics, and report those that the task uses for the first time."""
        for topic in topics - self._used:
            self._topics.make(topic)
            self._used.add(topic)
            self._guard.topic_used(topic)

    def _write(self, outgoing: Sequence[Outgoing]) -> None:
        self._guard.check()
        try:
            self._writer.write(outgoing)
        except (KafkaError, ValueError) as error:
            if isinstance(error, KafkaError) and not error.code.retriable and len(outgoing) > 1:
                # One record is rejected, which must not fail the others.
                for one in outgoing:
                    self._write([one])
                return
            try:
                raise self._tolerance.failed(Stage.KAFKA_PRODUCE, self._writer, error, outgoing) from error
            except LeftOut:
                return

    def commit(self) -> None:
        """Store the offsets of the records that are in their topics, and call the task's ``commit``.

        If they cannot be stored, this is logged, and the next commit tries again.
        """
        self._commit_at_ms = self._now_ms() + self._interval_ms
        try:
            if self._done:
                self._guard.store(list(self._done.values()))
                self._done.clear()
        except ConnectError as error:
            _log.error("%s: offsets were not stored: %s", self._spec.id, error)
            return
        self._task.commit()

    def finish(self) -> None:
        """Store offsets and stop the task. Raises the errors of its ``stop``."""
        try:
            self.commit()
        except Exception as error:
            _log.warning("%s: the last commit failed: %s", self._spec.id, error, exc_info=error)
        finally:
            self._writer.close()
            self._task.stop()
            self._conversion.close()


class TopicMaker:
    """Creates the topics of a source connector as ``topic.creation.*`` requires (KIP-158), or leaves this to the
    broker.
    """

    def __init__(self, cluster: Cluster, config: Mapping[str, str], *, is_enabled: bool) -> None:
        self._cluster = cluster
        self._config = config
        names = [one.strip() for one in config.get("topic.creation.groups", "").split(",") if one.strip()]
        has_default = "topic.creation.default.partitions" in config
        self._groups = [*names, "default"] if is_enabled and has_default else []

    def make(self, topic: str) -> None:
        """Create the topic if it is missing and ``topic.creation.*`` covers it. Raises ConnectError."""
        group = next((one for one in self._groups if self._takes(one, topic)), None)
        if group is None:
            return
        settings = {**self._of("default"), **self._of(group)}
        partitions, replicas = (
            ConfigKey(name=f"topic.creation.{group}.{name}", type=ConfigType.INT).parse(settings.pop(name, "-1"))
            for name in ("partitions", "replication.factor")
        )
        settings.pop("include", None)
        settings.pop("exclude", None)
        create_topic(self._cluster, topic, partitions, replicas, settings)

    def _of(self, group: str) -> dict[str, str]:
        prefix = f"topic.creation.{group}."
        return {key.removeprefix(prefix): value for key, value in self._config.items() if key.startswith(prefix)}

    def _takes(self, group: str, topic: str) -> bool:
        if group == "default":
            return True
        return self._matches(group, "include", topic) and not self._matches(group, "exclude", topic)

    def _matches(self, group: str, kind: str, topic: str) -> bool:
        """Return True if one of the group's regular expressions of this kind matches the topic."""
        key = f"topic.creation.{group}.{kind}"
        patterns = [one.strip() for one in self._config.get(key, "").split(",") if one.strip()]
        return any(java_pattern(pattern, key).fullmatch(topic) for pattern in patterns)
