"""Writes topics to a Delta table, each record once.

The table's log stores the offset of each partition in Delta's application transactions (``txn``: the application id is
``<connector>:<topic>-<partition>``, the version is the end of the range). Rows and offset are committed together. A
restarted task reads its offsets from the table. A task that another task has replaced finds newer offsets and fails.
The first write creates the table.

The ``deltalake`` library would cast values that do not fit, for example 5.5 to 5. Therefore the rows are first
converted to the table's types, by the rule of ``columns``. New columns and struct fields only change the schema. Any
other widening rewrites the table with the wider type, because readers of Delta do not expect files of different types
in a table. This is a separate commit, which fails if another task commits meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from parley.pipeline.connect.connector import OffsetRange
from parley.pipeline.connect.connectors.columns import Columns
from parley.pipeline.connect.connectors.ranges import EVOLUTION, TableConnector, TableTask, table_keys
from parley.pipeline.connect.errors import ConnectError, RetriableError
from parley.pipeline.connect.records import SinkRecord, TopicPartition
from parley.pipeline.values.exact import DoesNotFit, fits, fitter
from parley.pipeline.values.names import DELTA_NAMES
from parley.pipeline.values.widening import delta_type, is_always_exact, only_adds_fields

_STORAGE: Final = "storage."
_BATCH_ROWS: Final = 65_536
"""The number of rows in memory at once while a table is read for a widening."""


@dataclass(frozen=True, slots=True)
class _TableColumns:
    """A Delta table as a target of ``Columns``."""

    name: str
    evolution_key: str | None
    table: DeltaTable | None

    def column(self, kind: Any) -> Any:
        return delta_type(kind)

    def stays_exact(self, name: str, kind: Any) -> bool:
        if self.table is None:
            return True
        return all(fits(value, kind) for batch in _scan(self.table, [name]) for value in batch.column(0).to_pylist())


def _schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _scan(table: DeltaTable, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Return the rows of a table, with the named columns only."""
    return iter(table.to_pyarrow_dataset().scanner(columns=list(names), batch_size=_BATCH_ROWS).to_reader())


def _converted(table: DeltaTable, schema: pa.Schema, kinds: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with new types for the columns in ``kinds``. Raises ConnectError.

    A separate thread reads them: the library consumes the batches in its own thread, in which its functions must not be
    called.
    """
    with ThreadPoolExecutor(1) as reading:
        batches = reading.submit(_scan, table, schema.names).result()
        while (batch := reading.submit(next, batches, None).result()) is not None:
            arrays = [
                _as_kind(each, batch.column(each.name)) if each.name in kinds else batch.column(each.name)
                for each in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _check_still_exact(table: DeltaTable | None, kinds: Mapping[str, Any]) -> None:
    """Raise RetriableError if another task has changed the table so that these types are no longer exact in it."""
    there = {} if table is None else {each.name: each.type for each in _schema(table)}
    changed = [name for name, kind in there.items() if name in kinds and not is_always_exact(kinds[name], kind)]
    if changed or table is None:
        raise RetriableError(f"another task changed the columns {', '.join(changed)} in the meantime")


def _as_kind(field: pa.Field, column: pa.Array) -> pa.Array:
    fit = fitter(field.type)
    try:
        return pa.array([fit(value) for value in column.to_pylist()], field.type)
    except DoesNotFit as error:
        raise ConnectError(f"the column {field.name} cannot be widened: {error}") from None


class DeltaSinkTask(TableTask):
    """Writes each range in one commit."""

    config_def = table_keys(
        "url", "The table: a folder, or s3://bucket/path, gs://..., abfs://...; storage.* are for the store."
    )

    def begin(self, config: Mapping[str, Any], props: Mapping[str, str]) -> None:
        self._url: str = config["url"]
        self._storage = {key.removeprefix(_STORAGE): value for key, value in props.items() if key.startswith(_STORAGE)}

    def committed(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        table = self._table()
        if table is None:
            return {}
        ends = {one: table.transaction_version(self._application(one)) for one in partitions}
        return {one: end for one, end in ends.items() if end is not None}

    def write_range(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        try:
            self._append(offsets, records)
        except ConnectError:
            raise
        except (CommitFailedError, OSError) as error:
            raise RetriableError(f"{offsets} cannot be committed to {self._url}: {error}") from error
        except Exception as error:  # the library also raises plain exceptions
            raise ConnectError(f"{offsets} cannot be written to {self._url}: {error}") from error

    def _append(self, offsets: OffsetRange, records: Sequence[SinkRecord]) -> None:
        table = self._table_without(offsets)
        schema = pa.schema([]) if table is None else _schema(table)
        columns = Columns(
            {each.name: each.type for each in schema},
            _TableColumns(f"the table {self._url}", None if self._evolves or table is None else EVOLUTION, table),
            required=[each.name for each in schema if not each.nullable],
            names=DELTA_NAMES,
            dividing=self._columns if table is None else table.metadata().partition_columns,
        )
        rows = self._rows(records, columns)
        if not rows.num_rows:
            return
        widened = columns.widened
        if table is not None and not all(only_adds_fields(schema.field(name).type, widened[name]) for name in widened):
            self._rewrite(table, schema, widened)
            table = self._table_without(offsets)
            _check_still_exact(table, columns.kinds)
        done = Transaction(self._application(offsets.topic_partition), offsets.end)
        if table is None:
            self._make(rows, done)
            return
        write_deltalake(
            table,  # the version read above: a later schema change is a conflict, and so is a commit of the same range
            rows,
            mode="append",
            schema_mode="merge" if columns.added or widened else None,
            partition_by=self._columns or None,
            storage_options=self._storage or None,
            commit_properties=CommitProperties(app_transactions=[done]),
        )

    def _make(self, rows: pa.Table, done: Transaction) -> None:
        """Create the table with its first rows. ``done`` is the transaction that stores the offset.

        Raises RetriableError if another task creates the table first. The library must not retry: its second commit
        would overwrite the other task's table.
        """
        try:
            write_deltalake(
                self._url,
                rows,
                mode="error",
                partition_by=self._columns or None,
                storage_options=self._storage or None,
                commit_properties=CommitProperties(app_transactions=[done], max_commit_retries=0),
            )
        except DeltaError as error:
            if self._table() is None:
                raise
            raise RetriableError(f"another task created the table {self._url} first: {error}") from error

    def _rewrite(self, table: DeltaTable, schema: pa.Schema, kinds: Mapping[str, Any]) -> None:
        """Rewrite the whole table with new types for some columns.

        Raises CommitFailedError if another task commits first.
        """
        wider = pa.schema([each.with_type(kinds.get(each.name, each.type)) for each in schema])
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(wider, _converted(table, wider, kinds)),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=table.metadata().partition_columns or None,
            storage_options=self._storage or None,
            commit_properties=CommitProperties(max_commit_retries=0),
        )

    def _table_without(self, offsets: OffsetRange) -> DeltaTable | None:
        """Return the table, or None if it does not exist. Raises ConnectError if it already contains the range."""
        table = self._table()
        if table is not None:
            self._check_is_next(offsets, table.transaction_version(self._application(offsets.topic_partition)))
        return table

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._url, storage_options=self._storage or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise RetriableError(f"the table {self._url} cannot be opened: {error}") from error


class DeltaSinkConnector(TableConnector):
    """A sink that writes to a Delta table. See the module docstring."""

    task_class = DeltaSinkTask
    config_def = DeltaSinkTask.config_def
