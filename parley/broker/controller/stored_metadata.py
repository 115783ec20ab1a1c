"""How metadata is stored in the coordination store: the keys, and values as readable JSON.

::

    cluster                      {"cluster_id": ...}
    brokers/<id>                 a registration, with its epoch and whether it is fenced
    topics/<name>                {"topic_id": ..., "partitions": count}
    partitions/<name>/<chunk>    {"topic_id": ..., "partitions": [...]}    100 partitions a chunk
    configs/<type>/<name>        {"key": "value", ...}
    deleted-topics/ids           [topic id, ...]      the topics deleted last, oldest first
    terms                        [[epoch, controller, version], ...]   see ``parley.broker.metadata.terms``

A topic's own key is written after its chunks and deleted before them, and each chunk has the topic's id. If a change is
too large for one transaction and is cut off in the middle, the chunks left over belong to no topic and are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote
from uuid import UUID

from parley.broker.metadata.changes import (
    BrokerRegistered,
    BrokerUnregistered,
    Change,
    ConfigReplaced,
    ControllerElected,
    DeletedTopicsReplaced,
    PartitionChanged,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.encoding import (
    registration_from_json,
    registration_to_json,
    state_from_json,
    state_to_json,
    to_json,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType, TopicImage

CHUNK_PARTITIONS = 100
CLUSTER, BROKERS, TOPICS, PARTITIONS, CONFIGS = "cluster", "brokers/", "topics/", "partitions/", "configs/"
DELETED_TOPICS = "deleted-topics/"
TERMS = "terms"
PREFIXES = (BROKERS, TOPICS, PARTITIONS, CONFIGS, DELETED_TOPICS)
_DELETED_TOPICS_KEY = f"{DELETED_TOPICS}ids"

Writes = dict[str, bytes | None]
"""The new value of each key, None to delete it, in the order in which the store must get them."""


def writes_for(changes: Iterable[Change], after: MetadataImage, before: MetadataImage) -> Writes:
    """Return the writes for ``changes``, which lead from the image ``before`` to the image ``after``."""
    writes: Writes = {}
    for change in changes:
        match change:
            case PartitionChanged(topic, partition):
                _write_chunks(writes, after, topic, partition, partition)
            case PartitionsAdded(topic, partitions):
                total = len(after.topics[topic].partitions) if topic in after.topics else 0
                _write_chunks(writes, after, topic, total - len(partitions), total - 1)
                _write_topic(writes, after, topic)
            case TopicCreated(topic):
                _write_chunks(writes, after, topic.name, 0, len(topic.partitions) - 1)
                _write_topic(writes, after, topic.name)
            case TopicDeleted(name):
                _delete_topic(writes, before, name)
                _write_deleted_topics(writes, after)
            case DeletedTopicsReplaced():
                _write_deleted_topics(writes, after)
            case ConfigReplaced(resource, entries):
                writes[_config_key(resource)] = to_json(dict(entries)) if entries else None
            case BrokerRegistered(registration):
                key = f"{BROKERS}{registration.broker_id:010d}"
                writes.pop(key, None)  # it must come after the partitions (see fence_broker)
                writes[key] = to_json(registration_to_json(registration))
            case BrokerUnregistered(broker_id):
                writes[f"{BROKERS}{broker_id:010d}"] = None
            case ControllerElected():
                pass  # the election stores the controller and its epoch
    return writes


def read_image(cluster_id: str, stored: Mapping[str, bytes]) -> MetadataImage:
    """Return the image that the store's entries describe. ``stored`` has all keys below ``PREFIXES``."""
    brokers = {}
    for key, value in stored.items():
        if key.startswith(BROKERS):
            registration = registration_from_json(json.loads(value))
            brokers[registration.broker_id] = registration
    topics = {}
    for key, value in stored.items():
        if key.startswith(TOPICS):
            topic = _read_topic(key.removeprefix(TOPICS), json.loads(value), stored)
            topics[topic.name] = topic
    configs: dict[ConfigResource, Mapping[str, str]] = {}
    for key, value in stored.items():
        if key.startswith(CONFIGS):
            kind, _, name = key.removeprefix(CONFIGS).partition("/")
            configs[ConfigResource(ResourceType[kind.upper()], _name_of(name))] = json.loads(value)
    return MetadataImage(
        cluster_id=cluster_id,
        brokers=brokers,
        topics=topics,
        topic_names={topic.topic_id: topic.name for topic in topics.values()},
        configs=configs,
        deleted_topics=tuple(map(UUID, json.loads(stored.get(_DELETED_TOPICS_KEY, b"[]")))),
    )


def _write_deleted_topics(writes: Writes, after: MetadataImage) -> None:
    writes.pop(_DELETED_TOPICS_KEY, None)  # it must come after the deletions, as the evidence of them
    writes[_DELETED_TOPICS_KEY] = to_json([str(topic_id) for topic_id in after.deleted_topics])


def _chunk_key(topic: str, chunk: int) -> str:
    return f"{PARTITIONS}{topic}/{chunk:05d}"


def _config_key(resource: ConfigResource) -> str:
    # A key may not end in a slash, so the default of all brokers, whose name is empty, is written as "=".
    return f"{CONFIGS}{resource.type.name.lower()}/{quote(resource.name, safe='') or '='}"


def _name_of(stored: str) -> str:
    return "" if stored == "=" else unquote(stored)


def _write_topic(writes: Writes, after: MetadataImage, name: str) -> None:
    topic = after.topics.get(name)
    if topic is not None:
        key = TOPICS + name
        writes.pop(key, None)  # it must come after the chunks
        writes[key] = to_json({"topic_id": str(topic.topic_id), "partitions": len(topic.partitions)})


def _write_chunks(writes: Writes, after: MetadataImage, name: str, first: int, last: int) -> None:
    topic = after.topics.get(name)
    if topic is None:
        return
    for chunk in range(first // CHUNK_PARTITIONS, last // CHUNK_PARTITIONS + 1):
        key = _chunk_key(name, chunk)
        if writes.get(key) is not None:
            continue  # already written as it is after all the changes
        states = topic.partitions[chunk * CHUNK_PARTITIONS : (chunk + 1) * CHUNK_PARTITIONS]
        value = {"topic_id": str(topic.topic_id), "partitions": [state_to_json(state) for state in states]}
        writes[key] = to_json(value)


def _delete_topic(writes: Writes, before: MetadataImage, name: str) -> None:
    chunks = set()
    if TOPICS + name in writes:  # the same changes created it or added partitions
        chunks = {key for key in writes if key.rpartition("/")[0] == PARTITIONS + name}
    topic = before.topics.get(name)
    if topic is not None:
        chunks |= {_chunk_key(name, i) for i in range((len(topic.partitions) - 1) // CHUNK_PARTITIONS + 1)}
    for key in (TOPICS + name, *sorted(chunks)):
        writes.pop(key, None)  # the order must be that of a deletion, whatever the same changes wrote before
        writes[key] = None


def _read_topic(name: str, value: Mapping[str, Any], stored: Mapping[str, bytes]) -> TopicImage:
    states: list[PartitionState] = []
    for chunk in range((value["partitions"] - 1) // CHUNK_PARTITIONS + 1):
        content = json.loads(stored[_chunk_key(name, chunk)])
        if content["topic_id"] != value["topic_id"]:
            raise ValueError(f"the partitions of topic '{name}' in the coordination store have another topic's id")
        states += [state_from_json(state) for state in content["partitions"]]
    return TopicImage(name, UUID(value["topic_id"]), tuple(states[: value["partitions"]]))
