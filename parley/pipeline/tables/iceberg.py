"""Appends rows or files to an Iceberg table, with their offsets in the same commit.

Rules:

* The offsets are in the snapshot's summary (``parley.offset.<application>``): each of Parley's snapshots contains all
  of them. They are read from the latest such snapshot among the ancestors of the current one. Therefore a table that is
  rolled back gets its lost records again.
* A property of the table shows that an application has written to it. If no snapshot contains its offset (the snapshots
  have expired, or the table was rolled back beyond them), appending is refused.
* A commit is valid only on top of the snapshot that was read. Otherwise the library would repeat it on top of other
  snapshots, which may contain the same records. If the outcome of a commit is unknown, its mark in the snapshots shows
  whether it succeeded.
* Columns are added and widened as Iceberg allows: no file is rewritten.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from parley.pipeline.values.widening import iceberg_type

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.snapshots import Snapshot


_OFFSET: Final = "parley.offset."
_MARK: Final = "parley.commit"
_WRITER: Final = "parley.writer."
_RETRIES: Final = "commit.retry.num-retries"


class IcebergConflict(Exception):
    """Raised if another writer has committed first. This commit was not made."""


class OffsetsExpired(Exception):
    """Raised if the table no longer has the offset of an application. The message says what to do."""


@dataclass(frozen=True, slots=True)
class IcebergPlace:
    """The place of a table: its name in a catalog.

    ``properties`` are pyiceberg's properties for the catalog. Pyiceberg's own configuration (``.pyiceberg.yaml``,
    ``PYICEBERG_CATALOG__<NAME>__<KEY>``) also applies.
    """

    catalog: str
    properties: tuple[tuple[str, str], ...]
    table: str

    def load(self) -> Any:
        """Return pyiceberg's object for the catalog."""
        from pyiceberg.catalog import load_catalog

        return load_catalog(self.catalog, **dict(self.properties))


def opened(place: IcebergPlace) -> IcebergTable | None:
    """Load the table as it is now. Returns None if the catalog does not contain it. Raises the catalog's own errors
    (see ``may_pass``).
    """
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return IcebergTable(place.load().load_table(place.table))
    except NoSuchTableError:
        return None


def create(place: IcebergPlace, schema: pa.Schema, divided_by: Mapping[str, str]) -> IcebergTable:
    """Create an empty table, unless another writer creates it first. Returns the table.

    ``divided_by`` are the partition columns, each with its transform: ``identity``, ``year``, ``month``, ``day`` or
    ``hour``. Raises the catalog's own errors (see ``may_pass``).
    """
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from pyiceberg.transforms import parse_transform

    catalog = place.load()
    namespace = place.table.rpartition(".")[0]
    if namespace:
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except Exception:  # each catalog raises a different error if the namespace was created in the meantime
            if not catalog.namespace_exists(namespace):
                raise
    try:
        with catalog.create_table_transaction(place.table, schema) as making, making.update_spec() as spec:
            for column, by in divided_by.items():
                spec.add_field(column, parse_transform(by), column if by == "identity" else f"{column}_{by}")
    except (TableAlreadyExistsError, CommitFailedException):
        pass  # another writer was first; if not, the table is missing below
    return IcebergTable(catalog.load_table(place.table))


def may_pass(error: BaseException) -> bool:
    """Return True if an error of a catalog or a store may be temporary."""
    from pyiceberg.exceptions import CommitStateUnknownException, ServerError, ServiceUnavailableError
    from sqlalchemy.exc import OperationalError

    passing = (OSError, OperationalError, CommitStateUnknownException, ServerError, ServiceUnavailableError)
    return isinstance(error, passing)


