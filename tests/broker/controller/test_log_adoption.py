"""Logs found in a data directory when a new cluster starts become topics."""

from __future__ import annotations

from parley.broker.controller.log_adoption import FoundPartition, adopt_partitions
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, ResourceType
from parley.protocol.uuids import UUID
from tests.support.uuids import new_uuid

ID = UUID(int=7)


def adopt(image: MetadataImage, *found: FoundPartition) -> tuple[MetadataImage, list[str]]:
    compacted = frozenset({"__consumer_offsets"})
    decision = adopt_partitions(image, found, broker_id=3, new_id=new_uuid, compacted=compacted)
    return image.with_changes(decision.changes), decision.result


def test_topics_keep_their_id_and_go_on_under_a_higher_epoch() -> None:
    image, adopted = adopt(
        MetadataImage("c"),
        FoundPartition("t", 1, ID, 4),
        FoundPartition("t", 0, ID, -1),
        FoundPartition("u", 0, None, 0),
    )
    assert adopted == ["t", "u"]
    assert image.topics["t"].topic_id == ID
    assert image.topics["t"].partitions == (
        PartitionState((3,), (3,), 3, leader_epoch=0),
        PartitionState((3,), (3,), 3, leader_epoch=5),
    )
    assert image.topics["u"].topic_id != ID
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "-1", "retention.bytes": "-1"}, (
        "nothing is removed"
    )


def test_logs_that_do_not_make_up_a_topic_are_left_alone() -> None:
    image, adopted = adopt(
        MetadataImage("c"),
        FoundPartition("gap", 1, ID, 0),
        FoundPartition("mixed", 0, ID, 0),
        FoundPartition("mixed", 1, UUID(int=8), 0),
    )
    assert adopted == []
    assert not image.topics


def test_the_offsets_topic_stays_compacted() -> None:
    image, _ = adopt(MetadataImage("c"), FoundPartition("__consumer_offsets", 0, ID, 0))
    assert image.config(ResourceType.TOPIC, "__consumer_offsets") == {"cleanup.policy": "compact"}


def test_known_topics_are_not_touched() -> None:
    image, _ = adopt(MetadataImage("c"), FoundPartition("t", 0, ID, 0))
    assert adopt(image, FoundPartition("t", 0, UUID(int=9), 5)) == (image.with_changes(()), [])
