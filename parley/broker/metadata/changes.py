"""What can happen to a metadata image: one frozen value per kind of change, and a delta that groups them.

A decision of the controller yields changes; the store keeps their outcome; brokers apply the same changes in the same
order, so that every broker passes through the same images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from parley.broker.metadata.types import BrokerRegistration, ConfigResource, PartitionState, TopicImage


@dataclass(frozen=True, slots=True)
class ControllerElected:
    """A controller took office; its epoch is higher than any before."""

    controller_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker joined, or its registration changed (fenced, new endpoints)."""

    registration: BrokerRegistration


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """A broker left for good: nothing remembers it."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic appeared with all of its partitions."""

    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic disappeared; a later topic of the same name has another id."""

    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class DeletedTopicsReplaced:
    """The ids of the topics deleted last are now exactly these, oldest first."""

    topic_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """A topic grew: the new partitions follow the existing ones by index."""

    topic: str
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """A partition has a new state (leader, ISR, replicas)."""

    topic: str
    partition: int
    state: PartitionState


@dataclass(frozen=True, slots=True)
class ConfigReplaced:
    """The entries of one resource are now exactly these; none means the resource has no entries of its own."""

    resource: ConfigResource
    entries: Mapping[str, str]


Change = (
    ControllerElected
    | BrokerRegistered
    | BrokerUnregistered
    | TopicCreated
    | TopicDeleted
    | DeletedTopicsReplaced
    | PartitionsAdded
    | PartitionChanged
    | ConfigReplaced
)


@dataclass(frozen=True, slots=True)
class Delta:
    """The step from one image to the next: ``version`` is the version of the image it leads to."""

    controller_epoch: int
    version: int
    changes: tuple[Change, ...]
