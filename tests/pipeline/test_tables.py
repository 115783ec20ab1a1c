"""Topics as Arrow tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from parley import Broker, read_topic, scan_topic
from parley.pipeline.client.cluster import Isolation
from parley.pipeline.client.decode import kafka_schema
from parley.protocol.errors import KafkaError
from tests.pipeline.mirror.clusters import rows
from tests.pipeline.transactions import abort_transaction, commit_transaction, open_transaction

BEGUN = 1_700_000_000_000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker({"num.partitions": "2"}) as broker:
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for number in range(20):
                producer.produce("t", b"%d" % number, partition=number % 2, timestamp=BEGUN + number)
            assert producer.flush(30) == 0
        yield broker.bootstrap_servers


def values(table: pa.Table) -> list[int]:
    return sorted(int(value) for value in table["value"].to_pylist())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, range(20)),
        ({"partitions": [1]}, range(1, 20, 2)),
        ({"start": BEGUN + 5}, range(5, 20)),
        ({"end": datetime.fromtimestamp((BEGUN + 5) / 1000, UTC)}, range(5)),
        ({"start": BEGUN + 100}, ()),
        ({"start": {0: 9, 1: 10}}, (18,)),
        ({"start": "latest"}, ()),
        ({"start": {0: 2}, "end": {0: 4}, "partitions": [0]}, (4, 6)),
    ],
)
def test_the_rows_asked_for(bootstrap: str, asked: dict[str, Any], expected: range) -> None:
    table = read_topic(bootstrap, "t", **asked)
    assert table.schema == kafka_schema(include_headers=True)
    assert values(table) == list(expected)
    assert sum(batch.num_rows for batch in scan_topic(bootstrap, "t", **asked)) == len(expected)


@pytest.mark.parametrize("asked", [
    {"start": "first"}, {"end": -1}, {"start": {0: 1}}, {"start": datetime(2024, 1, 1)},  # noqa: DTZ001
    {"start": {0: -2, 1: 0}}, {"end": {0: 5, 1: -1}},
])  # fmt: skip
def test_position_that_is_none_is_refused(bootstrap: str, asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not a position|no offset is given|no time zone"):
        read_topic(bootstrap, "t", **asked)


def test_a_missing_topic_partition_or_offset_is_an_error(bootstrap: str) -> None:
    with pytest.raises(KafkaError, match="topic 'absent'"):
        read_topic(bootstrap, "absent")
    with pytest.raises(KafkaError, match="t has no partition 2"):
        read_topic(bootstrap, "t", partitions=[2])
    with pytest.raises(KafkaError, match=r"t-0 has offsets 0 to 10, not 11"):
        read_topic(bootstrap, "t", partitions=[0], start={0: 11}, end={0: 12})
    with pytest.raises(KafkaError, match=r"t-0 ends at offset 10: the requested records"):
        read_topic(bootstrap, "t", partitions=[0], start={0: 11})


def test_import_of_the_package_imports_neither_arrow_nor_spark() -> None:
    program = "import parley.pipeline, sys; assert not {'pyarrow', 'pyspark', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_committed_records_are_read_up_to_an_open_transaction(bootstrap: str) -> None:
    commit_transaction(bootstrap, "decided", rows(2))
    abort_transaction(bootstrap, "decided", rows(3))
    last = open_transaction(bootstrap, "decided", rows(2))
    # Offsets: 0-1 committed, 2 a marker, 3-5 aborted, 6 a marker, 7-8 open, 9 a marker.
    assert read_topic(bootstrap, "decided")["offset"].to_pylist() == [0, 1]
    everything = read_topic(bootstrap, "decided", isolation=Isolation.READ_UNCOMMITTED)
    assert everything["offset"].to_pylist() == [0, 1, 3, 4, 5, 7, 8]
    assert read_topic(bootstrap, "decided", start={0: 9, 1: 0}).num_rows == 0
    with pytest.raises(KafkaError, match="decided-0 ends at offset 9"):
        read_topic(bootstrap, "decided", start={0: 10, 1: 0})
    last.commit()
    assert read_topic(bootstrap, "decided", start={0: 7, 1: 0})["offset"].to_pylist() == [7, 8]
