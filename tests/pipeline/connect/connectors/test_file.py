"""The file connectors: they copy lines of files to topics, and records of topics to files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from parley.pipeline.connect.connectors.file import (
    FileStreamSinkTask,
    FileStreamSourceConnector,
    FileStreamSourceTask,
)
from parley.pipeline.connect.data import INT32, Struct, struct
from parley.pipeline.connect.errors import ConnectError
from tests.pipeline.connect.connectors.tasks import Context, StoredReader, polled, record, started


def test_lines_and_where_they_end(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"one\ntwo\r\n\nthree")
    task = started(FileStreamSourceTask(), {"file": str(path), "topic": "t"})
    records = polled(task)
    assert [(one.value, one.source_offset["position"]) for one in records] == [("one", 4), ("two", 9), ("", 10)]
    assert {(one.topic, one.key, one.source_partition["filename"]) for one in records} == {("t", None, str(path))}
    with path.open("ab") as file:
        file.write(b" is whole now\n\xff\n")
    assert [one.value for one in polled(task)] == ["three is whole now", "\ufffd"]
    task.stop()


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    path, offsets = tmp_path / "in", StoredReader()
    path.write_text("".join(f"{number}\n" for number in range(100)))
    config = {"file": str(path), "topic": "t", "batch.size": "10"}
    task = started(FileStreamSourceTask(), config, offsets=offsets)
    first = task.poll()
    assert len(first) == 10
    offsets.put(first[-1])
    task.stop()
    task = started(FileStreamSourceTask(), config, offsets=offsets)
    assert [one.value for one in polled(task)] == [str(number) for number in range(10, 100)]
    task.stop()


def test_a_file_that_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "in"
    task = started(FileStreamSourceTask(), {"file": str(path), "topic": "t"})
    assert task.poll() is None
    path.write_text("a\n")
    assert [one.value for one in polled(task)] == ["a"]
    task.stop()


def test_a_long_line_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("x" * 1_000_000 + "\ny\n")
    task = started(FileStreamSourceTask(), {"file": str(path), "topic": "t"})
    assert [len(one.value) for one in polled(task, until_empty=6)] == [1_000_000, 1]
    task.stop()


def test_standard_input_has_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as source, os.fdopen(writing, "wb", buffering=0) as target:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": source}))
        task = started(FileStreamSourceTask(), {"topic": "t"})
        assert task.poll() is None
        target.write(b"a\nb\n")
        assert [(one.value, one.source_offset) for one in polled(task)] == [("a", {}), ("b", {})]
        task.stop()


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"position": -1}, "non-negative"),
        ({"position": "1"}, "expected to be a Long"),
        ({"position": True}, "expected to be a Long"),
        ({"x": 1}, "contain the key 'position'"),
    ],
)
def test_offsets_that_make_no_sense_are_refused(offset: dict[str, object], message: str) -> None:
    connector = FileStreamSourceConnector()
    props = {"file": "f", "topic": "t"}
    assert connector.alter_offsets(props, {"a": ({"filename": "f"}, {"position": 1}), "b": ({"any": 1}, None)})
    with pytest.raises(ConnectError, match=message):
        connector.alter_offsets(props, {"a": ({"filename": "f"}, offset)})
    with pytest.raises(ConnectError, match="filename"):
        connector.alter_offsets(props, {"a": ({}, {"position": 1})})
    with pytest.raises(ConnectError, match="unspecified"):
        connector.alter_offsets({"topic": "t"}, {})


def test_records_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "out"
    task = started(FileStreamSinkTask(), {"file": str(path)})
    shape = struct({"a": INT32})
    values = ["text", b"bytes", 1, True, None, Struct(shape, {"a": 1}), {"a": [None, {"b": False}], "c": 1e16}, "ä"]
    task.put([record(number, value) for number, value in enumerate(values)])
    task.flush({})
    shown = ["text", "bytes", "1", "true", "null", "Struct{a=1}", "{a=[null, {b=false}], c=1.0E16}", "ä"]
    assert path.read_text(encoding="utf-8").splitlines() == shown
    task.stop()
    task = started(FileStreamSinkTask(), {"file": str(path)})
    task.put([record(7, "more")])
    task.stop()
    assert path.read_text(encoding="utf-8").splitlines()[-2:] == ["ä", "more"]


def test_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    task = started(FileStreamSinkTask(), {})
    task.put([record(0, "a")])
    task.stop()
    assert capsys.readouterr().out == "a\n"


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    task = FileStreamSinkTask()
    task.initialize(Context({}))  # type: ignore[arg-type]
    with pytest.raises(ConnectError, match="Couldn't find or create file"):
        task.start({"file": str(tmp_path / "none" / "out")})


def test_a_task_logs_if_it_waits_for_its_file_or_reads_standard_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started(FileStreamSourceTask(), {"fil": "in.txt", "topic": "t"})
    waiting = started(FileStreamSourceTask(), {"file": str(tmp_path / "in.txt"), "topic": "t"})
    assert [waiting.poll() for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "no 'file' is set: the task for topic 't' reads the standard input",
        f"{tmp_path}/in.txt does not exist: the task waits for it",
    ]


def test_a_sink_that_could_not_start_stops_in_order(tmp_path: Path) -> None:
    task = FileStreamSinkTask()
    with pytest.raises(ConnectError):
        started(task, {"file": str(tmp_path / "none" / "out")})
    task.stop()
