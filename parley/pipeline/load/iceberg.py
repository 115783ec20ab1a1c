"""Loads into an Iceberg table: each commit contains files and offsets (``parley.pipeline.tables.iceberg``).

The files are below the ``data`` folder of the table. Columns are added, and widened as Iceberg allows. A table that is
partitioned by event time uses Iceberg's own partitioning, so readers need not know the folders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from parley.pipeline.load.columns import Layout
from parley.pipeline.load.files import Written, take_folder
from parley.pipeline.load.manifest import LoadConflict
from parley.pipeline.tables.iceberg import (
    IcebergConflict,
    IcebergPlace,
    IcebergTable,
    OffsetsExpired,
    create,
    opened,
)
from parley.pipeline.values.names import ICEBERG_NAMES
from parley.pipeline.values.widening import iceberg_columns, iceberg_widens

_APPLICATION: Final = "parley-load"
_ATTEMPTS: Final = 20
"""How often a commit is retried after other writers have committed."""


class IcebergCommits:
    """The commits of a table, for one topic. Creates a missing table. Raises LoadConflict if it has other columns."""

    def __init__(self, place: IcebergPlace, topic: str, layout: Layout, load_id: str) -> None:
        self._place = place
        self._load_id = load_id
        self._topic = topic
        self._columns = iceberg_columns(layout.columns)
        if (problem := ICEBERG_NAMES.problem({one.name: one.type for one in self._columns})) is not None:
            raise LoadConflict(f"{problem} in an Iceberg table: use another schema, or another format")
        self._division = _division(layout, self._columns)
        self._table = opened(place) or create(place, self._columns, self._division)
        self._check()
        self.positions: dict[int, int] = {}

    @property
    def folder(self) -> str:
        """The folder to which the files are written."""
        return f"{self._table.location}/data"

    def look_up(self, partitions: Sequence[int]) -> None:
        """Read the next offsets of these partitions into ``positions``. Raises LoadConflict if the table no longer has
        them.
        """
        self.positions = self._read(self._table, partitions)

    def begin(self, positions: Mapping[int, int]) -> None:
        """Take over the table from another load. New partitions begin at ``positions``. Raises LoadConflict."""
        take_folder(self.folder, self._load_id)
        if new := {each: offset for each, offset in positions.items() if each not in self.positions}:
            self.commit([], new)

    def commit(self, files: Sequence[Written], positions: Mapping[int, int]) -> None:
        """Add these files to the table. Raises LoadConflict if the offsets changed in the meantime."""
        paths = [f"{self.folder}/{one.path}" for one in files]
        moved = {self._application(each): offset for each, offset in positions.items()}
        for attempt in range(_ATTEMPTS):
            if (table := opened(self._place)) is None:
                raise LoadConflict(f"the table {self._place.table} was deleted; run this load again")
            self._table = table
            self._check()
            before = self._read(table, list(positions))
            if any(offset != self.positions.get(each) for each, offset in before.items()):
                raise LoadConflict(f"another load wrote to {self._place.table} in the meantime; run this load again")
            try:
                table.add_files(paths, self._columns, moved)
                break
            except IcebergConflict as error:
                if attempt == _ATTEMPTS - 1:
                    raise LoadConflict(f"other writers keep committing to {self._place.table}: {error}") from None
        self.positions |= positions

    def _check(self) -> None:
        there, wanted = self._table.columns, {one.name: one.type for one in self._columns}
        name = self._place.table
        if other := [each for each, kind in wanted.items() if not iceberg_widens(there.get(each, kind), kind)]:
            shown = ", ".join(f"{each} {there[each]}, not {wanted[each]}" for each in other)
            raise LoadConflict(f"the table {name} has the columns {shown}: use another table")
        if required := [each for each in self._table.required if each not in wanted]:
            raise LoadConflict(f"the columns {', '.join(required)} of {name} do not allow null: use another table")
        if self._table.division != self._division:
            divided = [_shown(each) for each in (self._table.division, self._division)]
            raise LoadConflict(f"the table {name} is partitioned by {divided[0]}, not {divided[1]}: use another table")

    def _read(self, table: IcebergTable, partitions: Sequence[int]) -> dict[int, int]:
        try:
            found = table.offsets([self._application(each) for each in partitions])
        except OffsetsExpired as error:
            raise LoadConflict(str(error)) from error
        return {each: found[name] for each in partitions if (name := self._application(each)) in found}

    def _application(self, partition: int) -> str:
        return f"{_APPLICATION}/{self._topic}/{partition}"


def _division(layout: Layout, columns: pa.Schema) -> dict[str, str]:
    """Return the partition columns of a new table, each with its transform. Raises LoadConflict if no column contains
    the event time.
    """
    if layout.partition_by is None:
        return {}
    name = layout.event_time or ("_timestamp" if layout.flat else "timestamp")
    at = columns.get_field_index(name)
    if at < 0 or not pa.types.is_timestamp(columns.field(at).type):
        raise LoadConflict(
            f"an Iceberg table is partitioned by a timestamp column, which {name} is not: declare it as a timestamp"
            " in the schema, and use --flat"
        )
    return {name: layout.partition_by}


def _shown(division: Mapping[str, Any]) -> str:
    return ", ".join(f"{by} of {column}" for column, by in division.items()) or "nothing"
