"""The selection of the topics, settings and group offsets that are mirrored."""

from __future__ import annotations

from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.client.group_offsets import Committed
from parley.pipeline.mirror.checkpoints import new_checkpoints, to_commit
from parley.pipeline.mirror.internal_records import Checkpoint
from parley.pipeline.mirror.naming import Selection
from parley.pipeline.mirror.settings import SETTINGS_EXCLUDED
from parley.pipeline.mirror.topics import DEFAULT, STATIC_BROKER, Change, Setting, SettingsChoice, missing

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
A0 = TopicPartition("A.t", 0)


def test_topics_are_made_and_grown_and_never_shrunk() -> None:
    found = missing({"A.new": 3, "A.small": 4, "A.same": 2, "A.large": 1}, {"A.small": 2, "A.same": 2, "A.large": 5})
    assert found.create == {"A.new": 3}
    assert found.grow == {"A.small": 4}


def test_settings_that_were_changed_are_carried_over() -> None:
    settings = {
        "retention.ms": Setting("5"),
        "segment.bytes": Setting("9", DEFAULT),
        "max.message.bytes": Setting("7", STATIC_BROKER),
        "secret": Setting(None, sensitive=True),
        "min.insync.replicas": Setting("2"),
    }
    choice = SettingsChoice(Selection(SETTINGS_EXCLUDED))
    assert choice.at_creation(settings) == {"retention.ms": "5"}
    assert choice.later(settings) == [Change("retention.ms", "5"), Change("segment.bytes", None)]
    assert SettingsChoice(Selection(""), defaults=True).at_creation(settings)["segment.bytes"] == "9"


def halved(topic: str, partition: int, upstream: int) -> int | None:
    return None if partition else upstream // 2


def test_a_checkpoint_is_written_when_it_says_something_new() -> None:
    def made(offset: int, known: Checkpoint | None) -> list[Checkpoint]:
        before = {} if known is None else {("g", A0): known}
        return new_checkpoints("g", {T0: Committed(offset, "m"), T1: Committed(5)}, halved, "A.{}".format, before)

    first = Checkpoint("g", "A.t", 0, 10, 5, "m")
    assert made(10, None) == [first]
    assert made(10, first) == []
    assert made(11, first) == []
    assert made(12, first) == [Checkpoint("g", "A.t", 0, 12, 6, "m")]
    assert made(8, first) == [Checkpoint("g", "A.t", 0, 8, 4, "m")]


def test_groups_are_only_moved_forward_and_only_without_members() -> None:
    checkpoint = Checkpoint("g", "A.t", 0, 10, 5, "m")
    assert to_commit([checkpoint], "Empty", {}) == {A0: Committed(5, "m")}
    assert to_commit([checkpoint], "", {A0: Committed(4)}) == {A0: Committed(5, "m")}
    assert to_commit([checkpoint], "Empty", {A0: Committed(5)}) == {}
    assert to_commit([checkpoint], "Stable", {}) == {}
