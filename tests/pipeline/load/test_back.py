"""Files to a topic again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest

from pipeline.cluster import Connection
from pipeline.load.back import BackSettings, BackTask, send_back, send_rows
from pipeline.load.columns import BadRecord, Layout
from pipeline.load.files import Task, Written, write_range
from pipeline.load.job import LoadSettings, load
from tests.pipeline.mirror.clusters import Row, as_rows, create, produce, read, rows
from tools.pytest_plugin import KafkaBroker


class Killed(Exception):
    """What stands for a kill -9."""


def in_process(tasks: list[BackTask]) -> list[int]:
    return [send_rows(task) for task in tasks]


def written(tasks: list[Task]) -> list[list[Written]]:
    return [write_range(task) for task in tasks]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_what_was_loaded_becomes_the_same_records_once(kafka_broker: KafkaBroker, tmp_path: Path, kind: str) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    there, again = create(bootstrap, f"there-{kind}", 2), create(bootstrap, f"again-{kind}", 2)
    produce(bootstrap, there, rows(1200), 0)
    produce(bootstrap, there, rows(100, 5000), 1)
    connection = Connection(bootstrap=bootstrap)
    load(LoadSettings(connection, there, str(tmp_path), kind, Layout(), per_file=500), written)
    produce(bootstrap, again, [(None, b"was there", 1, ())], 0)
    settings = BackSettings(connection, again, str(tmp_path), kind)

    def dying(tasks: list[BackTask]) -> list[int]:
        in_process(tasks[:1])
        raise Killed

    with pytest.raises(Killed):
        send_back(settings, dying)
    assert send_back(settings, in_process) == 100
    assert send_back(settings, in_process) == 0
    assert as_rows(read(bootstrap, again, 0))[1:] == rows(1200)
    assert as_rows(read(bootstrap, again, 1)) == rows(100, 5000)
    produce(bootstrap, there, rows(10, 1200), 0)
    load(LoadSettings(connection, there, str(tmp_path), kind, Layout()), written)
    assert send_back(settings, in_process) == 10
    assert as_rows(read(bootstrap, again, 0))[1:] == rows(1210)


def test_any_rows_become_records(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "rows", 2)
    pa_parquet.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes((tmp_path / "x.parquet").read_bytes())
    settings = BackSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    assert send_back(settings, in_process) == 4
    for partition in range(2):
        found = [message.value() for message in read(bootstrap, topic, partition)]
        assert found == [b'{"id":1,"name":"a"}', b'{"id":2,"name":null}']


def test_csv_and_json_come_back(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    there = create(bootstrap, "texts-there")
    records: list[Row] = [
        (b"k", b'a "b"\nc', 1_700_000_000_123, (("h", b"v"),)),
        (None, b"2", 1_700_000_000_124, ()),
        (b"", b"", 1_700_000_000_125, ()),
        (b"007", None, 1_700_000_000_126, ()),
        (b"1e5", b"True", 1_700_000_000_127, ()),
        (b"2026-11-21", b"1.0", 1_700_000_000_128, (("", b""), ("n", None))),
    ]
    produce(bootstrap, there, records)
    for kind in ("csv", "json"):
        topic = create(bootstrap, f"texts-again-{kind}")
        connection = Connection(bootstrap=bootstrap)
        layout = Layout("string", "string", text=kind == "csv")
        load(LoadSettings(connection, there, str(tmp_path / kind), kind, layout), written)
        send_back(BackSettings(connection, topic, str(tmp_path / kind), kind), in_process)
        assert as_rows(read(bootstrap, topic)) == records


def test_what_a_killed_load_has_left_is_not_sent(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    there, again = create(bootstrap, "torn-there"), create(bootstrap, "torn-again")
    produce(bootstrap, there, rows(10))
    settings = LoadSettings(Connection(bootstrap=bootstrap), there, str(tmp_path), "parquet", Layout(), per_file=4)

    def dying(tasks: list[Task]) -> list[list[Written]]:
        if written(tasks)[0][0].range.first:
            raise Killed
        return written(tasks)

    with pytest.raises(Killed):
        load(settings, dying, at_once=1)
    assert len(list(tmp_path.glob("*.parquet"))) == 2
    assert send_back(BackSettings(settings.connection, again, str(tmp_path), "parquet"), in_process) == 4


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_file_of_another_kind_is_named(kafka_broker: KafkaBroker, tmp_path: Path, kind: str) -> None:
    topic = create(kafka_broker.bootstrap_servers, f"broken-{kind}")
    (tmp_path / f"x.{kind}").write_bytes(b'\xff{"a": 1\n1,2\n')
    settings = BackSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), kind)
    with pytest.raises(BadRecord, match=f"x.{kind}"):
        send_back(settings, in_process)


def test_a_folder_without_files_is_said(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create(kafka_broker.bootstrap_servers, "nothing")
    with pytest.raises(ValueError, match="no files of parquet"):
        send_back(
            BackSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), "parquet"),
            in_process,
        )
