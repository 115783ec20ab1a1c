"""The topics that a group subscribes to: their hash, their ids, and the racks of their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import partial
from hashlib import blake2b

from parley.broker.coordinators.groups.consumer.assignors.assignor import TopicSpec
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, TopicImage
from parley.protocol.uuids import UUID

NO_TOPICS_HASH = 0
"""The hash for a group whose topics do not exist."""

HASHES_MAX = 10_000
"""The number of topics whose hashes are cached, because hashing a topic with many partitions is slow."""

_CONTROLLER_EPOCH_SHIFT = 32


def metadata_hash(image: MetadataImage, names: Iterable[str]) -> int:
    """Return a hash of the topics' ids, partitions and racks. If it changes, a new target assignment is needed."""
    known = [image.topics[name] for name in sorted(names) if name in image.topics]
    if not known:
        return NO_TOPICS_HASH
    digest = blake2b(digest_size=8)
    for topic in known:
        digest.update(_hash_of(topic, image))
    return int.from_bytes(digest.digest(), "big", signed=True)


_hashes: dict[UUID, tuple[TopicImage, Mapping[int, BrokerRegistration], bytes]] = {}
"""The last hash of each topic, with the objects that it depends on. Images share objects that do not change."""


def _hash_of(topic: TopicImage, image: MetadataImage) -> bytes:
    known = _hashes.get(topic.topic_id)
    if known is not None and known[0] is topic and known[1] is image.brokers:
        return known[2]
    digest = blake2b(topic.topic_id.bytes + len(topic.partitions).to_bytes(4, "big"), digest_size=8)
    if any(broker.rack for broker in image.brokers.values()):
        for index in range(len(topic.partitions)):
            digest.update("\0".join(sorted(_racks(image, topic, index))).encode() + b"\1")
    if len(_hashes) >= HASHES_MAX:
        _hashes.clear()
    _hashes[topic.topic_id] = topic, image.brokers, digest.digest()
    return digest.digest()


def topic_ids(image: MetadataImage, names: Iterable[str]) -> frozenset[UUID]:
    """Return the ids of these topics, without those that do not exist."""
    return frozenset([image.topics[name].topic_id for name in names if name in image.topics])


def topic_specs(image: MetadataImage, names: Set[str]) -> dict[UUID, TopicSpec]:
    """Return the specifications of these topics for an assignor, without those that do not exist."""
    known = [image.topics[name] for name in sorted(names) if name in image.topics]
    return {
        topic.topic_id: TopicSpec(topic.name, len(topic.partitions), partial(_racks, image, topic)) for topic in known
    }


def _racks(image: MetadataImage, topic: TopicImage, partition: int) -> frozenset[str]:
    brokers = [image.brokers.get(broker_id) for broker_id in topic.partitions[partition].replicas]
    return frozenset([broker.rack for broker in brokers if broker is not None and broker.rack is not None])


def version_of(image: MetadataImage) -> int:
    """Return a version of the metadata, which is higher for later metadata, even if another controller has taken
    over."""
    return image.controller_epoch << _CONTROLLER_EPOCH_SHIFT | image.version
