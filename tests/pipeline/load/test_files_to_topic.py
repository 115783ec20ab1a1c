"""Loading files back into a topic."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from parley.pipeline.client.cluster import Cluster, Connection
from parley.pipeline.client.sending import ProducerId
from parley.pipeline.load.columns import BadRecord, Layout
from parley.pipeline.load.files import Task, Written, write_range
from parley.pipeline.load.files_to_topic import SendSettings, SendTask, send_files, send_rows
from parley.pipeline.load.job import LoadSettings, load
from parley.pipeline.load.manifest import LoadConflict
from parley.pipeline.mirror.appending import Overtaken, new_producer
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.mirror.clusters import Row, as_rows, create, delete_records, produce, read, rows

pytestmark = pytest.mark.slow


class Killed(Exception):
    """Simulates kill -9."""


def in_process(tasks: list[SendTask]) -> list[int]:
    return [send_rows(task) for task in tasks]


def written(tasks: list[Task]) -> list[list[Written]]:
    return [write_range(task) for task in tasks]


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_loaded_files_become_the_same_records_exactly_once(
    kafka_broker: KafkaBroker, tmp_path: Path, kind: str
) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    there, again = create(bootstrap, f"there-{kind}", 2), create(bootstrap, f"again-{kind}", 2)
    produce(bootstrap, there, rows(1200), 0)
    produce(bootstrap, there, rows(100, 5000), 1)
    connection = Connection(bootstrap=bootstrap)
    load(LoadSettings(connection, there, str(tmp_path), kind, Layout(), per_file=500), written)
    produce(bootstrap, again, [(None, b"was there", 1, ())], 0)
    settings = SendSettings(connection, again, str(tmp_path), kind)

    def dying(tasks: list[SendTask]) -> list[int]:
        in_process(tasks[:1])
        raise Killed

    with pytest.raises(Killed):
        send_files(settings, dying)
    assert send_files(settings, in_process) == 100
    assert send_files(settings, in_process) == 0
    assert as_rows(read(bootstrap, again, 0))[1:] == rows(1200)
    assert as_rows(read(bootstrap, again, 1)) == rows(100, 5000)
    produce(bootstrap, there, rows(10, 1200), 0)
    load(LoadSettings(connection, there, str(tmp_path), kind, Layout()), written)
    assert send_files(settings, in_process) == 10
    assert as_rows(read(bootstrap, again, 0))[1:] == rows(1210)


def test_any_rows_become_records(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "rows", 2)
    pa_parquet.write_table(pa.table({"id": [1, 2], "name": ["a", None]}), tmp_path / "x.parquet")
    (tmp_path / "y.parquet").write_bytes((tmp_path / "x.parquet").read_bytes())
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    assert send_files(settings, in_process) == 4
    for partition in range(2):
        found = [message.value() for message in read(bootstrap, topic, partition)]
        assert found == [b'{"id":1,"name":"a"}', b'{"id":2,"name":null}']


def test_values_of_fields_come_back_as_json_has_them(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    price, at = Decimal("12345678901234567890.1234"), datetime(2026, 11, 22, tzinfo=UTC)
    kind = pa.struct({
        "price": pa.decimal128(30, 4), "raw": pa.binary(), "at": pa.timestamp("us", "UTC"),
        "counts": pa.map_(pa.string(), pa.int32()), "rate": pa.float64(),
    })  # fmt: skip
    value = {"price": price, "raw": b"\xff", "at": at, "counts": [("a", 1)], "rate": 0.1}
    table = pa.table({"key": pa.array([b"\xff"]), "value": pa.array([value], kind)})
    pa_parquet.write_table(table, tmp_path / "parquet.parquet")
    (tmp_path / "json.json").write_text(f'{{"value": {{"price": {price}}}}}\n')
    sent = {}
    for kind_of_file in ("parquet", "json"):
        topic = create(bootstrap, f"fields-{kind_of_file}")
        send_files(SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), kind_of_file), in_process)
        (sent[kind_of_file],) = read(bootstrap, topic)
    assert sent["parquet"].key() == b"\xff"
    whole = f'{{"price":{price},"raw":"/w==","at":"2026-11-22T00:00:00+00:00","counts":{{"a":1}},"rate":0.1}}'
    assert sent["parquet"].value() == whole.encode()
    assert sent["json"].value() == f'{{"price":{price}}}'.encode()


def test_csv_and_json_come_back(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    there = create(bootstrap, "texts-there")
    records: list[Row] = [
        (b"k", b'a "b"\nc', 1_700_000_000_123, (("h", b"v"),)),
        (None, b"2", 1_700_000_000_124, ()),
        (b"", b"", 1_700_000_000_125, ()),
        (b"007", None, 1_700_000_000_126, ()),
        (b"1e5", b"True", 1_700_000_000_127, ()),
        (b"2026-11-21", b"1.0", 1_700_000_000_128, (("", b""), ("n", None), ("raw", b"\xff\0"))),
    ]
    produce(bootstrap, there, records)
    for kind in ("csv", "json"):
        topic = create(bootstrap, f"texts-again-{kind}")
        connection = Connection(bootstrap=bootstrap)
        layout = Layout("string", "string", text=kind == "csv")
        load(LoadSettings(connection, there, str(tmp_path / kind), kind, layout), written)
        send_files(SendSettings(connection, topic, str(tmp_path / kind), kind), in_process)
        assert as_rows(read(bootstrap, topic)) == records


def test_files_left_by_a_killed_load_are_not_sent(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
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
    assert send_files(SendSettings(settings.connection, again, str(tmp_path), "parquet"), in_process) == 4


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_a_file_of_another_kind_is_named(kafka_broker: KafkaBroker, tmp_path: Path, kind: str) -> None:
    topic = create(kafka_broker.bootstrap_servers, f"broken-{kind}")
    (tmp_path / f"x.{kind}").write_bytes(b'\xff{"a": 1\n1,2\n')
    settings = SendSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), kind)
    with pytest.raises(BadRecord, match=f"x.{kind}"):
        send_files(settings, in_process)


def test_a_file_with_invalid_base64_is_not_sent(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create(kafka_broker.bootstrap_servers, "no-base64")
    pa_parquet.write_table(pa.table({"value": ["AA==", "A_=="]}), tmp_path / "x.parquet")
    settings = SendSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), "parquet", True)
    with pytest.raises(BadRecord, match="not base64"):
        send_files(settings, in_process)


@pytest.mark.parametrize("field", ["timestamp", "headers"])
def test_a_row_with_a_malformed_field_names_its_file(kafka_broker: KafkaBroker, tmp_path: Path, field: str) -> None:
    topic = create(kafka_broker.bootstrap_servers, f"malformed-{field}")
    pa_parquet.write_table(pa.table({"value": ["a"], field: ["not one"]}), tmp_path / "x.parquet")
    settings = SendSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), "parquet")
    with pytest.raises(BadRecord, match=r"x\.parquet has a row with an invalid timestamp or invalid headers"):
        send_files(settings, in_process)


def test_a_folder_without_files_is_said(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create(kafka_broker.bootstrap_servers, "without-files")
    with pytest.raises(ValueError, match="contains no parquet files"):
        send_files(
            SendSettings(Connection(bootstrap=kafka_broker.bootstrap_servers), topic, str(tmp_path), "parquet"),
            in_process,
        )


def some_files(folder: Path, number: int) -> list[bytes]:
    """Write a file of this many rows. Returns their values."""
    values = [b"row %d" % one for one in range(number)]
    pa_parquet.write_table(pa.table({"value": values}), folder / "x.parquet")
    return values


def test_an_application_that_was_the_only_writer_is_not_a_load(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    """The sequence numbers of an application that wrote from the beginning equal its offsets. It does not count as a
    load, and the load does not use its producer id."""
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "alone")
    application = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def write(number: int) -> None:
        for one in range(number):
            application.produce(topic, b"other %d" % one, partition=0)
        assert application.flush(30) == 0

    def meanwhile(tasks: list[SendTask]) -> list[int]:
        write(10)
        return in_process(tasks)

    write(100)
    expected = some_files(tmp_path, 50)
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    assert send_files(settings, meanwhile) == 50
    write(50)
    found = [message.value() for message in read(bootstrap, topic)]
    assert found[110:160] == expected
    assert len(found) == 210


def test_others_may_write_between_a_kill_and_the_next_start(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "between")
    expected = some_files(tmp_path, 12_000)
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")

    def dying(tasks: list[SendTask]) -> list[int]:
        produce(bootstrap, topic, [(None, b"other", 1, ())])
        in_process(tasks)
        produce(bootstrap, topic, [(None, b"other", 1, ())])
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            send_files(settings, dying)
    assert send_files(settings, in_process) == 0
    assert [value for one in read(bootstrap, topic) if (value := one.value()) != b"other"] == expected


def test_two_loads_that_begin_at_the_same_moment_are_one(
    kafka_broker: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "both")
    expected = some_files(tmp_path, 12_000)
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    both_there = Barrier(2)

    def together(cluster: Cluster) -> ProducerId:
        both_there.wait()  # neither load has found the other's note
        return new_producer(cluster)

    monkeypatch.setattr("parley.pipeline.load.files_to_topic.new_producer", together)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda _: send_files(settings, in_process), range(2)))
    assert [message.value() for message in read(bootstrap, topic)] == expected


def test_a_recreated_topic_gets_all_rows(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "anew")
    expected = some_files(tmp_path, 10)
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    assert send_files(settings, in_process) == 10
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    create(bootstrap, topic)
    assert send_files(settings, in_process) == 10
    assert [message.value() for message in read(bootstrap, topic)] == expected


def test_notes_of_an_older_version(kafka_broker: KafkaBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the older version finished is done. For an unfinished file, the number of rows in the topic is unknown."""
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "older")
    some_files(tmp_path, 10)
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")
    older = tmp_path / "_parley" / f"back-{topic}.json"
    older.parent.mkdir()
    older.write_text(json.dumps({"finished": True, "files": ["x.parquet"], "sent": [], "starts": [0]}))
    assert send_files(settings, in_process) == 0
    older.write_text(json.dumps({"finished": False, "files": ["x.parquet"], "sent": [], "starts": [0]}))
    assert send_files(settings, in_process) == 10
    assert "some may be duplicated" in caplog.text
    assert send_files(settings, in_process) == 0


