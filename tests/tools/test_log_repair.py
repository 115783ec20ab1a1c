"""``parley log-repair`` lists the ``.cut`` files of log directories, and ``parley dump-log`` prints their records."""

from __future__ import annotations

import json
from pathlib import Path

from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from tests.tools.conftest import Parley


def cut(directory: Path, partition: str, first: int, number: int, *values: bytes) -> Path:
    path = directory / partition / f"{first:020}-{number}.cut"
    path.parent.mkdir(parents=True, exist_ok=True)
    batches = [
        build([Record(0, 1000, b"k", value, ())], base_offset=first + at, partition_leader_epoch=4)
        for at, value in enumerate(values)
    ]
    path.write_bytes(b"".join(map(bytes, batches)))
    return path


def test_the_cut_files_are_listed(parley: Parley, tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    first = cut(one, "orders-0", 42, 1, b"a", b"b")
    cut(other, "orders-3", 7, 2, b"c")
    cut(other, "users-1", 0, 1, b"d")
    (one / "notes").mkdir()
    typed = parley("log-repair", "--log-dirs", f"{one},{other}", "--topic", "orders")
    assert typed.code == 0
    size = first.stat().st_size
    assert typed.lines[0] == (f"orders-0: 2 records, offsets 42 to 43, last leader epoch 4, {size} bytes in {first}")
    assert len(typed.lines) == 2
    data = json.loads(parley("log-repair", "--log-dirs", f"{one},{other}", "--json").out)
    assert [(each["topic"], each["partition"], each["firstOffset"], each["lastOffset"]) for each in data] == [
        ("orders", 0, 42, 43),
        ("orders", 3, 7, 7),
        ("users", 1, 0, 0),
    ]


def test_records_of_a_cut_file_are_printed(parley: Parley, tmp_path: Path) -> None:
    path = cut(tmp_path, "orders-0", 42, 1, b"a", b"b")
    typed = parley("dump-log", "--print-data-log", "--files", str(path))
    assert typed.code == 0
    assert typed.lines[1] == "Log starting offset: 42"
    assert "key: k payload: b" in typed.lines[-1]


def test_a_damaged_file_is_listed_up_to_the_damage(parley: Parley, tmp_path: Path) -> None:
    path = cut(tmp_path, "orders-0", 42, 1, b"a")
    path.write_bytes(path.read_bytes() + bytes(100))
    assert "1 record, offsets 42 to 42" in parley("log-repair", "--log-dirs", str(tmp_path)).out


def test_without_cut_files_nothing_was_lost(parley: Parley, tmp_path: Path) -> None:
    (tmp_path / "orders-0").mkdir()
    typed = parley("log-repair", "--log-dirs", str(tmp_path))
    assert (typed.code, typed.lines) == (
        0,
        ["There are no .cut files: no replica here had to remove committed records."],
    )


def test_a_directory_that_cannot_be_read_is_an_error(parley: Parley, tmp_path: Path) -> None:
    typed = parley("log-repair", "--log-dirs", str(tmp_path / "none"))
    assert typed.code == 1
    assert "cannot be read: No such file or directory" in typed.err
    assert parley("log-repair", "--log-dirs", ",").code == 1
