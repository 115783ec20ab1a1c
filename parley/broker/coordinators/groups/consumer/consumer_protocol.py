"""The data that consumers embed in messages of the classic protocol: their subscriptions and assignments."""

from __future__ import annotations

from typing import Final

from parley.broker.coordinators.groups.classic.membership import Protocols
from parley.broker.coordinators.groups.consumer.member import Assignment
from parley.broker.metadata.image import MetadataImage
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.messages.stored import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from parley.protocol.uuids import UUID

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of classic groups whose members are consumers. Only such groups can become consumer groups."""

_VERSION_MAX: Final = 3


def subscription_of(metadata: bytes) -> ConsumerProtocolSubscription:
    """Decode the subscription in a member's metadata. Raises MalformedMessage if it cannot be decoded."""
    return decode_stored(ConsumerProtocolSubscription, _known_version(metadata))[0]


def assignment_of(data: bytes, image: MetadataImage) -> dict[UUID, tuple[int, ...]]:
    """Decode the partitions of an assignment; empty data contains none. Skips negative partition numbers, and topics
    that do not exist.

    Raises MalformedMessage if the data cannot be decoded.
    """
    if not data:
        return {}
    stored = decode_stored(ConsumerProtocolAssignment, _known_version(data))[0]
    named = [(each.topic, [index for index in each.partitions if index >= 0]) for each in stored.assigned_partitions]
    return owned_partitions(named, image)


def owned_partitions(named: list[tuple[str, list[int]]], image: MetadataImage) -> dict[UUID, tuple[int, ...]]:
    """Return the named topics' partitions by topic id. Skips topics that do not exist."""
    found: dict[UUID, set[int]] = {}
    for name, partitions in named:
        topic = image.topics.get(name)
        if topic is not None:
            found.setdefault(topic.topic_id, set()).update(partitions)
    return {topic_id: tuple(sorted(partitions)) for topic_id, partitions in found.items()}


def encoded_assignment(assignment: Assignment, protocols: Protocols, image: MetadataImage) -> bytes:
    """Encode an assignment for a classic member, in the version in which the member encoded its metadata. Leaves out
    topics that no longer exist.

    ``protocols`` are the member's strategies with its metadata.
    """
    metadata = protocols[0][1] if protocols else b""
    version = min(int.from_bytes(metadata[:2], "big"), _VERSION_MAX)
    kind = ConsumerProtocolAssignment
    value = kind(
        assigned_partitions=[
            kind.TopicPartition(topic=image.topic_names[topic], partitions=list(partitions))
            for topic, partitions in assignment.items()
            if topic in image.topic_names
        ]
    )
    return encode_stored(value, version)


def _known_version(data: bytes) -> bytes:
    """Mark data of a later version as data of the highest known version, so that bytes that were added later are
    ignored."""
    version = int.from_bytes(data[:2], "big", signed=True)
    return _VERSION_MAX.to_bytes(2, "big") + data[2:] if version > _VERSION_MAX else data