def test_rows_that_were_sent_and_deleted_are_not_guessed_at(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "guess")
    some_files(tmp_path, 4000)  # more batches than a log remembers of a producer
    settings = SendSettings(Connection(bootstrap=bootstrap), topic, str(tmp_path), "parquet")

    def dying(tasks: list[SendTask]) -> list[int]:
        in_process(tasks)
        raise Killed

    with pytest.raises(Killed):
        send_files(settings, dying)
    delete_records(bootstrap, topic, 0, 4000)
    with pytest.raises(Overtaken, match="remove _parley/back/guess"):
        send_files(settings, in_process)


def test_a_delta_table_is_not_sent_as_the_files_it_is_made_of(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    bootstrap = kafka_broker.bootstrap_servers
    topic = create(bootstrap, "kinds", 1)
    produce(bootstrap, topic, rows(3), 0)
    connection = Connection(bootstrap=bootstrap)
    for kind in ("delta", "parquet"):
        load(LoadSettings(connection, topic, str(tmp_path / kind), kind, Layout()), written)
    with pytest.raises(LoadConflict, match="is a Delta table: use --format delta"):
        send_files(SendSettings(connection, topic, str(tmp_path / "delta"), "parquet"), in_process)
    with pytest.raises(ValueError, match="is not a Delta table"):
        send_files(SendSettings(connection, topic, str(tmp_path / "parquet"), "delta"), in_process)
