"""The number of rows that a load will send."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from parley.pipeline.load.row_count import RowCount


def counted(folder: Path, kind: str, *files: str) -> int:
    count = RowCount(str(folder), kind, files)
    while count.known is None:
        pass
    return count.known


@pytest.mark.parametrize(
    ("text", "lines"), [("", 0), ("{}", 1), ("{}\n", 1), ("{}\n{}", 2), ("{}\n" * 400_000, 400_000)]
)
def test_json_lines(tmp_path: Path, text: str, lines: int) -> None:
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "b.json").write_text("{}\n")
    assert counted(tmp_path, "json", "a.json", "b.json") == lines + 1


def test_parquet_rows(tmp_path: Path) -> None:
    for name, rows in (("a.parquet", 3), ("b.parquet", 0), ("c.parquet", 5)):
        pa_parquet.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), tmp_path / name)
    assert counted(tmp_path, "parquet", "a.parquet", "b.parquet") == 3


def test_csv_rows_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("value\n1\n")
    assert RowCount(str(tmp_path), "csv", ["a.csv"]).known is None


def test_a_file_that_cannot_be_read_leaves_the_end_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "a.parquet").write_bytes(b"no footer")
    count = RowCount(str(tmp_path), "parquet", ["a.parquet"])
    while not caplog.messages:
        pass
    assert "cannot be counted" in caplog.messages[0]
    assert count.known is None
