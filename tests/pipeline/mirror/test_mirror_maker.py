"""MirrorMaker 2 reads what our mirror writes, and each can take over from the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.pipeline.mirror.clusters import as_rows, commit, copy_once, create, produce, properties, read, rows
from tests.pipeline.mirror.mirror_maker import run, start
from tests.system.clusters import POLL_S

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PROGRAM = str(Path(__file__).with_name("RemoteClusters.java"))


def test_its_client_finds_clusters_topics_and_offsets(a: str, b: str) -> None:
    create(a, "orders")
    produce(a, "orders", rows(100))
    commit(a, "group", {("orders", 0): 40})
    both = properties(a, b) | {"B->A.enabled": "true", "emit.heartbeats.enabled": "true"}
    for _ in range(2):
        copy_once(both)
    assert run(PROGRAM, b, "A", "group").splitlines() == [
        "upstream [A]",
        "hops 1",
        "remote [A.heartbeats, A.orders]",
        "offsets {A.orders-0=40 }",
    ]


def settings_of_mirror_maker(folder: Path, a: str, b: str) -> Path:
    """Return the content of MirrorMaker's file. It records its progress twice a second."""
    more = {
        "A->B.topics": "orders",
        "replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "heartbeats.topic.replication.factor": "1",
        "offset-syncs.topic.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "config.storage.replication.factor": "1",
        "offset.flush.interval.ms": "500",
        "refresh.topics.interval.seconds": "1",
    }
    path = folder / "mm2.properties"
    path.write_text("".join(f"{key} = {value}\n" for key, value in (properties(a, b) | more).items()))
    return path


def grown_to(bootstrap: str, topic: str, count: int) -> None:
    """Wait until a topic contains this many records."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while topic not in admin.list_topics(timeout=30).topics or len(read(bootstrap, topic)) < count:
        time.sleep(POLL_S)


@pytest.fixture
def settings(tmp_path: Path, a: str, b: str) -> Path:
    return settings_of_mirror_maker(tmp_path, a, b)


def copied_by_ours(a: str, b: str, settings: Path, count: int) -> None:
    for _ in range(2):
        copy_once(properties(a, b, topics="orders"))


def copied_by_theirs(a: str, b: str, settings: Path, count: int) -> None:
    theirs = start(settings)
    try:
        grown_to(b, "A.orders", count)
    finally:
        theirs.stop()  # in order: it records its progress


OURS_FIRST = [copied_by_ours, copied_by_theirs, copied_by_ours]
THEIRS_FIRST = [copied_by_theirs, copied_by_ours, copied_by_theirs]
"""Here MirrorMaker creates the topics in which both record their progress. Each of its starts takes ten seconds of CPU
time."""


@pytest.mark.parametrize("turns", [OURS_FIRST, pytest.param(THEIRS_FIRST, marks=pytest.mark.soak)])
def test_they_take_over_from_each_other(
    a: str, b: str, settings: Path, turns: list[Callable[[str, str, Path, int], None]]
) -> None:
    create(a, "orders")
    for number, copied in enumerate(turns):
        produce(a, "orders", rows(100, 100 * number))
        copied(a, b, settings, 100 * (number + 1))
        assert as_rows(read(b, "A.orders")) == rows(100 * (number + 1))
