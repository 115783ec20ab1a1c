"""The changes that a metadata image can undergo: one frozen value per kind, and the delta that groups them.

The controller's decisions produce changes, and the store keeps their outcome. All brokers apply the same changes in the
same order, so every broker passes through the same images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from parley.broker.metadata.feature_levels import FeatureLevels
from parley.broker.metadata.types import BrokerRegistration, ConfigResource, PartitionState, TopicImage
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.security.acls.stored import Bucket
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.light_dataclasses import dataclass
from parley.protocol.security.scram import ScramCredential
from parley.protocol.uuids import UUID


@dataclass(frozen=True, slots=True)
class ControllerElected:
    """A controller was elected. Its epoch is higher than the epoch of any earlier controller."""

    controller_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A broker joined, or its registration changed (fenced, new endpoints)."""

    registration: BrokerRegistration


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """A broker was removed from the cluster permanently, together with its registration."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic was created, with all of its partitions."""

    topic: TopicImage


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic was deleted. A later topic with the same name gets another id."""

    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class DeletedTopicsReplaced:
    """The complete new list of the ids of the most recently deleted topics, oldest first."""

    topic_ids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """Partitions were added to a topic. Their indexes follow those of the existing partitions."""

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
    """The complete new configuration entries of one resource; may be empty."""

    resource: ConfigResource
    entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AclBucketReplaced:
    """The complete new ACLs of one bucket; may be empty."""

    number: int
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class ScramUserReplaced:
    """The complete new SCRAM credentials of a user, by mechanism; may be empty."""

    user: str
    credentials: Mapping[str, ScramCredential]


@dataclass(frozen=True, slots=True)
class DelegationTokenReplaced:
    """A delegation token was created or renewed, or removed if ``token`` is None."""

    token_id: str
    token: DelegationToken | None


@dataclass(frozen=True, slots=True)
class ClientQuotasReplaced:
    """The complete new quotas of an entity, by key; may be empty."""

    entity: QuotaEntity
    quotas: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FeatureLevelsReplaced:
    """The complete new levels of the cluster's features."""

    levels: FeatureLevels


@dataclass(frozen=True, slots=True)
class ClusterSecretSet:
    """A secret that all brokers share was chosen. It never changes."""

    name: str
    value: bytes = field(repr=False)


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
    | AclBucketReplaced
    | ScramUserReplaced
    | DelegationTokenReplaced
    | ClientQuotasReplaced
    | FeatureLevelsReplaced
    | ClusterSecretSet
)


def partitions_in(change: Change) -> int:
    """Return the number of partitions that a change creates, or to which it gives another state."""
    match change:
        case PartitionChanged():
            return 1
        case TopicCreated(topic):
            return len(topic.partitions)
        case PartitionsAdded(_, partitions):
            return len(partitions)
        case _:
            return 0


@dataclass(frozen=True, slots=True)
class Delta:
    """The step from one image to the next. ``version`` is the version of the resulting image."""

    controller_epoch: int
    version: int
    changes: tuple[Change, ...]
    continues_history: bool = True
    """False if the earlier image may belong to a history that the coordination store has lost, because it was rolled
    back. In that case the cluster may not have decided on these changes, and no log may be deleted because of them."""

    @property
    def partitions(self) -> int:
        """The number of partitions that are created or get another state. A partition with two changes counts twice."""
        return sum(map(partitions_in, self.changes))
