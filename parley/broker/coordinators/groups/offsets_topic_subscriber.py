"""Tells the group coordinator which partitions of ``__consumer_offsets`` this broker leads, and of deleted topics.

Metadata from before this broker registered may still name it as the leader under an old epoch; such metadata is
ignored.
"""

from __future__ import annotations

from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.metadata.changes import (
    BrokerRegistered,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import OFFSETS_TOPIC
from parley.broker.runtime.tasks import TaskSet


class OffsetsTopicSubscriber:
    """A subscriber of the metadata, on behalf of the group coordinator."""

    def __init__(self, broker_id: int, coordinator: GroupCoordinator, tasks: TaskSet) -> None:
        self._broker_id = broker_id
        self._coordinator = coordinator
        self._tasks = tasks

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Apply a change of the metadata."""
        for change in delta.changes:
            match change:
                case TopicCreated(topic) if topic.name == OFFSETS_TOPIC:
                    self._update_leadership(image, range(len(topic.partitions)))
                case PartitionsAdded(name, added) if name == OFFSETS_TOPIC:
                    total = len(image.topics[name].partitions)
                    self._update_leadership(image, range(total - len(added), total))
                case BrokerRegistered(registration) if registration.broker_id == self._broker_id:
                    known = image.topics.get(OFFSETS_TOPIC)
                    self._update_leadership(image, range(len(known.partitions) if known is not None else 0))
                case PartitionChanged(name, index) if name == OFFSETS_TOPIC:
                    self._update_leadership(image, (index,))
                case TopicDeleted(name) if name == OFFSETS_TOPIC:
                    self._coordinator.resign_all()
                case TopicDeleted(name):
                    self._tasks.start(self._coordinator.on_topic_deleted(name), name=f"forget offsets of {name}")

    def _update_leadership(self, image: MetadataImage, indexes: range | tuple[int, ...]) -> None:
        registration = image.brokers.get(self._broker_id)
        is_registered = registration is not None and not registration.fenced
        for index in indexes:
            state = image.partition(OFFSETS_TOPIC, index)
            if state is None or state.leader != self._broker_id:
                self._coordinator.on_resigned(index)
            elif is_registered:
                self._coordinator.on_elected(index, state.leader_epoch)
