"""All metadata changes can be encoded and decoded; other bytes are rejected."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.metadata.changes import (
    BrokerRegistered,
    BrokerUnregistered,
    Change,
    ConfigReplaced,
    ControllerElected,
    DeletedTopicsReplaced,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.encoding import changes_from_bytes, changes_to_bytes, state_from_json, state_to_json
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.protocol.uuids import UUID
from tests.broker.metadata.test_image import entries, registrations, resources, security_changes, states, topics
from tests.support.uuids import uuids

changes: st.SearchStrategy[Change] = st.one_of(
    st.builds(ControllerElected, st.integers(), st.integers()),
    st.builds(BrokerRegistered, registrations),
    st.builds(BrokerUnregistered, st.integers()),
    st.builds(TopicCreated, topics()),
    st.builds(TopicDeleted, st.text(), uuids()),
    st.builds(DeletedTopicsReplaced, st.lists(uuids()).map(tuple)),
    st.builds(PartitionsAdded, st.text(), st.lists(states).map(tuple)),
    st.builds(PartitionChanged, st.text(), st.integers(0), states),
    st.builds(ConfigReplaced, resources, entries),
    security_changes,
)


@given(st.lists(changes, max_size=5))
def test_round_trip(some: list[Change]) -> None:
    assert changes_from_bytes(changes_to_bytes(some)) == tuple(some)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{",
        b"\xff",
        b"1",
        b'{"a":1}',
        b"[1]",
        b'[["unheard of"]]',
        b'[["partition"]]',
        b'[["topic","t","x",[]]]',
        b'[["topic","t",5,[]]]',
    ],
)
def test_bytes_that_are_not_changes_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        changes_from_bytes(wrong)


@pytest.mark.parametrize(
    ("stored", "state"),
    [
        ([[1, 2], [1], 1, 4, 5], PartitionState((1, 2), (1,), 1, 4, 5)),
        ([[1, 2], [1], 1, 4, 5, [2], [1]], PartitionState((1, 2), (1,), 1, 4, 5, (2,), (1,))),
    ],
)
def test_states_of_older_stores_are_read_and_keep_their_form(stored: list[Any], state: PartitionState) -> None:
    assert state_from_json(stored) == state
    assert state_to_json(state) == stored


def test_equal_states_of_a_topic_share_one_object() -> None:
    one, other, moving = (
        PartitionState((1,), (1,), 1),
        PartitionState((2,), (2,), 2),
        PartitionState((1,), (1,), 1, 0, 1, (2,)),
    )
    topic = TopicImage("t", UUID(int=1), (one, other, one, moving))
    (created,) = changes_from_bytes(changes_to_bytes([TopicCreated(topic)]))
    assert isinstance(created, TopicCreated)
    assert created.topic == topic
    assert created.topic.partitions[0] is created.topic.partitions[2]
