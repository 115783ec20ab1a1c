"""The parts of a connector: a ``Connector``, which divides its work into tasks, and the ``Task``, which does the work.

Rules:

1. Connectors and tasks are objects in workers. A task may run in a different worker from its connector. Each task has
its own thread, in a process with tasks of other connectors. The runtime finds both classes by module and name, so they
must be top-level classes. Tasks of a worker share the interpreter, so they must not change global state.
2. One thread calls a task's methods, never two at a time: ``initialize``, ``start``, then for a source ``poll`` and
   ``commit_record``/``commit``, for a sink ``open``, ``put``, ``flush``, ``close``; ``stop`` at the end. A task may be
   stopped between any two calls and started elsewhere. Then it loses its state, except for offsets.
3. A call should return within a few seconds: ``poll`` returns None if there is nothing. A longer call delays only its
   own task.
4. An exception of ``poll`` or ``put`` fails the task, except for ``RetriableError``: the call is then repeated later.

The smallest connector is a task and two lines::

    class PrintTask(SinkTask):
        def put(self, records):
            for record in records:
                print(record.value)

    class Print(SinkConnector):
        task_class = PrintTask
        config_def = ConfigDef()

The model is Kafka Connect's (KIP-26, KIP-875), with names in Python's style.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from parley.pipeline.connect.config import ConfigDef, ConfigValue
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.records import SinkRecord, SourceRecord, TopicPartition


class OffsetReader(Protocol):
    """The stored offsets of a connector's source partitions."""

    def offset(self, partition: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the last stored offset of the partition; None if there is none. Raises ConnectError if the offsets
        cannot be read.
        """
        ...

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """Return the last stored offsets of several partitions, in their order; None for a partition without an offset.
        Raises ConnectError if the offsets cannot be read.
        """
        ...


class ConnectorContext(Protocol):
    """The runtime's services for a connector. Any thread may use them."""

    def request_task_reconfiguration(self) -> None:
        """Request new task configurations: the runtime calls ``task_configs``, and restarts changed tasks."""
        ...

    def raise_error(self, error: BaseException) -> None:
        """Fail the connector with this error. For errors in threads that the connector itself has started."""
        ...

    @property
    def offsets(self) -> OffsetReader:
        """The stored offsets of a source connector; empty for a sink connector."""
        ...


class Task(ABC):
    """A part of a connector's work. It runs in one worker at a time."""

    version: ClassVar[str] = "0"

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Start the task with one of the configurations that the connector's ``task_configs`` returned."""

    def stop(self) -> None:  # noqa: B027 - most have nothing to give back
        """Release the task's resources. Called once, even after a failure."""


class Connector(ABC):
    """Divides the work into tasks, and notices when the tasks must change."""

    task_class: ClassVar[type[Task]]
    config_def: ClassVar[ConfigDef]
    version: ClassVar[str] = "0"

    context: ConnectorContext

    def initialize(self, context: ConnectorContext) -> None:
        """Store the runtime's services in ``context``. Called before ``start``."""
        self.context = context

    def start(self, props: Mapping[str, str]) -> None:
        """Start with the connector's configuration. Do longer work in a separate thread."""
        self.props = dict(props)

    def stop(self) -> None:  # noqa: B027 - most have nothing to give back
        """Release the connector's resources."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """Return the configurations of the connector's tasks, at most ``max_tasks``."""

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        """Return every key with its value and its errors. Override it to check several keys together."""
        return self.config_def.validate(props)


class SourceConnector(Connector):
    """A connector that fills topics. By default it has one task with the connector's own configuration."""

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props]

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        """Return True if each record reaches its topic exactly once, provided that the runtime stores offsets together
        with the records (KIP-618).

        This requires that reading the source again from any stored offset yields the same records. None means that the
        connector does not know.
        """
        return None

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        """Return True if the connector's tasks can end their transactions themselves
        (``transaction.boundary=connector``, KIP-618)."""
        return False

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Check offsets before a user changes the stored ones (KIP-875). Raise ConnectError to reject them.

        The values of ``offsets`` are pairs of a source partition and its new offset, or None to delete the offset; the
        keys have no meaning. Return True if the connector can use the offsets. False, the default, means that it has
        not checked them: the user is told that offsets outside Connect must be changed separately.
        """
        return False


class SinkConnector(Connector):
    """A connector that reads topics. By default, ``tasks.max`` equal tasks share the partitions."""

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props] * max_tasks

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """Check offsets before a user changes those of the sink's group (KIP-875). Raise ConnectError to reject them.

        ``offsets`` contains the new offset of each partition, or None to delete it. Return True if the connector can
        use the offsets. False, the default, means that it has not checked them: the user is told that offsets outside
        Connect must be changed separately.
        """
        return False


# ---- sources --------------------------------------------------------------------------------------------------------


class TransactionContext(Protocol):
    """Ends the transactions of a source task's records (``transaction.boundary=connector``).

    The offsets of an aborted transaction's records are stored nevertheless. To read the records again, raise an
    exception.
    """

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit the transaction after this record, which the current ``poll`` will return; without a record, after the
        next batch.
        """
        ...

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Abort the transaction after this record, which the current ``poll`` will return; without a record, after the
        next batch.
        """
        ...


class SourceTaskContext(Protocol):
    """The runtime's services for a source task."""

    @property
    def transactions(self) -> TransactionContext | None:
        """The task's requests to end transactions; None unless ``transaction.boundary`` is ``connector``."""
        ...

    @property
    def offsets(self) -> OffsetReader: ...

    @property
    def configs(self) -> Mapping[str, str]:
        """The task's configuration."""
        ...


