"""The common part of sinks that write ranges of offsets, each as one unit: a file, or a commit to a table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa

from parley.pipeline.connect.config import (
    BOOLEAN,
    HIGH,
    INT,
    LIST,
    STRING,
    ConfigDef,
    at_least,
    non_empty,
)
from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import Columns, refusing, table_of
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.records import SinkRecord, TopicPartition

EVOLUTION: Final = "schema.evolution"


def range_keys(target: str, doc: str) -> ConfigDef:
    """Return the configs of ``RangeTask``, plus a required config named ``target`` that is documented by ``doc``."""
    return (
        ConfigDef()
        .define(target, STRING, importance=HIGH, validator=non_empty)
        .doc(doc)
        .define("flush.size", INT, 10_000, HIGH, validator=at_least(1))
        .doc("The number of records of a partition after which they are written.")
        .define("rotate.interval.ms", INT, 10_000, HIGH, validator=at_least(0))
        .doc("The time in ms after which records are written, even if there are fewer than flush.size.")
        .define("metadata.columns", BOOLEAN, True)
        .doc("Whether to add the columns kafka_key, kafka_topic, kafka_partition, kafka_offset and kafka_timestamp.")
    )


def table_keys(target: str, doc: str) -> ConfigDef:
    """Return the configs of ``TableTask``: those that ``range_keys`` returns for the same arguments, and its own."""
    return (
        range_keys(target, doc)
        .define("partition.columns", LIST, [])
        .doc("The columns by which a new table is partitioned.")
        .define(EVOLUTION, BOOLEAN, True)
        .doc("Whether to add columns for new fields, and to widen columns for values that do not fit.")
    )


class RangeTask(ExactlyOnceSinkTask):
    """Base class of tasks that write each range as one unit. Their configs include those of ``range_keys``."""

    version = "1.0"
    config_def: ClassVar[ConfigDef]

    def start(self, props: Mapping[str, str]) -> None:
        config = self.config_def.parse(props)
        self.range_records, self.range_ms = config["flush.size"], config["rotate.interval.ms"]
        self._with_source: bool = config["metadata.columns"]
        self.begin(config, props)

    @abstractmethod
    def begin(self, config: Mapping[str, Any], props: Mapping[str, str]) -> None:
        """Start with this configuration: ``config`` contains the typed values, ``props`` the original strings."""

    @abstractmethod
    def write_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        """Write these records together with the end of their range of offsets. Never called without records."""

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        if records:  # an empty range is not stored: after a restart it is read and skipped again
            self.write_range(offsets, records)

    def _rows(self, records: Sequence[SinkRecord], columns: Columns) -> pa.Table:
        """Return the records as a table of these columns, without refused records. Raises DataError, also for a refused
        record if the task has no reporter for such records.
        """
        return table_of(records, columns, refusing(self), with_source=self._with_source)


class TableTask(RangeTask):
    """A task that commits ranges to a table. The table stores the offset of each partition."""

    def start(self, props: Mapping[str, str]) -> None:
        config = self.config_def.parse(props)
        self._name = props.get("name", "")
        self._columns: list[str] = config["partition.columns"]
        self._evolves: bool = config[EVOLUTION]
        super().start(props)

    def _application(self, partition: TopicPartition) -> str:
        """Return the name under which the table stores the offset of a partition."""
        return f"{self._name}:{partition}"

    def _check_is_next(self, offsets: OffsetRange, end: int | None) -> None:
        """Raise ConnectError if the table's offset ``end`` shows that the table already contains the range."""
        if end is not None and end > offsets.start:
            raise ConnectError(f"{offsets} was written by another task: the table has it up to {end}")


class TableConnector(SinkConnector):
    """A sink connector whose tasks are of the class ``TableTask``."""

    version = "1.0"

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        raise ConnectError(
            "The table defines the connector's offsets, so they cannot be changed here: delete the "
            "connector and create one with another name, which begins at the start."
        )
