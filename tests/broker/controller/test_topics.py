"""Decisions about topics, as functions of the image."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.topics import (
    PARTITIONS_MAX,
    NewPartitions,
    NewTopic,
    TopicDefaults,
    TopicOutcome,
    add_partitions,
    create_topics,
    delete_topics,
)
from parley.broker.metadata.changes import BrokerRegistered, TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, ConfigResource, PartitionState, ResourceType, TopicImage
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.support.uuids import new_uuid


def image_of(brokers: int) -> MetadataImage:
    return MetadataImage("c", brokers={i: BrokerRegistration(i, 1, UUID(int=i), ()) for i in range(brokers)})


def create(
    image: MetadataImage, *wanted: NewTopic, validate_only: bool = False
) -> tuple[MetadataImage, list[TopicOutcome]]:
    decision = create_topics(
        image,
        wanted,
        defaults=TopicDefaults(3, 2),
        new_id=new_uuid,
        rng=Random(0),
        validate_only=validate_only,
    )
    return image.with_changes(decision.changes), decision.result


def code(outcome: TopicOutcome) -> ErrorCode:
    return outcome.error.code if outcome.error else ErrorCode.NONE


def test_defaults_fill_the_fields_that_a_request_omits() -> None:
    image, (outcome,) = create(image_of(3), NewTopic("t", configs={"retention.ms": "5"}))
    assert outcome.topic == image.topics["t"]
    assert [len(p.replicas) for p in image.topics["t"].partitions] == [2, 2, 2]
    assert all(p.isr == p.replicas and p.leader == p.replicas[0] for p in image.topics["t"].partitions)
    assert image.config(ResourceType.TOPIC, "t") == {"retention.ms": "5"}
    assert image.topic_names[image.topics["t"].topic_id] == "t"


def test_validate_only_changes_nothing() -> None:
    image, (outcome,) = create(image_of(3), NewTopic("t"), validate_only=True)
    assert outcome.topic is not None
    assert not image.topics


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("taken"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("t", partitions=0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("t", replication_factor=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=-2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", replication_factor=4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", partitions=1, assignment={0: (0,)}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", replication_factor=1, assignment={0: (0,)}), ErrorCode.INVALID_REQUEST),
        (NewTopic("t", assignment={1: (0,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignment={0: ()}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignment={0: (0, 0)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignment={0: (0, 1), 1: (0,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("t", assignment={0: (9,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_an_invalid_topic_is_refused_alone(new: NewTopic, expected: ErrorCode) -> None:
    image, _ = create(image_of(3), NewTopic("taken"), NewTopic("a.b"))
    after, (refused, fine) = create(image, new, NewTopic("other"))
    assert code(refused) == expected
    assert code(fine) == ErrorCode.NONE
    assert set(after.topics) == {"taken", "a.b", "other"}


def test_an_assignment_is_taken_as_it_is() -> None:
    image, _ = create(image_of(3), NewTopic("t", assignment={0: (2, 0), 1: (1, 2)}))
    assert [p.replicas for p in image.topics["t"].partitions] == [(2, 0), (1, 2)]
    assert [p.leader for p in image.topics["t"].partitions] == [2, 1]


def test_a_policy_has_the_last_word() -> None:
    def no_small_topics(topic: object, configs: object) -> None:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "no")

    decision = create_topics(
        image_of(3),
        [NewTopic("t")],
        defaults=TopicDefaults(1, 1),
        new_id=new_uuid,
        rng=Random(0),
        policy=no_small_topics,
    )
    assert (code(decision.result[0]), decision.changes) == (ErrorCode.POLICY_VIOLATION, ())


def test_a_topic_created_again_is_not_deleted_by_its_old_id() -> None:
    image, _ = create(image_of(3), NewTopic("t"))
    refused = delete_topics(image, ["t"], {"t": UUID(int=77)})
    assert (code(refused.result[0]), refused.changes) == (ErrorCode.UNKNOWN_TOPIC_ID, ())
    assert delete_topics(image, ["t"], {"t": image.topics["t"].topic_id}).changes


def test_deleting_a_topic_deletes_its_configuration() -> None:
    image, _ = create(image_of(3), NewTopic("t", configs={"retention.ms": "5"}), NewTopic("u"))
    decision = delete_topics(image, ["t", "absent", "t"], {})
    after = image.with_changes(decision.changes)
    assert [code(o) for o in decision.result] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert set(after.topics) == {"u"}
    assert set(after.topic_names.values()) == {"u"}
    assert ConfigResource(ResourceType.TOPIC, "t") not in after.configs


def test_the_number_of_partitions_only_grows() -> None:
    image, _ = create(image_of(3), NewTopic("t", partitions=2))
    decision = add_partitions(
        image,
        [
            NewPartitions("t", 4),
            NewPartitions("t", 2),
            NewPartitions("t", 3, [[0], [1]]),
            NewPartitions("t", 3, [[0]]),
            NewPartitions("absent", 3),
        ],
        rng=Random(0),
    )
    assert [code(o) for o in decision.result] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    after = image.with_changes(decision.changes)
    assert len(after.topics["t"].partitions) == 4
    assert after.topics["t"].partitions[:2] == image.topics["t"].partitions


def test_new_partitions_get_the_replicas_that_the_request_assigns() -> None:
    image, _ = create(image_of(3), NewTopic("t", partitions=1))
    asked = [[2, 0], [1, 2]]
    decision = add_partitions(image, [NewPartitions("t", 3, asked)], rng=Random(0))
    assert [code(outcome) for outcome in decision.result] == [ErrorCode.NONE]
    added = image.with_changes(decision.changes).topics["t"].partitions[1:]
    assert [list(state.replicas) for state in added] == asked
    assert [state.leader for state in added] == [2, 1]


def test_replicas_that_a_reassignment_adds_do_not_count_for_new_partitions() -> None:
    moving = PartitionState((0, 1, 2), (0, 1), 0, adding=(2,))
    image = image_of(3).with_changes([TopicCreated(TopicImage("t", UUID(int=1), (moving,)))])
    decision = add_partitions(image, [NewPartitions("t", 2)], rng=Random(0))
    assert len(image.with_changes(decision.changes).topics["t"].partitions[1].replicas) == 2


def test_the_new_partitions_of_one_request_are_bounded() -> None:
    half = PARTITIONS_MAX // 2
    image, outcomes = create(image_of(3), NewTopic("t", partitions=half), NewTopic("u", partitions=half))
    assert [code(o) for o in outcomes] == [ErrorCode.NONE] * 2
    third = NewTopic("d", assignment={0: (0,)})
    same, outcomes = create(image_of(3), NewTopic("t", partitions=half), NewTopic("u", partitions=half), third)
    assert [code(o) for o in outcomes] == [ErrorCode.POLICY_VIOLATION] * 3
    assert str(PARTITIONS_MAX) in str(outcomes[0].error)
    assert not same.topics
    _, outcomes = create(image_of(3), *(NewTopic(f"t{i}") for i in range(PARTITIONS_MAX // 3 + 1)))
    assert {code(o) for o in outcomes} == {ErrorCode.POLICY_VIOLATION}, "defaults count"
    for more, expected in ((half, ErrorCode.NONE), (half + 1, ErrorCode.POLICY_VIOLATION)):
        wanted = [NewPartitions("t", half + more), NewPartitions("u", half + half)]
        decision = add_partitions(image, wanted, rng=Random(0), validate_only=True)
        assert [code(o) for o in decision.result] == [expected] * 2


def test_only_partitions_that_would_be_created_count_against_the_bound() -> None:
    image, _ = create(image_of(3), NewTopic("t"), NewTopic("u", partitions=3))
    asked = [NewPartitions("t", 3 + PARTITIONS_MAX), NewPartitions("u", 3), NewPartitions("absent", 5)]
    decision = add_partitions(image, asked, rng=Random(0), validate_only=True)
    assert [code(o) for o in decision.result] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    one_more = [NewPartitions("t", 4 + PARTITIONS_MAX), NewPartitions("u", 2), NewPartitions("absent", 5)]
    decision = add_partitions(image, one_more, rng=Random(0), validate_only=True)
    assert [code(o) for o in decision.result] == [ErrorCode.POLICY_VIOLATION] * 3


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_get_no_more_partitions(name: str) -> None:
    image, _ = create(image_of(3), NewTopic(name))
    decision = add_partitions(image, [NewPartitions(name, 4)], rng=Random(0))
    assert (code(decision.result[0]), decision.changes) == (ErrorCode.INVALID_TOPIC_EXCEPTION, ())


def with_fenced(image: MetadataImage, *gone: int) -> MetadataImage:
    return image.with_changes(BrokerRegistered(replace(image.brokers[i], fenced=True)) for i in gone)


@given(
    count=st.integers(1, 8), down=st.sets(st.integers(0, 7)), partitions=st.integers(1, 20), factor=st.integers(1, 8)
)
def test_new_partitions_go_to_live_brokers_first(count: int, down: set[int], partitions: int, factor: int) -> None:
    image = with_fenced(image_of(count), *(i for i in down if i < count))
    alive = {broker.broker_id for broker in image.live_brokers()}
    after, (outcome,) = create(image, NewTopic("t", partitions=partitions, replication_factor=factor))
    if factor > count or not alive:
        assert code(outcome) == ErrorCode.INVALID_REPLICATION_FACTOR
        return
    decision = add_partitions(after, [NewPartitions("t", partitions + 3)], rng=Random(0))
    grown = after.with_changes(decision.changes).topics["t"].partitions
    assert len(grown) == partitions + 3
    for state in grown:
        living = tuple(broker for broker in state.replicas if broker in alive)
        assert len(state.replicas) == factor
        assert len(living) == min(factor, len(alive)), "who is away has only what the others cannot take"
        assert (state.isr, state.leader) == (living, state.replicas[0])


def test_an_assignment_may_name_fenced_brokers_if_one_is_alive() -> None:
    image = with_fenced(image_of(3), 0, 1)
    after, (partly, dead) = create(image, NewTopic("t", assignment={0: (0, 2)}), NewTopic("u", assignment={0: (0, 1)}))
    assert (code(partly), code(dead)) == (ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    assert after.topics["t"].partitions == (PartitionState((0, 2), (2,), 2),)
