"""The writes to the coordination store if several changes concern the same topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.stored_metadata import (
    ACLS,
    BROKERS,
    DELETED_TOPICS,
    PARTITIONS,
    TOPICS,
    Writes,
    read_image,
    writes_for,
)
from parley.broker.metadata.changes import (
    AclBucketReplaced,
    BrokerRegistered,
    Change,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.encoding import to_json
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, image_with

STATE, OTHER = PartitionState((1,), (1,), 1), PartitionState((2,), (2,), 2)


def written(image: MetadataImage, *changes: Change) -> tuple[Writes, MetadataImage]:
    after = image.with_changes(changes)
    return writes_for(changes, after, image), after


def test_partitions_that_change_twice_are_written_once_in_their_final_state() -> None:
    image = image_with(*[STATE] * 150)
    writes, after = written(image, *(PartitionChanged(TOPIC, i, state) for i in (7, 8, 7) for state in (STATE, OTHER)))
    assert list(writes) == [f"{PARTITIONS}{TOPIC}/00000"]
    begin, _ = written(MetadataImage("c"), *image.changes_since(MetadataImage("c")))
    stored = {key: value for key, value in {**begin, **writes}.items() if value is not None}
    assert read_image("c", stored).topics == after.topics


@pytest.mark.parametrize("present", [1, 99, 100, 101, 199, 200, 250])
@pytest.mark.parametrize("more", [1, 2, 100, 101])
def test_added_partitions_are_stored_with_as_few_writes_as_possible(present: int, more: int) -> None:
    image = image_with(*[STATE] * present)
    before, _ = written(MetadataImage("c"), *image.changes_since(MetadataImage("c")))
    writes, after = written(image, PartitionsAdded(TOPIC, (OTHER,) * more))
    stored = {key: value for key, value in {**before, **writes}.items() if value is not None}
    assert read_image("c", stored).topics == after.topics
    assert {key for key, value in writes.items() if value == before.get(key)} == set(), "each of them changes something"
    assert list(writes)[-1] == TOPICS + TOPIC, "the number of partitions comes after the partitions"


def test_only_the_chunk_of_a_partition_that_changes_is_written() -> None:
    image = image_with(*[STATE] * 250)
    for index, chunk in ((0, 0), (99, 0), (100, 1), (199, 1), (200, 2), (249, 2)):
        writes, _ = written(image, PartitionChanged(TOPIC, index, OTHER))
        assert list(writes) == [f"{PARTITIONS}{TOPIC}/{chunk:05d}"]


@pytest.mark.parametrize("partitions", [1, 99, 100, 101, 200, 201])
def test_a_deleted_topic_leaves_no_partitions(partitions: int) -> None:
    image = image_with(*[STATE] * partitions)
    before, _ = written(MetadataImage("c"), *image.changes_since(MetadataImage("c")))
    writes, _ = written(image, TopicDeleted(TOPIC, TOPIC_ID))
    assert [key for key in before if TOPIC in key and before[key] is not None and key not in writes] == []
    assert [key for key, value in writes.items() if value is None and key not in before] == [], (
        "nothing else is deleted"
    )


def test_a_broker_that_registers_and_is_fenced_is_written_after_its_partitions() -> None:
    image = image_with(STATE)
    known = image.brokers[1]
    again, fenced = replace(known, epoch=known.epoch + 1), replace(known, epoch=known.epoch + 1, fenced=True)
    changes = BrokerRegistered(again), PartitionChanged(TOPIC, 0, OTHER), BrokerRegistered(fenced)
    writes, _ = written(image, *changes)
    assert list(writes) == [f"{PARTITIONS}{TOPIC}/00000", f"{BROKERS}0000000001"]


def test_a_topics_key_is_deleted_before_its_partitions() -> None:
    writes, _ = written(image_with(STATE), PartitionChanged(TOPIC, 0, OTHER), TopicDeleted(TOPIC, TOPIC_ID))
    assert list(writes.items()) == [
        (TOPICS + TOPIC, None),
        (f"{PARTITIONS}{TOPIC}/00000", None),
        (f"{DELETED_TOPICS}ids", to_json([str(TOPIC_ID)])),
    ]


def test_a_topic_created_and_deleted_by_the_same_changes_leaves_nothing() -> None:
    small = image_with(STATE).topics[TOPIC]
    large = replace(small, topic_id=UUID(int=10), partitions=(STATE,) * 150)
    again = replace(small, topic_id=UUID(int=11))
    writes, _ = written(
        image_with(STATE),
        TopicDeleted(TOPIC, TOPIC_ID),
        TopicCreated(large),
        TopicDeleted(TOPIC, large.topic_id),
        TopicCreated(again),
    )
    assert [(key, value is None) for key, value in writes.items()] == [
        (f"{PARTITIONS}{TOPIC}/00000", False),
        (f"{PARTITIONS}{TOPIC}/00001", True),
        (f"{DELETED_TOPICS}ids", False),
        (TOPICS + TOPIC, False),
    ]


def test_an_empty_bucket_of_acls_is_deleted() -> None:
    writes, _ = written(MetadataImage("c"), AclBucketReplaced(3, frozenset()))
    assert writes == {f"{ACLS}0003": None}
