"""A batch of many changes is published in steps; a registration and all changes after it form a single step."""

from __future__ import annotations

import pytest

from parley.broker.controller import published_steps
from parley.broker.controller.published_steps import in_steps
from parley.broker.metadata.changes import BrokerRegistered, Change, ConfigReplaced, PartitionChanged, TopicCreated
from parley.broker.metadata.types import BrokerRegistration, ConfigResource, PartitionState, ResourceType, TopicImage
from parley.protocol.uuids import UUID

STATE = PartitionState((1,), (1,), 1)
REGISTERED = BrokerRegistered(BrokerRegistration(1, 1, UUID(int=1), ()))
CONFIG = ConfigReplaced(ConfigResource(ResourceType.TOPIC, "t"), {})


def created(partitions: int) -> TopicCreated:
    return TopicCreated(TopicImage("t", UUID(int=1), (STATE,) * partitions))


def changed(count: int) -> list[Change]:
    return [PartitionChanged("t", index, STATE) for index in range(count)]


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ([CONFIG], [1]),
        (changed(3), [3]),
        (changed(7), [3, 3, 1]),
        ([created(2), CONFIG, created(2), CONFIG], [2, 2]),
        ([created(9), CONFIG, created(1)], [2, 1]),
        ([CONFIG, created(9)], [2]),
        ([*changed(4), REGISTERED, *changed(4)], [3, 6]),
    ],
)
def test_a_step_has_few_partitions_or_one_topic_or_a_registration(
    monkeypatch: pytest.MonkeyPatch, changes: list[Change], sizes: list[int]
) -> None:
    monkeypatch.setattr(published_steps, "PARTITIONS_PER_STEP", 3)
    steps = in_steps(changes)
    assert [len(step) for step in steps] == sizes
    assert [change for step in steps for change in step] == changes
