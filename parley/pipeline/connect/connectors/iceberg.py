"""Writes topics to an Iceberg table, each record once.

Rows and offsets are in the same commit (``parley.pipeline.tables.iceberg``). A restarted task reads its offsets from
the table. A task that another task has replaced finds newer offsets and fails. The first write creates the table.
Values are stored exactly, by the rule of ``columns``. Columns are added and widened if Iceberg can do so without
rewriting files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parley.pipeline.connect.config import HIGH, STRING
from parley.pipeline.connect.connector import OffsetRange
from parley.pipeline.connect.connectors.columns import Columns
from parley.pipeline.connect.connectors.ranges import EVOLUTION, TableConnector, TableTask, table_keys
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

_CATALOG: Final = "catalog."
_ATTEMPTS: Final = 20
"""The number of attempts to commit after conflicts with other tasks, before the worker backs off and retries."""


@dataclass(frozen=True, slots=True)
class _TableColumns:
    """An Iceberg table as a target of ``Columns``."""

    name: str
    evolution_key: str | None

    def column(self, kind: Any) -> Any:
        return iceberg_type(kind)

    def stays_exact(self, name: str, kind: Any) -> bool:
        return False  # Iceberg only allows exact widenings


class IcebergSinkTask(TableTask):
    """Writes each range in one commit."""

    config_def = (
        table_keys("table", "The table, as namespace.table.")
        .define("catalog.name", STRING, "default", HIGH)
        .doc("The name of a catalog in PyIceberg's configuration. All other keys catalog.* are its properties.")
        .define("catalog.type", STRING, None, HIGH)
        .doc("The type of the catalog: rest, sql, hive, glue or dynamodb.")
        .define("catalog.uri", STRING, None, HIGH)
        .doc("The catalog's address, such as http://catalog:8181.")
        .define("catalog.warehouse", STRING, None, HIGH)
        .doc("The location in which the catalog creates tables.")
    )

    def begin(self, config: Mapping[str, Any], props: Mapping[str, str]) -> None:
        properties = {key.removeprefix(_CATALOG): value for key, value in props.items() if key.startswith(_CATALOG)}
        name = properties.pop("name", "default")
        self._place = IcebergPlace(name, tuple(sorted(properties.items())), config["table"])

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        table = self._opened()
        if table is None:
            return {}
        found = self._offsets(table, partitions)
        return {one: found[each] for one in partitions if (each := self._application(one)) in found}

    def write_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                self._append(offsets, records)
                return
            except ConnectError:
                raise
            except IcebergConflict as error:
                if attempt == _ATTEMPTS - 1:
                    raise RetriableError(f"{offsets} cannot be committed to {self._place.table}: {error}") from error
            except Exception as error:  # the library also raises plain exceptions
                kind = RetriableError if may_pass(error) else ConnectError
                raise kind(f"{offsets} cannot be written to {self._place.table}: {error}") from error

    def _append(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        table = self._opened()
        application = self._application(offsets.topic_partition)
        if table is not None:
            self._check_is_next(offsets, self._offsets(table, [offsets.topic_partition]).get(application))
        columns = Columns(
            {} if table is None else table.columns,
            _TableColumns(f"the table {self._place.table}", None if self._evolves or table is None else EVOLUTION),
            required=[] if table is None else table.required,
            widens=iceberg_widens,
            names=ICEBERG_NAMES,
        )
        rows = self._rows(records, columns)
        if not rows.num_rows:
            return
        if table is None:
            create(self._place, rows.schema, dict.fromkeys(self._columns, "identity"))
            raise IcebergConflict(
                "the table was created in the meantime"
            )  # perhaps by another task, with other columns
        table.append(rows, {application: offsets.end})

    def _opened(self) -> IcebergTable | None:
        try:
            return opened(self._place)
        except Exception as error:  # each kind of catalog raises its own errors
            kind = RetriableError if may_pass(error) else ConnectError
            raise kind(f"the table {self._place.table} cannot be opened: {error}") from error

    def _offsets(self, table: IcebergTable, partitions: Sequence[TopicPartition]) -> Mapping[str, int]:
        try:
            return table.offsets([self._application(one) for one in partitions])
        except OffsetsExpired as error:
            raise ConnectError(str(error)) from error


class IcebergSinkConnector(TableConnector):
    """A sink that writes to an Iceberg table. See the module docstring."""

    task_class = IcebergSinkTask
    config_def = IcebergSinkTask.config_def
