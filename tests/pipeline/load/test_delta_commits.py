"""A Delta table that other writers create or change while topics are loaded into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from parley.pipeline.load.columns import Layout
from parley.pipeline.load.delta import DeltaCommits
from parley.pipeline.load.files import Destination
from parley.pipeline.load.manifest import LoadConflict
from parley.pipeline.load.value_reading import ValueSchema


def commits(folder: Path, layout: Layout | None = None) -> DeltaCommits:
    return DeltaCommits(Destination(str(folder), "delta", "load"), "t", layout or Layout())


def columns(folder: Path) -> pa.Schema:
    """Return the columns that a load gives its table."""
    commits(folder).begin({})
    return pa.schema(DeltaTable(folder).schema().to_arrow())


def with_text_offsets(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(pa.string()) if each.name == "offset" else each for each in schema])


@pytest.mark.parametrize("by", [None, ["topic"]])
def test_a_table_that_another_makes_meanwhile_is_looked_at(tmp_path: Path, by: list[str] | None) -> None:
    schema = columns(tmp_path / "a")
    late = commits(tmp_path / "b")
    DeltaTable.create(tmp_path / "b", schema if by else with_text_offsets(schema), partition_by=by)
    with pytest.raises(LoadConflict, match="is partitioned by" if by else "offset string"):
        late.begin({0: 5})
    assert DeltaTable(tmp_path / "b").version() == 0


def test_a_load_that_another_overtook_while_the_table_was_made_names_no_file(tmp_path: Path) -> None:
    late, other = commits(tmp_path), commits(tmp_path)
    other.begin({0: 5})
    with pytest.raises(LoadConflict, match="another load"):
        late.begin({0: 0})


def test_names_that_delta_would_take_for_one_are_refused(tmp_path: Path) -> None:
    schema = ValueSchema(pa.struct([("a", pa.int64()), ("A", pa.int64())]))
    with pytest.raises(LoadConflict, match="'a' and 'A' would have the same name in a Delta table"):
        commits(tmp_path, Layout(value_format="json", schema=schema, flat=True)).begin({})


def test_two_that_make_one_table_at_once_do_not_write_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries = []

    def create(*_: Any, commit_properties: Any = None, **__: Any) -> None:
        retries.append(commit_properties.max_commit_retries)
        raise CommitFailedError("0")

    monkeypatch.setattr(DeltaTable, "create", create)
    with pytest.raises(LoadConflict, match="another writer created"):
        commits(tmp_path).begin({})
    assert retries == [0]


def test_no_file_goes_into_a_table_whose_columns_have_changed(tmp_path: Path) -> None:
    load = commits(tmp_path)
    load.begin({0: 0})
    wider = with_text_offsets(pa.schema(DeltaTable(tmp_path).schema().to_arrow()))
    write_deltalake(tmp_path, wider.empty_table(), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(LoadConflict, match="offset string"):
        load.commit([], {0: 5})


def test_columns_that_are_new_are_added_and_null_in_older_rows(tmp_path: Path) -> None:
    columns(tmp_path)
    wider = commits(tmp_path, Layout(bad_records="keep"))
    wider.begin({0: 5})
    assert "_corrupt" in pa.schema(DeltaTable(tmp_path).schema().to_arrow()).names
    narrower = commits(tmp_path)  # the table keeps the column
    narrower.look_up([0])
    assert narrower.positions == {0: 5}
