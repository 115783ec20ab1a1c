"""Loads into a Delta table: each commit in its log contains files and offsets.

The offsets are Delta's application transactions, one for each partition: ``parley-load/topic/partition``, with the next
offset as the version. A commit either contains its offsets or does not exist, and readers never see files without a
commit.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.fs as pa_fs

from parley.pipeline.load.columns import NO_TIME, Layout
from parley.pipeline.load.files import OURS, Destination, Written, take_folder
from parley.pipeline.load.manifest import LoadConflict
from parley.pipeline.values.names import DELTA_NAMES
from parley.pipeline.values.widening import delta_type

if TYPE_CHECKING:
    from deltalake import DeltaTable

_APPLICATION: Final = "parley-load"


class DeltaCommits:
    """The commits of a Delta table, for one topic. Raises LoadConflict if the table has other columns."""

    def __init__(self, destination: Destination, topic: str, layout: Layout) -> None:
        self._destination = destination
        self._topic = topic
        self._layout = layout
        self._table = self._open()
        self.positions: dict[int, int] = {}

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            table = DeltaTable(self._destination.uri)
        except TableNotFoundError:
            filesystem, root = self._destination.filesystem()
            if filesystem.get_file_info(f"{root}/{OURS}/manifests").type is not pa_fs.FileType.NotFound:
                raise LoadConflict(
                    f"{self._destination.uri} contains files that are not a Delta table: use another folder"
                ) from None
            return None
        self._check(table)
        return table

    def _check(self, table: DeltaTable) -> None:
        """Raise LoadConflict if the table has other columns or other partition columns than the files."""
        uri, by = self._destination.uri, table.metadata().partition_columns
        there = {one.name: one.type for one in pa.schema(table.schema().to_arrow())}
        wanted = dict(self._columns())
        if any(there.get(name, kind) != kind for name, kind in wanted.items()):
            raise LoadConflict(f"the table {uri} has columns {_shown(there)}, not {_shown(wanted)}: use another folder")
        if by != list(self._layout.folders):
            wanted_by = list(self._layout.folders)
            raise LoadConflict(f"the table {uri} is partitioned by {by}, not {wanted_by}: use another folder")

    def _columns(self) -> list[tuple[str, Any]]:
        """Return the table's columns with Delta's types. Raises LoadConflict for a type that Delta lacks."""
        found = [(one.name, delta_type(one.type)) for one in self._layout.columns]
        if lacking := [name for name, kind in found if kind is None]:
            raise LoadConflict(f"Delta has no type for times of day ({', '.join(lacking)}): use another format")
        columns = [*found, *((name, pa.string()) for name in self._layout.folders)]
        if (problem := DELTA_NAMES.problem(dict(columns))) is not None:
            raise LoadConflict(f"{problem} in a Delta table: use another schema, or another format")
        return columns

    def look_up(self, partitions: Sequence[int]) -> None:
        """Read the next offsets of these partitions from the table's log into ``positions``."""
        if self._table is not None:
            found = {each: self._table.transaction_version(self._application(each)) for each in partitions}
            self.positions = {each: offset for each, offset in found.items() if offset is not None}

    def begin(self, positions: Mapping[int, int]) -> None:
        """Take over the folder from another load, and create the table if it does not exist. New partitions begin at
        ``positions``.

        Raises LoadConflict if another writer changes the table at the same time.
        """
        if self._table is None:
            self._make()
            self._table = self._open()  # perhaps another load has created it
        self._add_columns()
        take_folder(self._destination.uri, self._destination.load_id)
        if new := {each: offset for each, offset in positions.items() if each not in self.positions}:
            self.commit([], new)

    def _make(self) -> None:
        """Create the table unless it exists. Raises LoadConflict if another writer creates it at the same time.

        The library must not retry this: its second commit would overwrite another load's table.
        """
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import CommitFailedError

        try:
            DeltaTable.create(
                self._destination.uri,
                pa.schema(self._columns()),
                mode="ignore",
                partition_by=list(self._layout.folders) or None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise LoadConflict(f"another writer created {self._destination.uri} first: {error}") from None

    def _add_columns(self) -> None:
        """Add the missing columns to the table. They are null in its existing rows. Raises LoadConflict if another
        writer changes the table first.
        """
        from deltalake import Field, Schema
        from deltalake.exceptions import CommitFailedError

        assert self._table is not None
        there = {one.name for one in self._table.schema().fields}
        wanted: list[Field] = Schema.from_arrow(pa.schema(self._columns())).fields
        if added := [one for one in wanted if one.name not in there]:
            try:
                self._table.alter.add_columns(added)
            except CommitFailedError as error:
                raise LoadConflict(f"another writer changed {self._destination.uri} first: {error}") from None

    def commit(self, files: Sequence[Written], positions: Mapping[int, int]) -> None:
        """Add these files to the table, and store the next offsets. Raises LoadConflict if another writer has committed
        in the meantime.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        assert self._table is not None
        self._table.update_incremental()
        self._check(self._table)
        before = {each: self._table.transaction_version(self._application(each)) for each in positions}
        if any(offset is not None and offset != self.positions.get(each) for each, offset in before.items()):
            raise LoadConflict(f"another load wrote to {self._destination.uri} in the meantime; run this load again")
        moved = [Transaction(self._application(each), offset) for each, offset in positions.items()]
        try:
            self._table.create_write_transaction(
                [self._action(one) for one in files],
                "append",
                self._table.schema(),
                list(self._layout.folders) or None,
                commit_properties=CommitProperties(app_transactions=moved, max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise LoadConflict(f"another writer committed to {self._destination.uri} first: {error}") from None
        self.positions |= positions

    def _application(self, partition: int) -> str:
        return f"{_APPLICATION}/{self._topic}/{partition}"

    def _action(self, one: Written) -> Any:
        from deltalake.transaction import AddAction

        pairs = [part.split("=", 1) for part in one.path.split("/")[:-1]] if self._layout.partition_by else []
        values = {name: None if value == NO_TIME else value for name, value in pairs}
        assert tuple(values) == self._layout.folders
        return AddAction(one.path, one.size_bytes, values, time.time_ns() // 1_000_000, True, one.statistics)


def _shown(columns: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in sorted(columns.items()))


def new_load_id() -> str:
    """Return a unique id for a load."""
    return uuid.uuid4().hex
