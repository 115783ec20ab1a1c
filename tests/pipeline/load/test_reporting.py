"""The progress that a load reports to the cluster."""

from __future__ import annotations

import json

import pytest

from parley import Broker
from parley.pipeline.client.cluster import LATEST, Cluster, Connection, TopicPartition
from parley.pipeline.load.progress_topic import DONE, EXPORT, FAILED, IMPORT, LOADS, RUNNING, LoadProgress, shown_place
from parley.pipeline.load.reporting import LoadReport
from parley.pipeline.mirror import admin
from parley.pipeline.mirror.internal_records import MalformedRecord
from tests.pipeline.mirror.clusters import create, produce, rows

pytestmark = pytest.mark.slow


def told(bootstrap: str) -> list[LoadProgress]:
    with Cluster(Connection(bootstrap=bootstrap)) as cluster:
        return [LoadProgress.decode(one.value) for _, one in admin.read_all(cluster, LOADS, 1)]


def test_a_load_tells_its_beginning_and_its_end() -> None:
    with Broker() as broker:
        place = "s3://key:secret@bucket/orders?region=x"
        with LoadReport(Connection(bootstrap=broker.bootstrap_servers), "orders", place, EXPORT) as report:
            report.show(300, 1000)
        found = told(broker.bootstrap_servers)
        last = found[-1]
        assert (last.topic, last.place, last.direction, last.state) == ("orders", "s3://bucket/orders", EXPORT, DONE)
        assert (last.done, last.wanted) == (300, 1000)
        assert {one.id for one in found} == {last.id}
        assert last.begun_ms <= found[0].at_ms <= last.at_ms


def test_a_load_that_fails_says_so() -> None:
    with Broker() as broker:
        with (
            pytest.raises(ValueError, match="no folder"),
            LoadReport(Connection(bootstrap=broker.bootstrap_servers), "orders", "/data", EXPORT),
        ):
            raise ValueError("no folder")
        assert told(broker.bootstrap_servers)[-1].state == FAILED


def test_an_import_is_measured() -> None:
    with Broker() as broker:
        bootstrap = broker.bootstrap_servers
        create(bootstrap, "orders", 1)
        produce(bootstrap, "orders", rows(7), 0)
        place = TopicPartition("orders", 0)
        with LoadReport(Connection(bootstrap=bootstrap), "orders", "/data", IMPORT) as report:
            report.measure = lambda cluster: (cluster.offsets({place: LATEST})[place], 9)
        last = told(bootstrap)[-1]
        assert (last.direction, last.done, last.wanted) == (IMPORT, 7, 9)


def test_without_permission_a_load_tells_nobody() -> None:
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    settings = {"authorizer.class.name": authorizer, "super.users": "User:admin"}
    with Broker(settings) as broker:
        with LoadReport(Connection(bootstrap=broker.bootstrap_servers), "orders", "/data", EXPORT) as report:
            report.show(1, 1)
        assert LOADS not in {topic.name for topic in broker.server.metadata.image.topics.values()}


@pytest.mark.parametrize("value", [None, b"", b"[]", b"7", b'{"id": "x"}', b"\xff"])
def test_other_records_are_malformed(value: bytes | None) -> None:
    with pytest.raises(MalformedRecord):
        LoadProgress.decode(value)


def test_a_progress_is_json() -> None:
    progress = LoadProgress(id="x", topic="t", place="/data", direction=EXPORT, begun_ms=1, at_ms=2)
    encoded = progress.encode()
    assert LoadProgress.decode(encoded.value) == progress
    assert json.loads(encoded.value)["state"] == RUNNING


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("/data/a?b", "/data/a?b"),
        ("shop.orders", "shop.orders"),
        ("s3://user:pass@bucket/a?key=1#x", "s3://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
    ],
)
def test_a_place_without_its_secrets(uri: str, shown: str) -> None:
    assert shown_place(uri) == shown
