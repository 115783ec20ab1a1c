"""What a connector is made of: a `Connector` that says which tasks there are, and the `Task` that does the work.

Rules:

1. A connector's object and the objects of its tasks live in workers, each task in a thread of its own beside other
   connectors' tasks, perhaps in another worker. A task is found by its class's module and name: both are top-level
   classes. Tasks of a worker share the interpreter: they must not change what is global.
2. A task's methods are called by one thread, never two at a time: ``initialize``, ``start``, then for a source ``poll``
   and ``commit_record``/``commit``, for a sink ``open``, ``put``, ``flush``, ``close``; ``stop`` at the end. A task may
   be stopped at any moment between two calls and started elsewhere: all it knows beyond its configuration is lost,
   except offsets.
3. A call should return within a few seconds: ``poll`` answers None when there is nothing. One that takes longer holds
   up only its own task.
4. An exception fails the task (:class:`~parley.pipeline.connect.errors.RetriableError`: the call is made again later).

The smallest connector is a task and two lines::

    class PrintTask(SinkTask):
        def put(self, records):
            for record in records:
                print(record.value)

    class Print(SinkConnector):
        task_class = PrintTask
        config_def = ConfigDef()

The model is Kafka Connect's (KIP-26, KIP-875), its methods named as Python does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from parley.pipeline.connect.config import ConfigDef, ConfigValue
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.records import SinkRecord, SourceRecord, TopicPartition

__all__ = [
    "Connector",
    "ConnectorContext",
    "ExactlyOnceSinkTask",
    "OffsetRange",
    "OffsetReader",
    "SinkConnector",
    "SinkTask",
    "SinkTaskContext",
    "SourceConnector",
    "SourceTask",
    "SourceTaskContext",
    "Task",
    "TransactionContext",
]


class OffsetReader(Protocol):
    """The stored offsets of a connector's source partitions."""

    def offset(self, partition: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The last offset stored for the partition; None if there is none."""
        ...

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """The same for several partitions, in their order."""
        ...


class ConnectorContext(Protocol):
    """What the runtime does for a connector. May be used from any thread."""

    def request_task_reconfiguration(self) -> None:
        """Ask for new task configurations: `task_configs` is called, and tasks whose configurations changed restart."""
        ...

    def raise_error(self, error: BaseException) -> None:
        """Fail the connector, from a thread of its own."""
        ...

    @property
    def offsets(self) -> OffsetReader:
        """The stored offsets of a source connector; empty for a sink connector."""
        ...


class Task(ABC):
    """The part of a connector's work that runs in one place."""

    version: ClassVar[str] = "0"

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Start the task with one of the configurations that the connector's `task_configs` returned."""

    def stop(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds. Called once, also after a failure."""


class Connector(ABC):
    """Says which tasks there are, and watches whether that changes."""

    task_class: ClassVar[type[Task]]
    config_def: ClassVar[ConfigDef]
    version: ClassVar[str] = "0"

    context: ConnectorContext

    def initialize(self, context: ConnectorContext) -> None:
        """Called before `start`."""
        self.context = context

    def start(self, props: Mapping[str, str]) -> None:
        """Begin, with the connector's configuration. What goes on longer belongs into a thread of its own."""
        self.props = dict(props)

    def stop(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what it holds."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """The configurations of its tasks, at most so many."""

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        """Every key with its value and what is wrong with it; override for what several keys say together."""
        return self.config_def.validate(props)


class SourceConnector(Connector):
    """A connector that fills topics. One task with the connector's own configuration, unless it says otherwise."""

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props]

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        """Whether each record reaches its topic once if the runtime stores offsets with the records (KIP-618).

        That is so if the source can be read again from any stored offset, and gives the same records behind it. None:
        the connector does not say.
        """
        return None

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        """Whether its tasks end their transactions themselves (``transaction.boundary=connector``, KIP-618)."""
        return False

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Called before stored offsets are changed from outside (KIP-875); ConnectError refuses.

        `offsets`: any name -> (source partition, new offset or None to forget it). Answers whether the offsets were
        looked at: False says that they may be of no use.
        """
        return False


class SinkConnector(Connector):
    """A connector that empties topics. `tasks.max` like tasks share the partitions, unless it says otherwise."""

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props] * max_tasks

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """As :meth:`SourceConnector.alter_offsets`, for partitions of topics."""
        return False


# ---- sources --------------------------------------------------------------------------------------------------------


class TransactionContext(Protocol):
    """Ends the transactions that a source task's records are written in (``transaction.boundary=connector``).

    Offsets behind the records of an aborted transaction are stored all the same: to have them read again, raise.
    """

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit behind this record, which a `poll` is about to return; without one, behind the next batch."""
        ...

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Abort behind this record, which a `poll` is about to return; without one, behind the next batch."""
        ...


class SourceTaskContext(Protocol):
    """What the runtime does for a source task."""

    @property
    def transactions(self) -> TransactionContext | None:
        """None unless the task is to end its transactions itself."""
        ...

    @property
    def offsets(self) -> OffsetReader: ...

    @property
    def configs(self) -> Mapping[str, str]:
        """The task's configuration."""
        ...


class SourceTask(Task):
    """Reads a part of a source."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        """Called before `start`."""
        self.context = context

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | None:
        """The next records; None or nothing where there is none at this moment."""

    def commit_record(self, record: SourceRecord) -> None:
        """The record is in its topic, or was dropped on the way (by a filter, or as a tolerated error)."""

    def commit(self) -> None:
        """All that was polled is in its topics, and the offsets are stored."""


# ---- sinks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets of a partition, `end` not among them. Not every one has a record: a compacted topic has holes."""

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
    """Takes records that a sink task cannot write: as `errors.tolerance` says, to the dead letter topic (KIP-610)."""

    def report(self, record: SinkRecord, error: BaseException) -> None:
        """Raises ConnectError where errors are not tolerated."""
        ...


class SinkTaskContext(Protocol):
    """What the runtime does for a sink task."""

    @property
    def configs(self) -> Mapping[str, str]:
        """The task's configuration."""
        ...

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions the task has now."""
        ...

    @property
    def errant_records(self) -> ErrantRecordReporter | None:
        """None where the connector's configuration has no place for such records."""
        ...

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from these offsets after the present call."""
        ...

    def timeout(self, ms: int) -> None:
        """After a :class:`RetriableError`: call again after so many milliseconds (else ``errors``' own pause)."""
        ...

    def pause(self, *partitions: TopicPartition) -> None:
        """Take no more records of these partitions."""
        ...

    def resume(self, *partitions: TopicPartition) -> None: ...

    def request_commit(self) -> None:
        """Commit offsets as soon as the present call is done, whatever the interval."""
        ...


class SinkTask(Task):
    """Writes records of some partitions to a target, each at least once.

    Offsets are committed after `pre_commit`, whose answer says how far the target is certain to have them.
    """

    context: SinkTaskContext

    def initialize(self, context: SinkTaskContext) -> None:
        """Called before `start`."""
        self.context = context

    def start(self, props: Mapping[str, str]) -> None:
        """Start the task with one of the configurations that the connector's `task_configs` returned."""

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are added; their records come next."""

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> None:
        """Write the records, or keep them for `flush`. Also called with none, so that a task can do what is due."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """See that everything put before these offsets is in the target."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The offsets that may be committed: by default all, after a `flush`."""
        self.flush(offsets)
        return offsets

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Partitions are taken away; no more of their records come."""


class ExactlyOnceSinkTask(SinkTask):
    """Writes each record once: the target itself knows how far it has come.

    The runtime asks `committed` whenever partitions are opened and goes on from there, whatever the consumer group
    says; and it hands over whole ranges of offsets, one partition at a time, each beginning where the last has ended.
    `put_range` must make the records and the range's end visible together, or neither: a transaction with a row for the
    partition, a file named by the range, a table's commit that carries it.
    """

    range_records: int = 10_000
    """After so many records a range is handed over; a task may set it in `start`."""
    range_bytes: int = 16 * 1024 * 1024
    """After so many bytes, as they lie in the topic, too: what a partition may hold in memory."""
    range_ms: int = 0
    """How long records are gathered for a range that has fewer, in ms; 0: what is there is handed over."""

    @abstractmethod
    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The end of the last range the target has, by partition; partitions it has nothing of are left out."""

    @abstractmethod
    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        """Write the records of the range.

        There may be none of them, all dropped by a filter: then it may do nothing, and `committed` may still say the
        end of the range before. Ranges may come that begin behind what it has.
        """

    def put(self, records: Sequence[SinkRecord]) -> None:
        raise ConnectError("an exactly-once task takes ranges")
