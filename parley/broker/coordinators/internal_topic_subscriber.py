"""Notifies a coordinator of the partitions of its internal topic that this broker starts or stops leading.

Until a restarted broker has registered again, the metadata may still name it as leader, with a leader epoch from before
the restart. Such metadata is ignored: the log may lack the last records that the earlier process wrote, and records
appended under the same epoch would then conflict with the followers' records.
"""

from __future__ import annotations

from typing import Protocol

from parley.broker.metadata.changes import (
    BrokerRegistered,
    Delta,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.image import MetadataImage
from parley.protocol.uuids import UUID


class Shards(Protocol):
    """The shards of one internal topic. ``CoordinatorRuntime`` implements this."""

    topic: str

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """Load a partition that this broker now leads."""
        ...

    def on_resigned(self, partition: int) -> None:
        """Drop the shard of a partition that this broker does not lead, if there is one."""
        ...

    def resign_all(self) -> None:
        """Drop all shards."""
        ...


class InternalTopicSubscriber:
    """A subscriber of the metadata that loads and drops the shards of one coordinator."""

    def __init__(self, broker_id: int, incarnation_id: UUID, shards: Shards) -> None:
        """``incarnation_id`` identifies this process of the broker in its registration."""
        self._broker_id = broker_id
        self._incarnation_id = incarnation_id
        self._shards = shards
        self._topic = shards.topic

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Load and drop shards after a change to the metadata. Called for every change."""
        for change in delta.changes:
            match change:
                case TopicCreated(topic) if topic.name == self._topic:
                    self._update_leadership(image, range(len(topic.partitions)))
                case PartitionsAdded(name, added) if name == self._topic:
                    total = len(image.topics[name].partitions)
                    self._update_leadership(image, range(total - len(added), total))
                case BrokerRegistered(registration) if registration.broker_id == self._broker_id:
                    known = image.topics.get(self._topic)
                    self._update_leadership(image, range(len(known.partitions) if known is not None else 0))
                case PartitionChanged(name, index) if name == self._topic:
                    self._update_leadership(image, (index,))
                case TopicDeleted(name) if name == self._topic:
                    self._shards.resign_all()

    def _update_leadership(self, image: MetadataImage, indexes: range | tuple[int, ...]) -> None:
        known = image.brokers.get(self._broker_id)
        is_registered = known is not None and known.incarnation_id == self._incarnation_id and not known.fenced
        for index in indexes:
            state = image.partition(self._topic, index)
            if state is None or state.leader != self._broker_id:
                self._shards.on_resigned(index)
            elif is_registered:
                self._shards.on_elected(index, state.leader_epoch)
