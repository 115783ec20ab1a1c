"""Topics into a table of Iceberg, each record once.

Rows and offsets are in the same commit (`parley.pipeline.tables.iceberg`): a task that comes back asks the table, and
one that is late, because another has taken its place, gives up. The table is made by the first write. Values are stored
exactly, by the rule of `columns`; columns are added and widened as far as Iceberg can without writing files again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley.pipeline.connect.config import ConfigDef, ConfigType, Importance
from parley.pipeline.connect.connector import ExactlyOnceSinkTask, OffsetRange, SinkConnector
from parley.pipeline.connect.connectors.columns import Columns, refusing, table_of
from parley.pipeline.connect.connectors.ranges import range_keys
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.tables.iceberg import (
    IcebergConflict,
    IcebergPlace,
    IcebergTable,
    OffsetsExpired,
    create,
    may_pass,
    opened,
)
from parley.pipeline.values.names import ICEBERG_NAMES
from parley.pipeline.values.widening import iceberg_type, iceberg_widens

__all__ = ["IcebergSinkConnector", "IcebergSinkTask"]

_CATALOG: Final = "catalog."
_EVOLUTION: Final = "schema.evolution"
_ATTEMPTS: Final = 20
"""How often a commit is tried on top of those of other tasks, before the worker waits and tries again."""
_VERSION: Final = "1.0"
_HIGH, _MEDIUM = Importance.HIGH, Importance.MEDIUM


@dataclass(frozen=True, slots=True)
class _TableColumns:
    """A table of Iceberg as a target of `Columns`."""

    name: str
    evolution_key: str | None

    def column(self, kind: Any) -> Any:
        return iceberg_type(kind)

    def stays_exact(self, name: str, kind: Any) -> bool:
        return False  # what Iceberg widens is always exact


class IcebergSinkTask(ExactlyOnceSinkTask):
    """Appends a commit for each range that it is given."""

    version = _VERSION

    def start(self, props: Mapping[str, str]) -> None:
        config = IcebergSinkConnector.config_def.parse(props)
        self.range_records = config["flush.size"]
        self.range_ms = config["rotate.interval.ms"]
        self._name = props.get("name", "")
        self._columns: list[str] = config["partition.columns"]
        self._evolves: bool = config[_EVOLUTION]
        self._with_source: bool = config["metadata.columns"]
        properties = {key.removeprefix(_CATALOG): value for key, value in props.items() if key.startswith(_CATALOG)}
        name = properties.pop("name", "default")
        self._place = IcebergPlace(name, tuple(sorted(properties.items())), config["table"])

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        table = self._opened()
        if table is None:
            return {}
        found = self._offsets(table, partitions)
        return {one: found[each] for one in partitions if (each := self._application(one)) in found}

    def put_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        if not records:
            return  # nothing of the range is left; a restart would read it again, and leave it out again
        for attempt in range(_ATTEMPTS):
            try:
                self._append(offsets, records)
                return
            except ConnectError:
                raise
            except IcebergConflict as error:
                if attempt == _ATTEMPTS - 1:
                    raise RetriableError(f"{offsets} cannot be committed to {self._place.table}: {error}") from error
            except Exception as error:  # the library raises what has no class of its own
                kind = RetriableError if may_pass(error) else ConnectError
                raise kind(f"{offsets} cannot be written to {self._place.table}: {error}") from error

    def _append(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        table = self._opened()
        application = self._application(offsets.topic_partition)
        if table is not None:
            end = self._offsets(table, [offsets.topic_partition]).get(application)
            if end is not None and end > offsets.start:
                raise ConnectError(f"{offsets} was written by another task: the table has it up to {end}")
        columns = Columns(
            {} if table is None else table.columns,
            _TableColumns(f"the table {self._place.table}", None if self._evolves or table is None else _EVOLUTION),
            required=[] if table is None else table.required,
            widens=iceberg_widens,
            names=ICEBERG_NAMES,
        )
        rows = table_of(records, columns, refusing(self), with_source=self._with_source)
        if not rows.num_rows:
            return
        if table is None:
            create(self._place, rows.schema, dict.fromkeys(self._columns, "identity"))
            raise IcebergConflict("the table was made")  # perhaps by another task: with other columns
        table.append(rows, {application: offsets.end})

    def _opened(self) -> IcebergTable | None:
        try:
            return opened(self._place)
        except Exception as error:  # each kind of catalog has its own
            kind = RetriableError if may_pass(error) else ConnectError
            raise kind(f"the table {self._place.table} cannot be opened: {error}") from error

    def _offsets(self, table: IcebergTable, partitions: Sequence[TopicPartition]) -> Mapping[str, int]:
        try:
            return table.offsets([self._application(one) for one in partitions])
        except OffsetsExpired as error:
            raise ConnectError(str(error)) from error

    def _application(self, partition: TopicPartition) -> str:
        return f"{self._name}:{partition}"


def _keys() -> ConfigDef:
    return (
        range_keys("table", "The table, as namespace.table.")
        .define(
            "catalog.name",
            ConfigType.STRING,
            "default",
            _HIGH,
            "The catalog in PyIceberg's configuration. All other keys catalog.* are its properties.",
        )
        .define("catalog.type", ConfigType.STRING, None, _HIGH, "rest, sql, hive, glue or dynamodb.")
        .define("catalog.uri", ConfigType.STRING, None, _HIGH, "The catalog's address, such as http://catalog:8181.")
        .define("catalog.warehouse", ConfigType.STRING, None, _HIGH, "Where the catalog puts new tables.")
        .define(
            "partition.columns", ConfigType.LIST, [], _MEDIUM, "The columns that a new table is divided by (identity)."
        )
        .define(
            _EVOLUTION,
            ConfigType.BOOLEAN,
            True,
            _MEDIUM,
            "Whether fields that are new become columns, and columns are widened for values that they cannot hold.",
        )
        .define(
            "metadata.columns",
            ConfigType.BOOLEAN,
            True,
            _MEDIUM,
            "Whether the table has the columns kafka_key, kafka_topic, kafka_partition, kafka_offset, kafka_timestamp.",
        )
    )


class IcebergSinkConnector(SinkConnector):
    """See the module."""

    version = _VERSION
    task_class = IcebergSinkTask
    config_def = _keys()

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        raise ConnectError(
            "The table says how far this connector has come, so its offsets cannot be changed here: delete the "
            "connector and make one of another name, which begins again from the first offsets."
        )
