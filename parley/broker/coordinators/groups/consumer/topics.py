"""What a consumer group needs to know of topics: their hash, their ids, the racks of their replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import partial
from hashlib import blake2b
from uuid import UUID

from parley.broker.coordinators.groups.consumer.assignors.assignor import TopicSpec
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import BrokerRegistration, TopicImage

NO_TOPICS_HASH = 0
"""The hash of a group none of whose topics exists."""

HASHES_MAX = 10_000
"""The most topics whose hashes are remembered: of a topic with many partitions, it takes a while."""

_CONTROLLER_EPOCH_SHIFT = 32


def metadata_hash(image: MetadataImage, names: Iterable[str]) -> int:
    """Return a hash of topics by their ids, partitions and racks: another one means another target assignment."""
    known = [image.topics[name] for name in sorted(names) if name in image.topics]
    if not known:
        return NO_TOPICS_HASH
    digest = blake2b(digest_size=8)
    for topic in known:
        digest.update(_hash_of(topic, image))
    return int.from_bytes(digest.digest(), "big", signed=True)


_hashes: dict[UUID, tuple[TopicImage, Mapping[int, BrokerRegistration], bytes]] = {}
"""The hash of each topic as it was last seen, with what it depends on. Images share what does not change."""


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
    """Return the ids of those topics that exist."""
    return frozenset([image.topics[name].topic_id for name in names if name in image.topics])


def topic_specs(image: MetadataImage, names: Set[str]) -> dict[UUID, TopicSpec]:
    """Return what an assignor may know of topics."""
    known = [image.topics[name] for name in sorted(names) if name in image.topics]
    return {
        topic.topic_id: TopicSpec(topic.name, len(topic.partitions), partial(_racks, image, topic)) for topic in known
    }


def _racks(image: MetadataImage, topic: TopicImage, partition: int) -> frozenset[str]:
    brokers = [image.brokers.get(broker_id) for broker_id in topic.partitions[partition].replicas]
    return frozenset([broker.rack for broker in brokers if broker is not None and broker.rack is not None])


def version_of(image: MetadataImage) -> int:
    """Return a number that is higher for later metadata."""
    return image.controller_epoch << _CONTROLLER_EPOCH_SHIFT | image.version
