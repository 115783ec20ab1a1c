"""Topics loaded into folders; this process writes the ranges."""

from __future__ import annotations

import datetime as dt
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as pa_dataset
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from parley.pipeline.client.cluster import Connection, Isolation
from parley.pipeline.load.columns import Layout
from parley.pipeline.load.files import NotOurs, Task, Written, filesystem, write_range
from parley.pipeline.load.job import LoadSettings, load
from parley.pipeline.load.manifest import LoadConflict
from parley.pipeline.load.ranges import RecordsGone, TopicRecreated
from parley.pipeline.load.schemas import read_schema
from parley.pipeline.tables.iceberg import IcebergPlace
from parley.tools.pytest_plugin import KafkaBroker
from tests.pipeline.mirror.clusters import create, delete_records, produce, rows
from tests.pipeline.transactions import abort_transaction, commit_transaction, open_transaction

SCHEMA = read_schema(json.dumps({"properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}))


class Killed(Exception):
    """Simulates kill -9."""


def in_process(tasks: list[Task]) -> list[list[Written]]:
    return [write_range(task) for task in tasks]


def dying_after(count: int) -> Any:
    """Return a function that writes ranges, and dies after this many."""
    left = count

    def run(tasks: list[Task]) -> Iterator[list[Written]]:
        nonlocal left
        for task in tasks:
            if not left:
                raise Killed
            left -= 1
            yield write_range(task)

    return run


@pytest.fixture
def topic(kafka_broker: KafkaBroker, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name.replace("[", "-").replace("]", "")
    create(kafka_broker.bootstrap_servers, name, 2)
    produce(kafka_broker.bootstrap_servers, name, rows(300), 0)
    produce(kafka_broker.bootstrap_servers, name, rows(200, 1000), 1, **{"compression.type": "zstd"})
    return name


@pytest.fixture
def settings(kafka_broker: KafkaBroker, topic: str, tmp_path: Path) -> LoadSettings:
    connection = Connection(bootstrap=kafka_broker.bootstrap_servers)
    return LoadSettings(connection, topic, str(tmp_path / "table"), "parquet", Layout(), per_file=100)


def offsets(uri: str) -> list[tuple[int, int]]:
    """Return the partition and offset of every row that a plain reader of the folder sees."""
    table = pa_dataset.dataset(uri, format="parquet", partitioning="hive").to_table()
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


WHOLE = [(0, n) for n in range(300)] + [(1, n) for n in range(200)]


def test_everything_is_loaded_and_later_only_new_records(settings: LoadSettings) -> None:
    done = load(settings, in_process)
    assert (done.records, done.files, done.offsets) == (500, 5, 500)
    assert offsets(settings.uri) == WHOLE
    produce(settings.connection.bootstrap, settings.topic, rows(5, 300), 0)
    assert load(settings, in_process).records == 5
    assert load(settings, in_process).records == 0
    assert offsets(settings.uri) == sorted([*WHOLE, *((0, n) for n in range(300, 305))])


def test_rows_are_the_records(settings: LoadSettings) -> None:
    load(settings, in_process)
    table = (
        pa_dataset.dataset(settings.uri, format="parquet")
        .to_table()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    found = [
        (
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            tuple((one["key"], one["value"]) for one in row["headers"] or ()),
        )
        for row in table.to_pylist()
    ]
    assert found == rows(300) + rows(200, 1000)


@pytest.mark.parametrize("written", [0, 1, 2, 3, 4])
def test_a_load_that_was_killed_leaves_nothing_double_and_nothing_out(settings: LoadSettings, written: int) -> None:
    with pytest.raises(Killed):
        load(settings, dying_after(written), at_once=2)
    produce(settings.connection.bootstrap, settings.topic, rows(7, 300), 0)  # other ranges than before
    load(replace(settings, per_file=64), in_process)
    assert offsets(settings.uri) == sorted([*WHOLE, *((0, n) for n in range(300, 307))])


def test_a_task_that_outlives_its_load_moves_nothing(settings: LoadSettings) -> None:
    late: list[Task] = []

    def remembered(tasks: list[Task]) -> list[list[Written]]:
        late.extend(tasks)
        raise Killed

    with pytest.raises(Killed):
        load(settings, remembered)
    load(settings, in_process)
    with pytest.raises(NotOurs):
        write_range(late[0])
    assert offsets(settings.uri) == WHOLE
    assert not list(Path(settings.uri, "_parley", "pending").iterdir())


def test_of_two_loads_at_once_one_fails(settings: LoadSettings) -> None:
    def overtaken(tasks: list[Task]) -> list[list[Written]]:
        found = in_process(tasks)
        load(settings, in_process)
        return found

    with pytest.raises((LoadConflict, NotOurs)):
        load(settings, overtaken)
    load(settings, in_process)
    assert offsets(settings.uri) == WHOLE


def test_a_load_that_began_later_ends_the_one_before_it_before_that_names_a_file(settings: LoadSettings) -> None:
    def overtaken(tasks: list[Task]) -> list[list[Written]]:
        found = in_process(tasks)
        with pytest.raises(Killed):
            load(replace(settings, per_file=64), dying_after(1))  # the other load has deleted the files written here
        return found

    with pytest.raises(LoadConflict):
        load(settings, overtaken)
    load(settings, in_process)
    assert offsets(settings.uri) == WHOLE


def test_a_load_without_new_records_writes_no_manifest(settings: LoadSettings) -> None:
    load(settings, in_process)
    before = sorted(Path(settings.uri, "_parley", "manifests").iterdir())
    load(settings, in_process)
    assert sorted(Path(settings.uri, "_parley", "manifests").iterdir()) == before


def test_a_folder_of_another_format_is_left_alone(settings: LoadSettings) -> None:
    delta = replace(settings, format="delta")
    load(delta, in_process)
    whole = DeltaTable(settings.uri).to_pyarrow_table().num_rows
    with pytest.raises(LoadConflict, match="is a Delta table"):
        load(settings, in_process)
    assert DeltaTable(settings.uri).to_pyarrow_table().num_rows == whole == 500
    other = replace(settings, uri=f"{settings.uri}-2")
    load(other, in_process)
    with pytest.raises(LoadConflict, match="contains files that are not a Delta table"):
        load(replace(other, format="delta"), in_process)
    shutil.rmtree(Path(other.uri, "_parley"))
    with pytest.raises(LoadConflict, match="no manifest"):
        load(other, in_process)
    assert offsets(other.uri) == WHOLE


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_an_empty_partition_that_fills_and_loses_records_is_reported(settings: LoadSettings, kind: str) -> None:
    bootstrap, topic = settings.connection.bootstrap, f"{settings.topic}-empty"
    create(bootstrap, topic, 1)
    settings = replace(settings, topic=topic, format=kind)
    assert load(settings, in_process).records == 0
    produce(bootstrap, topic, rows(10))
    delete_records(bootstrap, topic, 0, 4)
    with pytest.raises(RecordsGone, match="offsets 0 to 3"):
        load(settings, in_process)
    assert load(replace(settings, accept_loss=True), in_process).records == 6


def test_a_folder_keeps_to_one_topic_and_its_columns(settings: LoadSettings) -> None:
    load(settings, in_process)
    with pytest.raises(LoadConflict, match="use another folder"):
        load(replace(settings, layout=Layout(key_format="string")), in_process)


def test_deleted_records_are_an_error_unless_loss_is_accepted(settings: LoadSettings) -> None:
    load(settings, in_process)
    produce(settings.connection.bootstrap, settings.topic, rows(10, 300), 0)
    delete_records(settings.connection.bootstrap, settings.topic, 0, 305)
    with pytest.raises(RecordsGone, match="offsets 300 to 304"):
        load(settings, in_process)
    assert load(replace(settings, accept_loss=True), in_process).records == 5


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_recreated_topic_is_another_topic(settings: LoadSettings, kind: str) -> None:
    """This holds however many records it contains: its first offsets were not loaded."""
    settings = replace(settings, format=kind)
    load(settings, in_process)
    admin = AdminClient({"bootstrap.servers": settings.connection.bootstrap})
    admin.delete_topics([settings.topic])[settings.topic].result()
    create(settings.connection.bootstrap, settings.topic, 2)
    produce(settings.connection.bootstrap, settings.topic, rows(400), 0)
    produce(settings.connection.bootstrap, settings.topic, rows(400), 1)
    with pytest.raises(TopicRecreated, match=f"topic {settings.topic} was created again since it was loaded into "):
        load(settings, in_process)


def test_event_time_makes_folders(settings: LoadSettings) -> None:
    load(replace(settings, layout=Layout(partition_by="hour")), in_process)
    assert {path.parent.name for path in Path(settings.uri).rglob("*.parquet")} == {"hour=22"}
    assert {path.parent.parent.name for path in Path(settings.uri).rglob("*.parquet")} == {"date=2023-11-14"}
    assert offsets(settings.uri) == WHOLE


def test_delta(settings: LoadSettings) -> None:
    settings = replace(settings, format="delta", layout=Layout(partition_by="day"))
    with pytest.raises(Killed):
        load(settings, dying_after(3), at_once=2)
    load(settings, in_process)
    produce(settings.connection.bootstrap, settings.topic, rows(5, 300), 0)
    assert load(settings, in_process).records == 5
    table = DeltaTable(settings.uri).to_pyarrow_table()
    found = sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))
    assert found == sorted([*WHOLE, *((0, n) for n in range(300, 305))])
    assert set(table.column("date").to_pylist()) == {"2023-11-14"}
    assert not list(Path(settings.uri, "_parley", "pending").iterdir())
    with pytest.raises(LoadConflict, match="use another folder"):
        load(replace(settings, layout=Layout()), in_process)


@pytest.mark.slow
def test_iceberg(settings: LoadSettings, tmp_path: Path) -> None:
    catalog = (("type", "sql"), ("uri", f"sqlite:///{tmp_path}/catalog"), ("warehouse", f"file://{tmp_path}/warehouse"))
    place = IcebergPlace("local", catalog, "shop.orders")
    settings = replace(settings, format="iceberg", iceberg=place, layout=Layout(partition_by="day"))

    def loaded(condition: str = "offset >= 0") -> list[tuple[int, int]]:
        table = place.load().load_table("shop.orders").scan(condition).to_arrow()
        return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))

    with pytest.raises(Killed):
        load(settings, dying_after(3), at_once=2)
    assert len(loaded()) == 200
    load(settings, in_process)
    assert loaded() == WHOLE
    assert load(settings, in_process).records == 0
    assert loaded("timestamp < '2023-11-14T00:00:00+00:00'") == []

    def overtaken(tasks: list[Task]) -> list[list[Written]]:
        found = in_process(tasks)
        load(settings, in_process)
        return found

    produce(settings.connection.bootstrap, settings.topic, rows(5, 300), 0)
    with pytest.raises((LoadConflict, NotOurs)):
        load(settings, overtaken)
    assert loaded() == sorted([*WHOLE, *((0, n) for n in range(300, 305))])
    assert not list(Path(tmp_path).rglob("pending/*"))
    produce(settings.connection.bootstrap, settings.topic, rows(5, 400), 1)
    load(replace(settings, layout=Layout(partition_by="day", bad_records="keep")), in_process)  # has a column more
    assert len(loaded()) == 510
    assert loaded("_corrupt is not null") == []
    for other in (Layout(), Layout(partition_by="day", key_format="string")):
        with pytest.raises(LoadConflict, match="use another table"):
            load(replace(settings, layout=other), in_process)


@pytest.mark.slow
def test_columns_of_iceberg_get_wider_with_the_schema(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    catalog = (("type", "sql"), ("uri", f"sqlite:///{tmp_path}/catalog"), ("warehouse", f"file://{tmp_path}/warehouse"))
    place = IcebergPlace("local", catalog, "shop.t")
    topic = create(kafka_broker.bootstrap_servers, "widened", 1)
    fields: list[dict[str, Any]] = [
        {"name": "n"},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
    ]
    for number, kind in ((1, "int"), (1 << 40, "long")):
        fields[0]["type"] = kind
        schema = {"type": "record", "name": "r", "fields": fields}
        datum = io.BytesIO()
        fastavro.schemaless_writer(datum, schema, {"n": number, "at": dt.time(1)})
        produce(kafka_broker.bootstrap_servers, topic, [(None, datum.getvalue(), 1_700_000_000_000, ())])
        layout = Layout(value_format="avro", schema=read_schema(json.dumps(schema)), flat=True)
        connection = Connection(bootstrap=kafka_broker.bootstrap_servers)
        load(LoadSettings(connection, topic, "", "iceberg", layout, iceberg=place), in_process)
    table = place.load().load_table("shop.t").scan().to_arrow().sort_by("_offset")
    assert table.column("n").to_pylist() == [1, 1 << 40]
    assert table.column("at").to_pylist() == [dt.time(1)] * 2


def test_the_log_of_a_table_describes_the_contents_of_each_file(settings: LoadSettings) -> None:
    load(replace(settings, format="delta"), in_process)
    actions = DeltaTable(settings.uri).get_add_actions(flatten=True)
    found = pa.table(actions).select(["num_records", "min.partition", "min.offset", "max.offset"])
    told = sorted(tuple(row.values()) for row in found.to_pylist())
    assert told == [(100, p, first, first + 99) for p, last in ((0, 300), (1, 200)) for first in range(0, last, 100)]
    nulls = sum(key is None for key, *_ in rows(300) + rows(200, 1000))
    assert pc.sum(pa.table(actions)["null_count.key"]).as_py() == nulls
    filtered = DeltaTable(settings.uri).to_pyarrow_dataset().to_table(filter=pa_dataset.field("offset") >= 250)
    assert filtered.num_rows == 50


def test_in_a_table_no_event_time_is_null(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create(kafka_broker.bootstrap_servers, "timeless")
    schema = read_schema(json.dumps({"properties": {"at": {"type": "string", "format": "date-time"}}}))
    values = [b'{"at": "2026-11-21T16:00:00+02:00"}', b"{}", None]
    produce(kafka_broker.bootstrap_servers, topic, [(None, value, 1000, ()) for value in values])
    layout = Layout(value_format="json", schema=schema, flat=True, partition_by="hour", event_time="at")
    connection = Connection(bootstrap=kafka_broker.bootstrap_servers)
    load(LoadSettings(connection, topic, str(tmp_path / "delta"), "delta", layout), in_process)
    found = DeltaTable(tmp_path / "delta").to_pyarrow_table().sort_by("_offset").to_pylist()
    assert [(row["date"], row["hour"]) for row in found] == [("2026-11-21", "14"), (None, None), (None, None)]


def test_csv_and_json(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = create(kafka_broker.bootstrap_servers, "texts")
    values = [json.dumps({"id": n, "name": f'a "{n}",\n'}).encode() for n in range(10)]
    produce(kafka_broker.bootstrap_servers, topic, [(b"k", value, 1000, (("h", b"v"),)) for value in values])
    connection = Connection(bootstrap=kafka_broker.bootstrap_servers)
    layout = Layout("string", "json", SCHEMA, flat=True, text=True)
    load(LoadSettings(connection, topic, str(tmp_path / "csv"), "csv", layout), in_process)
    (path,) = (tmp_path / "csv").glob("*.csv")
    table = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(newlines_in_values=True)).to_pylist()
    assert [row["name"] for row in table] == [f'a "{n}",\n' for n in range(10)]
    assert table[0]["_headers"] == '[["h","v"]]'
    load(LoadSettings(connection, topic, str(tmp_path / "json"), "json", replace(layout, text=False)), in_process)
    (path,) = (tmp_path / "json").glob("*.json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == list(range(10))
    assert lines[0]["_headers"] == [{"key": "h", "value": "v"}]


def test_an_address_of_hadoop_is_one_of_s3() -> None:
    for scheme in ("s3", "s3a"):
        found, root = filesystem(f"{scheme}://bucket/folder?region=eu-west-1&endpoint_override=127.0.0.1:1")
        assert (found.type_name, root) == ("s3", "bucket/folder")


@pytest.mark.slow
@pytest.mark.parametrize("isolation", Isolation)
def test_transactions_are_loaded_when_they_are_committed(settings: LoadSettings, isolation: Isolation) -> None:
    """Each file covers five offsets. No file is written for five offsets of only aborted records and markers."""
    bootstrap, topic = settings.connection.bootstrap, settings.topic
    settings = replace(settings, isolation=isolation, per_file=5)
    commit_transaction(bootstrap, topic, rows(4))
    abort_transaction(bootstrap, topic, rows(13))
    last = open_transaction(bootstrap, topic, rows(4))
    produce(bootstrap, topic, rows(2))
    # Offsets: 300-303 committed, 304 a marker, 305-317 aborted, 318 a marker, 319-322 open, 323-324 plain.
    committed, undecided = [*range(300, 304)], [*range(319, 325)]
    now = committed if isolation is Isolation.READ_COMMITTED else [*committed, *range(305, 318), *undecided]
    done = load(settings, in_process)
    assert done.offsets == done.wanted == (519 if isolation is Isolation.READ_COMMITTED else 525)
    assert offsets(settings.uri) == sorted([*WHOLE, *((0, one) for one in now)])
    assert load(settings, in_process).records == 0
    last.commit()
    produce(bootstrap, topic, rows(1))
    load(settings, in_process)
    later = [*now, *undecided, 326] if isolation is Isolation.READ_COMMITTED else [*now, 326]
    assert offsets(settings.uri) == sorted([*WHOLE, *((0, one) for one in later)])


def test_a_table_with_uncommitted_records_is_loaded_further_when_they_are_committed(settings: LoadSettings) -> None:
    """The loaded offsets extend beyond the last stable offset: the topic is still the same."""
    bootstrap, topic = settings.connection.bootstrap, settings.topic
    uncommitted = replace(settings, format="delta", isolation=Isolation.READ_UNCOMMITTED)
    last = open_transaction(bootstrap, topic, rows(4))
    load(uncommitted, in_process)
    settings = replace(uncommitted, isolation=Isolation.READ_COMMITTED)
    assert load(settings, in_process).wanted == 0
    last.commit()
    produce(bootstrap, topic, rows(1))
    assert load(settings, in_process).records == 1
    # Offsets: 300-303 in the transaction, 304 its marker, 305 plain.
    table = DeltaTable(settings.uri).to_pyarrow_table()
    found = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == sorted([*WHOLE, *((0, one) for one in (300, 301, 302, 303, 305))])