class IcebergTable:
    """A table as it was when it was opened. If it has changed since, commits are refused."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def location(self) -> str:
        return str(self._table.location())

    @property
    def columns(self) -> dict[str, Any]:
        """The columns and their Arrow types, in the form of ``iceberg_type``."""
        return {each.name: iceberg_type(each.type) for each in self._table.schema().as_arrow()}

    @property
    def required(self) -> list[str]:
        """The columns that do not accept nulls."""
        return [each.name for each in self._table.schema().fields if each.required]

    @property
    def division(self) -> dict[str, str]:
        """The partition columns and their transforms, as in ``create``."""
        schema = self._table.schema()
        return {
            schema.find_column_name(each.source_id) or "": str(each.transform) for each in self._table.spec().fields
        }

    def offsets(self, applications: Sequence[str]) -> dict[str, int]:
        """Return the offset of each application. Applications that have never written are left out. Raises
        OffsetsExpired."""
        found = self._offsets()
        for application in applications:
            writer = _WRITER + application
            if application not in found and writer in self._table.properties:
                raise OffsetsExpired(
                    f"the snapshots of {self._name} that hold the offset of {application} have expired, or the table"
                    f" was rolled back beyond them. To start again from the consumer group's position, or from the"
                    f" beginning of the topic, remove the table's property {writer}"
                )
        return {each: found[each] for each in applications if each in found}

    def append(self, rows: pa.Table, offsets: Mapping[str, int]) -> None:
        """Append rows, and store the offsets by application in the same commit. Columns that the table lacks are added
        to it.

        Raises IcebergConflict, and the catalog's own errors (see ``may_pass``).
        """
        from parley.pipeline.tables.iceberg_nulls import keep_nulls

        keep_nulls()

        def write(transaction: Transaction, summary: dict[str, str]) -> None:
            self._widen(transaction, rows.schema)
            transaction.append(rows, snapshot_properties=summary)

        self._commit(write, offsets)

    def add_files(self, paths: Sequence[str], schema: pa.Schema, offsets: Mapping[str, int]) -> None:
        """Append Parquet files with this schema, which are already in place, and store the offsets by application in
        the same commit.

        Raises IcebergConflict, and the catalog's own errors (see ``may_pass``).
        """

        def write(transaction: Transaction, summary: dict[str, str]) -> None:
            self._widen(transaction, schema)
            transaction.add_files(list(paths), snapshot_properties=summary, check_duplicate_files=False)

        self._commit(write, offsets)

    @property
    def _name(self) -> str:
        return ".".join(self._table.name())

    def _widen(self, transaction: Transaction, schema: pa.Schema) -> None:
        there = self.columns
        if any(there.get(each.name) != each.type for each in schema):
            with transaction.update_schema() as update:
                update.union_by_name(schema)

    def _offsets(self) -> dict[str, int]:
        """Return all offsets in Parley's latest snapshot; empty if there is no such snapshot."""
        for snapshot in self._snapshots():
            found = _summary(snapshot)
            if _MARK in found:
                marks = {name.removeprefix(_OFFSET): text for name, text in found.items() if name.startswith(_OFFSET)}
                return {application: int(text) for application, text in marks.items()}
        return {}

    def _snapshots(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and its ancestors that have not expired, the latest first."""
        snapshot = self._table.current_snapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else self._table.snapshot_by_id(parent)

    def _commit(self, write: Callable[[Transaction, dict[str, str]], None], offsets: Mapping[str, int]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        mark = uuid.uuid4().hex
        everything = {**self._offsets(), **offsets}
        summary = {_MARK: mark, **{_OFFSET + each: str(offset) for each, offset in everything.items()}}
        writers = {_WRITER + each: "offsets in snapshots" for each in offsets}
        # Turn off retries on this object only, not in the catalog, so that other writers can still retry.
        metadata = self._table.metadata
        self._table.metadata = metadata.model_copy(update={"properties": {**metadata.properties, _RETRIES: "0"}})
        transaction = self._table.transaction()
        try:
            if writers.keys() - metadata.properties.keys():
                transaction.set_properties(writers)
            write(transaction, summary)
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise IcebergConflict(f"another writer committed to {self._name} first: {error}") from error
        except Exception:
            if not self._has(mark):
                raise

    def _has(self, mark: str) -> bool:
        """Return True if a snapshot has the mark of the commit. If the catalog fails, return False: the caller raises
        the earlier error.
        """
        try:
            self._table.refresh()
        except Exception:
            return False
        return any(_summary(each).get(_MARK) == mark for each in self._snapshots())


def _summary(snapshot: Snapshot) -> Mapping[str, str]:
    return {} if snapshot.summary is None else snapshot.summary.additional_properties