class SourceTask(Task):
    """A task that reads a part of a source. The runtime writes the records that ``poll`` returns to their topics."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        """Store the runtime's services in ``context``. Called before ``start``."""
        self.context = context

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | None:
        """Return the next records; None or an empty list if there are none now."""

    def commit_record(self, record: SourceRecord) -> None:
        """Handle the confirmation that a record is in its topic, or was dropped (by a filter, or as a tolerated error).
        By default, this does nothing.
        """

    def commit(self) -> None:
        """Handle the confirmation that all polled records are in their topics, and that their offsets are stored. By
        default, this does nothing.
        """


# ---- sinks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets [``start``, ``end``) of a partition. A compacted topic has gaps, so some of them may have no
    record."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} {self.start}-{self.end}"


class ErrantRecordReporter(Protocol):
    """The way to report records that a sink task cannot write (KIP-610). They are skipped, and sent to the dead letter
    topic if there is one.
    """

    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Report a record that the task skips, and the reason. Raises ConnectError if ``errors.tolerance``
        is ``none``.
        """
        ...


class SinkTaskContext(Protocol):
    """The runtime's services for a sink task."""

    @property
    def configs(self) -> Mapping[str, str]:
        """The task's configuration."""
        ...

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The task's current partitions."""
        ...

    @property
    def errant_records(self) -> ErrantRecordReporter | None:
        """The way to report records that the task cannot write; None if ``errors.tolerance`` is ``none`` and no dead
        letter topic is configured.
        """
        ...

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets after the current call. The task fails if a partition is not assigned to it."""
        ...

    def timeout(self, ms: int) -> None:
        """Set the pause (ms) before the next call is repeated after a ``RetriableError``. The default is 1000 ms."""
        ...

    def pause(self, *partitions: TopicPartition) -> None:
        """Stop delivering records of these partitions until ``resume`` is called."""
        ...

    def resume(self, *partitions: TopicPartition) -> None: ...

    def request_commit(self) -> None:
        """Commit offsets right after the current call, regardless of the interval."""
        ...


class SinkTask(Task):
    """Writes records of some partitions to a target, each at least once.

    Offsets are committed after ``pre_commit``, which returns the offsets up to which the target is known to have the
    records.
    """

    context: SinkTaskContext

    def initialize(self, context: SinkTaskContext) -> None:
        """Store the runtime's services in ``context``. Called before ``start``."""
        self.context = context

    def start(self, props: Mapping[str, str]) -> None:
        """Start the task with one of the configurations that the connector's ``task_configs`` returned."""

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        """Prepare for new partitions. Called before their first records."""

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write the records, or keep them for ``flush``. Also called without records, so that the task can do work that
        is due."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Ensure that everything before these offsets is in the target."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Return the offsets to commit: by default all of them, after a ``flush``."""
        self.flush(offsets)
        return offsets

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Release what belongs to revoked partitions. No more of their records follow."""


class ExactlyOnceSinkTask(SinkTask):
    """Writes each record once: the target itself stores the offsets.

    The runtime calls ``committed`` whenever partitions are opened, and continues from there, regardless of the
    consumer group's offsets. It passes whole ranges of offsets, one partition at a time, each from the end of the
    previous one. ``put_range`` must make the records and the range's end visible together, or neither: with a
    transaction that also updates a row for the partition, a file named after the range, or a table's commit with the
    range.
    """

    range_records: int = 10_000
    """The number of records that completes a range. A task may set it in ``start``."""
    range_bytes: int = 16 * 1024 * 1024
    """The number of bytes, as in the topic, that completes a range. It limits the memory for a partition."""
    range_ms: int = 0
    """How long to wait for a range to fill, in ms. With 0, available records are passed immediately."""

    @abstractmethod
    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end of the target's last range for each partition, except partitions without data."""

    @abstractmethod
    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        """Write the records of the range.

        ``records`` is empty if a filter has dropped all of them. The task may then do nothing, and ``committed`` may
        return the end of the previous range. A range may start after the end of the target's last range.
        """

    def put(self, records: Sequence[SinkRecord]) -> None:
        raise ConnectError("an exactly-once task takes ranges")
