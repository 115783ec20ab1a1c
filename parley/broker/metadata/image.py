"""The metadata image: everything the cluster has agreed on, as one immutable value.

* An image is never changed. ``MetadataImage.apply`` returns the next image, which shares all unchanged parts.
* The epochs of the controller, brokers, leaders and partitions are plain integers, and never decrease.
* ``version`` counts the deltas of one controller epoch; ``(controller_epoch, version)`` orders any two images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TypeVar

from parley.broker.metadata.changes import (
    AclBucketReplaced,
    BrokerRegistered,
    BrokerUnregistered,
    Change,
    ClientQuotasReplaced,
    ClusterSecretSet,
    ConfigReplaced,
    ControllerElected,
    DelegationTokenReplaced,
    DeletedTopicsReplaced,
    Delta,
    FeatureLevelsReplaced,
    PartitionChanged,
    PartitionsAdded,
    ScramUserReplaced,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.feature_levels import DEFAULT_LEVELS, FeatureLevels
from parley.broker.metadata.terms import Term
from parley.broker.metadata.types import (
    NO_ENTRIES,
    BrokerRegistration,
    ConfigResource,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.security.acls.stored import EMPTY, Bucket
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.light_dataclasses import dataclass
from parley.protocol.security.scram import ScramCredential
from parley.protocol.uuids import UUID

K = TypeVar("K")
V = TypeVar("V")

DELETED_TOPICS_KEPT = 500


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """The state of the cluster at ``(controller_epoch, version)``.

    The mappings are shared between images and must not be changed.
    """

    cluster_id: str
    controller_id: int = -1
    controller_epoch: int = 0
    version: int = 0
    brokers: Mapping[int, BrokerRegistration] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    acls: Mapping[int, Bucket] = field(default_factory=dict)
    """The ACLs by bucket number (``parley.broker.security.acls.stored``)."""
    scram_users: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)
    """SCRAM credentials by user and mechanism."""
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    """Delegation tokens by id. Expired tokens are removed after a while."""
    client_quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    """The quotas of users, client ids and addresses. The mapping is the same object in later images until a quota
    changes."""
    features: FeatureLevels = DEFAULT_LEVELS
    """The levels of the features that clients see."""
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Secrets that all brokers share, by name."""
    deleted_topics: tuple[UUID, ...] = ()
    """The ids of the most recently deleted topics, oldest first. A broker that missed the deletion deletes their logs.
    It keeps the log of any other unknown topic, because the store may have been rolled back to an older state."""

    @property
    def term(self) -> Term:
        """The controller's term, and the version of this image in it."""
        return Term(self.controller_epoch, self.controller_id, self.version)

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """Return the state of a partition, or None if the topic or the index does not exist."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def named(self, replicas: Iterable[tuple[UUID, int]]) -> Iterator[tuple[str, int, PartitionState]]:
        """Yield the partitions with these topic ids and indexes as ``(topic, index, state)``. Duplicates and unknown
        partitions are skipped."""
        for topic_id, index in dict.fromkeys(replicas):
            topic = self.topic_names.get(topic_id, "")
            state = self.partition(topic, index)
            if state is not None:
                yield topic, index, state

    def partitions(self) -> Iterator[tuple[str, int, PartitionState]]:
        """Yield every partition as ``(topic, index, state)``."""
        for topic in self.topics.values():
            for index, state in enumerate(topic.partitions):
                yield topic.name, index, state

    def live_brokers(self) -> list[BrokerRegistration]:
        """Return the brokers that are not fenced, ordered by id."""
        return [self.brokers[i] for i in sorted(self.brokers) if not self.brokers[i].fenced]

    def live_broker_ids(self) -> set[int]:
        """Return the ids of the brokers that are not fenced."""
        return {broker_id for broker_id, broker in self.brokers.items() if not broker.fenced}

    def config(self, type: ResourceType, name: str) -> Mapping[str, str]:
        """Return the configuration entries of one resource, without defaults; empty if it has none."""
        return self.configs.get(ConfigResource(type, name), NO_ENTRIES)

    def apply(self, delta: Delta) -> MetadataImage:
        """Return the image that results from ``delta``.

        Raises KeyError or IndexError if a change names a topic or a partition that does not exist.
        """
        draft = _Draft(self)
        for change in delta.changes:
            draft.apply(change)
        return replace(draft.finish(), version=delta.version)

    def with_changes(self, changes: Iterable[Change]) -> MetadataImage:
        """Return the image that results from ``changes``, with the next version. Raises the errors of ``apply``."""
        return self.apply(Delta(self.controller_epoch, self.version + 1, tuple(changes)))

    def changes_since(self, earlier: MetadataImage) -> tuple[Change, ...]:
        """Return the changes from ``earlier`` to this image, for a broker that missed the deltas in between."""
        changes: list[Change] = []
        if (self.controller_id, self.controller_epoch) != (earlier.controller_id, earlier.controller_epoch):
            changes.append(ControllerElected(self.controller_id, self.controller_epoch))
        changes += [BrokerRegistered(new) for i, new in self.brokers.items() if earlier.brokers.get(i) != new]
        changes += [BrokerUnregistered(i) for i in earlier.brokers if i not in self.brokers]
        deleted = earlier.deleted_topics
        for name, old in earlier.topics.items():
            if name not in self.topics or self.topics[name].topic_id != old.topic_id:
                changes.append(TopicDeleted(name, old.topic_id))
                deleted = _with_deleted(deleted, old.topic_id)
        if deleted != self.deleted_topics:
            changes.append(DeletedTopicsReplaced(self.deleted_topics))
        for resource in {**earlier.configs, **self.configs}:
            entries = self.configs.get(resource, NO_ENTRIES)
            if entries != earlier.configs.get(resource, NO_ENTRIES):
                changes.append(ConfigReplaced(resource, entries))
        for name, topic in self.topics.items():
            changes += _topic_changes(earlier.topics.get(name), topic)
        if self.features != earlier.features:
            changes.append(FeatureLevelsReplaced(self.features))
        changes += self._security_changes_since(earlier)
        return tuple(changes)

    def _security_changes_since(self, earlier: MetadataImage) -> Iterator[Change]:
        if self.acls is not earlier.acls:
            for number in {**earlier.acls, **self.acls}:
                bucket = self.acls.get(number, EMPTY)
                if bucket != earlier.acls.get(number, EMPTY):
                    yield AclBucketReplaced(number, bucket)
        if self.scram_users is not earlier.scram_users:
            for user in {**earlier.scram_users, **self.scram_users}:
                credentials = self.scram_users.get(user, {})
                if credentials != earlier.scram_users.get(user, {}):
                    yield ScramUserReplaced(user, credentials)
        if self.delegation_tokens is not earlier.delegation_tokens:
            for token_id in {**earlier.delegation_tokens, **self.delegation_tokens}:
                token = self.delegation_tokens.get(token_id)
                if token != earlier.delegation_tokens.get(token_id):
                    yield DelegationTokenReplaced(token_id, token)
        if self.client_quotas is not earlier.client_quotas:
            for entity in {**earlier.client_quotas, **self.client_quotas}:
                quotas = self.client_quotas.get(entity, {})
                if quotas != earlier.client_quotas.get(entity, {}):
                    yield ClientQuotasReplaced(entity, quotas)
        for name, value in self.secrets.items():
            if earlier.secrets.get(name) != value:
                yield ClusterSecretSet(name, value)


def _with_deleted(topic_ids: tuple[UUID, ...], topic_id: UUID) -> tuple[UUID, ...]:
    return (*topic_ids, topic_id)[-DELETED_TOPICS_KEPT:]


def _topic_changes(old: TopicImage | None, new: TopicImage) -> list[Change]:
    if old is None or old.topic_id != new.topic_id:
        return [TopicCreated(new)]
    pairs = enumerate(zip(old.partitions, new.partitions, strict=False))
    changes: list[Change] = [PartitionChanged(new.name, i, state) for i, (before, state) in pairs if before != state]
    if len(new.partitions) > len(old.partitions):
        changes.append(PartitionsAdded(new.name, new.partitions[len(old.partitions) :]))
    return changes


class _Draft:
    """An image being changed. Each mapping is copied when it first changes, and partitions are collected per topic."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._controller = (image.controller_id, image.controller_epoch)
        self._brokers = dict(image.brokers)
        self._topics: dict[str, TopicImage] | None = None
        self._topic_names: dict[UUID, str] | None = None
        self._configs: dict[ConfigResource, Mapping[str, str]] | None = None
        self._acls: dict[int, Bucket] | None = None
        self._scram_users: dict[str, Mapping[str, ScramCredential]] | None = None
        self._tokens: dict[str, DelegationToken] | None = None
        self._quotas: dict[QuotaEntity, Mapping[str, float]] | None = None
        self._features = image.features
        self._secrets = image.secrets
        self._deleted = image.deleted_topics
        self._partitions: dict[str, list[PartitionState]] = {}

    def apply(self, change: Change) -> None:
        match change:
            case PartitionChanged(topic, partition, state):
                self._partition_list(topic)[partition] = state
            case PartitionsAdded(topic, partitions):
                self._partition_list(topic).extend(partitions)
            case TopicCreated(topic_image):
                self._writable_topics()[topic_image.name] = topic_image
                self._writable_names()[topic_image.topic_id] = topic_image.name
            case TopicDeleted(name, topic_id):
                self._partitions.pop(name, None)
                self._writable_topics().pop(name, None)
                self._writable_names().pop(topic_id, None)
                self._deleted = _with_deleted(self._deleted, topic_id)
            case DeletedTopicsReplaced(topic_ids):
                self._deleted = topic_ids
            case ConfigReplaced(resource, entries):
                self._replace_config(resource, entries)
            case BrokerRegistered(registration):
                self._brokers[registration.broker_id] = registration
            case BrokerUnregistered(broker_id):
                self._brokers.pop(broker_id, None)
            case ControllerElected(controller_id, epoch):
                self._controller = (controller_id, epoch)
            case FeatureLevelsReplaced(levels):
                self._features = levels
            case _:
                self._apply_security(change)

    def _apply_security(
        self,
        change: (
            AclBucketReplaced | ScramUserReplaced | DelegationTokenReplaced | ClientQuotasReplaced | ClusterSecretSet
        ),
    ) -> None:
        match change:
            case ClusterSecretSet(name, value):
                self._secrets = {**self._secrets, name: value}
            case AclBucketReplaced(number, bucket):
                if self._acls is None:
                    self._acls = dict(self._image.acls)
                _put(self._acls, number, bucket)
            case ScramUserReplaced(user, credentials):
                if self._scram_users is None:
                    self._scram_users = dict(self._image.scram_users)
                _put(self._scram_users, user, credentials)
            case DelegationTokenReplaced(token_id, token):
                if self._tokens is None:
                    self._tokens = dict(self._image.delegation_tokens)
                _put(self._tokens, token_id, token)
            case ClientQuotasReplaced(entity, quotas):
                if self._quotas is None:
                    self._quotas = dict(self._image.client_quotas)
                _put(self._quotas, entity, quotas)

    def finish(self) -> MetadataImage:
        for name, partitions in self._partitions.items():
            topics = self._writable_topics()
            topics[name] = replace(topics[name], partitions=tuple(partitions))
        image = self._image
        return replace(
            image,
            controller_id=self._controller[0],
            controller_epoch=self._controller[1],
            brokers=self._brokers,
            topics=image.topics if self._topics is None else self._topics,
            topic_names=image.topic_names if self._topic_names is None else self._topic_names,
            configs=image.configs if self._configs is None else self._configs,
            acls=image.acls if self._acls is None else self._acls,
            scram_users=image.scram_users if self._scram_users is None else self._scram_users,
            delegation_tokens=image.delegation_tokens if self._tokens is None else self._tokens,
            client_quotas=image.client_quotas if self._quotas is None else self._quotas,
            features=self._features,
            secrets=self._secrets,
            deleted_topics=self._deleted,
        )

    def _partition_list(self, topic: str) -> list[PartitionState]:
        found = self._partitions.get(topic)
        if found is None:
            topics = self._image.topics if self._topics is None else self._topics
            found = self._partitions[topic] = list(topics[topic].partitions)
        return found

    def _writable_topics(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._image.topics)
        return self._topics

    def _writable_names(self) -> dict[UUID, str]:
        if self._topic_names is None:
            self._topic_names = dict(self._image.topic_names)
        return self._topic_names

    def _replace_config(self, resource: ConfigResource, entries: Mapping[str, str]) -> None:
        if self._configs is None:
            self._configs = dict(self._image.configs)
        _put(self._configs, resource, entries)


def _put(entries: dict[K, V], key: K, value: V | None) -> None:
    """Set the entry; remove it if the value is empty or None."""
    if value:
        entries[key] = value
    else:
        entries.pop(key, None)
