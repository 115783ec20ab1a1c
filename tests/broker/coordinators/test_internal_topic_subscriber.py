"""Which partitions of an internal topic a broker coordinates, as the metadata changes."""

from __future__ import annotations

import pytest

from parley.broker.coordinators.internal_topic_subscriber import InternalTopicSubscriber
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Change,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState, TopicImage
from parley.protocol.uuids import UUID

US, OTHER = 1, 2
THIS_PROCESS, EARLIER_PROCESS = UUID(int=1), UUID(int=2)


class Coordinator:
    """Records its calls."""

    def __init__(self) -> None:
        self.topic = OFFSETS_TOPIC
        self.told: list[tuple[str, int, int]] = []

    def resign_all(self) -> None:
        self.told.append(("resigned all", -1, -1))

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        self.told.append(("elected", partition, leader_epoch))

    def on_resigned(self, partition: int) -> None:
        self.told.append(("resigned", partition, -1))


class Follower:
    """The subscriber of broker 1, and the changes that it gets."""

    def __init__(self) -> None:
        self.image = MetadataImage("c")
        self.coordinator = Coordinator()
        self._follower = InternalTopicSubscriber(US, THIS_PROCESS, self.coordinator)

    def sees(self, *changes: Change) -> list[tuple[str, int, int]]:
        """Return the coordinator's calls for changes that come together."""
        self.image = self.image.with_changes(changes)
        self.coordinator.told.clear()
        self._follower.apply(Delta(1, 1, changes), self.image)
        return list(self.coordinator.told)


def led_by(leader: int, epoch: int) -> PartitionState:
    return PartitionState((US, OTHER), (US, OTHER), leader, leader_epoch=epoch)


def registered(process: UUID = THIS_PROCESS, *, fenced: bool = False) -> BrokerRegistered:
    return BrokerRegistered(BrokerRegistration(US, 1, process, (), fenced=fenced))


def created(*states: PartitionState) -> TopicCreated:
    return TopicCreated(TopicImage(OFFSETS_TOPIC, UUID(int=7), states))


def test_leadership_from_before_the_start_does_not_count() -> None:
    follower = Follower()
    assert follower.sees(created(led_by(US, 3), led_by(OTHER, 4))) == [("resigned", 1, -1)]
    term = PartitionChanged(OFFSETS_TOPIC, 0, led_by(US, 5))
    assert follower.sees(term) == []
    assert follower.sees(registered()) == [("elected", 0, 5), ("resigned", 1, -1)]
    assert follower.sees(PartitionChanged(OFFSETS_TOPIC, 1, led_by(US, 6))) == [("elected", 1, 6)]


def test_leadership_of_an_earlier_process_does_not_count() -> None:
    """A broker that has restarted sees its earlier process registered and leading, until it is registered itself."""
    follower = Follower()
    assert follower.sees(registered(EARLIER_PROCESS), created(led_by(US, 3))) == []
    fenced = PartitionChanged(OFFSETS_TOPIC, 0, led_by(NO_LEADER, 4))
    elected = PartitionChanged(OFFSETS_TOPIC, 0, led_by(US, 5))
    assert follower.sees(fenced, registered(), elected)[-1] == ("elected", 0, 5)


def test_a_fenced_broker_still_resigns() -> None:
    follower = Follower()
    follower.sees(created(led_by(US, 3)), registered())
    assert follower.sees(registered(fenced=True)) == []
    assert follower.sees(PartitionChanged(OFFSETS_TOPIC, 0, led_by(NO_LEADER, 4))) == [("resigned", 0, -1)]


@pytest.mark.parametrize("name", ["A", "z"])
def test_other_topics_and_brokers_do_not_concern_the_coordinator(name: str) -> None:
    follower = Follower()
    follower.sees(registered(), created(led_by(US, 3), led_by(US, 3)))
    others = TopicCreated(TopicImage(name, UUID(int=8), (led_by(OTHER, 1),)))
    other = BrokerRegistered(BrokerRegistration(OTHER, 1, UUID(int=2), ()))
    added, changed = PartitionsAdded(name, (led_by(US, 1),)), PartitionChanged(name, 0, led_by(US, 2))
    assert [follower.sees(change) for change in (others, other, added, changed)] == [[], [], [], []]
    assert follower.sees(TopicDeleted(name, UUID(int=8))) == []
    assert follower.sees(TopicDeleted(OFFSETS_TOPIC, UUID(int=7))) == [("resigned all", -1, -1)]


def test_added_partitions_are_looked_at_alone() -> None:
    follower = Follower()
    follower.sees(registered(), created(led_by(US, 3), led_by(OTHER, 3)))
    added = PartitionsAdded(OFFSETS_TOPIC, (led_by(US, 1), led_by(OTHER, 1)))
    assert follower.sees(added) == [("elected", 2, 1), ("resigned", 3, -1)]
