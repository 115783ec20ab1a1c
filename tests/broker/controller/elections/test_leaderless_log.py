"""What is logged about partitions without a leader, and how often."""

from __future__ import annotations

import pytest

from parley.broker.controller.elections.leaderless_log import RESTART_S, LeaderlessLog, Wait
from parley.broker.logging.growing_interval import PAUSE_MAX_S
from parley.broker.metadata.changes import TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.types import NO_LEADER, PartitionState, TopicImage
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, image_with

ORPHAN = PartitionState((1, 2, 3), (), NO_LEADER, 5, 7, elr=(3,))
LED = PartitionState((1, 2, 3), (1,), 1, 5, 7)
KEY = (TOPIC, 0)
REPORT, RETURN, OPERATOR = Wait((3,)), Wait((3,), is_ordinary=True), Wait((), is_ordinary=True)


class Bench:
    """A log of an image with two partitions, and a clock. The term began ``RESTART_S`` ago, or later."""

    def __init__(self, first: PartitionState = ORPHAN, *, since_s: float = RESTART_S) -> None:
        self.now_s = 1000.0 - since_s
        self.log = LeaderlessLog(Metadata(image_with(first, ORPHAN)), lambda: self.now_s)
        self.log.note({})
        self.now_s = 1000.0

    def note(self, wait: Wait, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.log.note({KEY: wait})


def test_an_awaited_report_is_logged_at_once_with_brokers_and_topics(caplog: pytest.LogCaptureFixture) -> None:
    Bench().note(REPORT)
    (line,) = caplog.records
    assert line.message.startswith("partitions without a leader wait for brokers that may have their last records")
    assert {name: line.__dict__[name] for name in ("partitions", "topics", "brokers")} == {
        "partitions": 1,
        "topics": TOPIC,
        "brokers": [3],
    }


def test_brokers_may_be_starting_when_a_term_begins(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(since_s=0)
    bench.note(REPORT, after_s=1)
    bench.note(REPORT, after_s=RESTART_S - 2)
    assert not caplog.records
    bench.note(REPORT, after_s=1)
    assert [line.__dict__["brokers"] for line in caplog.records] == [[3]]


def test_an_eligible_replica_is_named_only_if_its_broker_stays_away(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.note(RETURN)
    bench.note(RETURN, after_s=RESTART_S - 1)
    assert not caplog.records
    bench.note(RETURN, after_s=1)
    assert [line.__dict__["brokers"] for line in caplog.records] == [[3]]


def test_a_partition_that_only_an_operator_can_help_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.note(OPERATOR)
    bench.note(OPERATOR, after_s=RESTART_S)
    (line,) = caplog.records
    assert "unclean.recovery.strategy=None" in line.message
    assert (line.__dict__["topics"], "brokers" in line.__dict__) == (TOPIC, False)


def test_a_line_is_repeated_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.note(REPORT)
    times = []
    for _ in range(2000):
        before = len(caplog.records)
        bench.note(REPORT, after_s=1)
        if len(caplog.records) > before:
            times.append(bench.now_s - 1000)
    assert times[:4] == [5, 15, 35, 75]
    assert times[-1] - times[-2] == PAUSE_MAX_S


def test_other_brokers_are_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.note(REPORT)
    bench.note(Wait((2, 3)))
    assert [line.__dict__["brokers"] for line in caplog.records] == [[3], [2, 3]]


def test_a_partition_that_has_a_leader_by_now_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(LED)
    bench.log.note({KEY: REPORT, (TOPIC, 9): REPORT})
    assert not caplog.records


def test_a_long_list_of_topics_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    topics = [TopicCreated(TopicImage(f"t{i}", UUID(int=100 + i), (ORPHAN,))) for i in range(7)]
    metadata = Metadata(image_with().with_changes(topics))
    times = iter((0.0, RESTART_S, RESTART_S))
    log = LeaderlessLog(metadata, lambda: next(times))
    log.note({})
    log.note({(f"t{i}", 0): REPORT for i in range(7)})
    (line,) = caplog.records
    assert (line.__dict__["partitions"], line.__dict__["topics"]) == (7, "t0, t1, t2, t3, t4, ...")
