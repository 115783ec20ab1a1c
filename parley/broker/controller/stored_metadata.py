"""The form of metadata in the coordination store: the keys, and values as readable JSON.

::

    cluster                      {"cluster_id": ...}
    brokers/<id>                 a registration, with its epoch and whether it is fenced
    topics/<name>                {"topic_id": ..., "partitions": count}
    partitions/<name>/<chunk>    {"topic_id": ..., "partitions": [...]}    100 partitions per chunk
    configs/<type>/<name>        {"key": "value", ...}
    configs/requires/<kind>      {}      a kind of metadata that a controller must be able to read (see ``REQUIRED``)
    acls/<bucket>                [[type, pattern type, name, principal, host, operation, permission], ...]
    scram/<user>                 {"user": ..., "credentials": {mechanism: [iterations, salt, stored key, server key]}}
    delegation-tokens/<id>       a token without its secret
    client-quotas/<entity>       {"entity": {"user": name or null, ...}, "quotas": {"key": rate, ...}}
    features/levels              {"epoch": ..., "levels": {feature: level, ...}}
    secrets/<name>               a secret that all brokers share, as base64
    deleted-topics/ids           [topic id, ...]      the topics deleted last, oldest first
    terms                        [[epoch, controller, version], ...]   see ``parley.broker.metadata.terms``

The key of a topic is written after its chunks and deleted before them, and each chunk contains the topic's id. If a
change is too large for one transaction and is interrupted, the chunks left over belong to no topic and are ignored.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

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
    FeatureLevelsReplaced,
    PartitionChanged,
    PartitionsAdded,
    ScramUserReplaced,
    TopicCreated,
    TopicDeleted,
)
from parley.broker.metadata.encoding import (
    levels_from_json,
    levels_to_json,
    quotas_from_json,
    quotas_to_json,
    registration_from_json,
    registration_to_json,
    scram_from_json,
    scram_to_json,
    state_to_json,
    states_from_json,
    to_json,
    token_from_json,
    token_to_json,
)
from parley.broker.metadata.feature_levels import DEFAULT_LEVELS, TRANSACTION_VERSION
from parley.broker.metadata.feature_support import QUOTAS, SECURITY, features_in_use
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, ResourceType, TopicImage
from parley.broker.quotas.entities import QuotaEntity
from parley.broker.security.acls.stored import bucket_from_json, bucket_to_json
from parley.protocol.security.scram import ScramCredential
from parley.protocol.uuids import UUID

CHUNK_PARTITIONS = 100
CLUSTER, BROKERS, TOPICS, PARTITIONS, CONFIGS = "cluster", "brokers/", "topics/", "partitions/", "configs/"
DELETED_TOPICS = "deleted-topics/"
ACLS, SCRAM, DELEGATION_TOKENS, SECRETS = "acls/", "scram/", "delegation-tokens/", "secrets/"
CLIENT_QUOTAS = "client-quotas/"
FEATURES = "features/"
TERMS = "terms"
PREFIXES = (
    BROKERS,
    TOPICS,
    PARTITIONS,
    CONFIGS,
    DELETED_TOPICS,
    ACLS,
    SCRAM,
    DELEGATION_TOKENS,
    CLIENT_QUOTAS,
    FEATURES,
    SECRETS,
)
REQUIRED = f"{CONFIGS}requires/"
"""The prefix of keys that name the kinds of metadata that a controller must be able to read.

A controller that does not know this prefix treats such a key as the configuration of an unknown type of resource, so it
fails to load the metadata. This keeps a broker that is too old for ACLs from becoming the controller and publishing
metadata without them.
"""
_REQUIREMENTS = {
    SECURITY: f"{REQUIRED}security",
    QUOTAS: f"{REQUIRED}client-quotas",
    TRANSACTION_VERSION: f"{REQUIRED}feature-levels",
}
NAME_MAX = 200
"""The maximum length of the encoded name of a user or entity in a key. Some stores limit the length of keys."""
_DELETED_TOPICS_KEY = f"{DELETED_TOPICS}ids"
_LEVELS_KEY = f"{FEATURES}levels"

Writes = dict[str, bytes | None]
"""The new value of each key, or None to delete the key, in the order in which they must be written."""


def writes_for(changes: Iterable[Change], after: MetadataImage, before: MetadataImage) -> Writes:
    """Return the writes for ``changes``, which lead from the image ``before`` to the image ``after``."""
    writes: Writes = {}
    for feature in sorted(features_in_use(after) - features_in_use(before)):
        writes[_REQUIREMENTS[feature]] = b"{}"
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
                writes.pop(key, None)  # it must be written after the partitions (see fence_broker)
                writes[key] = to_json(registration_to_json(registration))
            case BrokerUnregistered(broker_id):
                writes[f"{BROKERS}{broker_id:010d}"] = None
            case ControllerElected():
                pass  # the election stores the controller and its epoch
            case AclBucketReplaced(number, bucket):
                writes[f"{ACLS}{number:04d}"] = to_json(bucket_to_json(bucket)) if bucket else None
            case ScramUserReplaced(user, credentials):
                writes[scram_key(user)] = scram_value(user, credentials) if credentials else None
            case DelegationTokenReplaced(token_id, token):
                writes[DELEGATION_TOKENS + token_id] = None if token is None else to_json(token_to_json(token))
            case ClientQuotasReplaced(entity, quotas):
                writes[quotas_key(entity)] = to_json(quotas_to_json(entity, quotas)) if quotas else None
            case FeatureLevelsReplaced(levels):
                writes[_LEVELS_KEY] = to_json(levels_to_json(levels))
            case ClusterSecretSet(name, secret):
                writes[SECRETS + name] = b64encode(secret)
    return writes


class UnreadableMetadata(ValueError):
    """Raised if this version cannot read the store's metadata, which is damaged or was written by a newer version."""


def read_image(cluster_id: str, stored: Mapping[str, bytes]) -> MetadataImage:
    """Return the image that the store's entries describe. ``stored`` contains all keys below ``PREFIXES``.

    Raises UnreadableMetadata if an entry is damaged, missing, or of a newer version of Parley.
    """
    try:
        return _read_image(cluster_id, stored)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        damaged = [key for key, value in stored.items() if not key.startswith(SECRETS) and not _is_json(value)]
        where = f" in {', '.join(damaged)}" if damaged else ""
        raise UnreadableMetadata(f"{error if type(error) is ValueError else repr(error)}{where}") from error


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value)
    except ValueError:
        return False
    return True


def _read_image(cluster_id: str, stored: Mapping[str, bytes]) -> MetadataImage:
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
            if key.startswith(REQUIRED):
                _check_requirement(name)
                continue
            configs[ConfigResource(ResourceType[kind.upper()], _name_of(name))] = json.loads(value)
    return MetadataImage(
        cluster_id=cluster_id,
        brokers=brokers,
        topics=topics,
        topic_names={topic.topic_id: topic.name for topic in topics.values()},
        configs=configs,
        acls={
            int(key.removeprefix(ACLS)): bucket_from_json(json.loads(value))
            for key, value in stored.items()
            if key.startswith(ACLS)
        },
        scram_users=dict(scram_user(value) for key, value in stored.items() if key.startswith(SCRAM)),
        delegation_tokens={
            token.token_id: token
            for token in (
                token_from_json(json.loads(value)) for key, value in stored.items() if key.startswith(DELEGATION_TOKENS)
            )
        },
        client_quotas=dict(
            quotas_from_json(json.loads(value)) for key, value in stored.items() if key.startswith(CLIENT_QUOTAS)
        ),
        features=levels_from_json(json.loads(stored[_LEVELS_KEY])) if _LEVELS_KEY in stored else DEFAULT_LEVELS,
        secrets={
            key.removeprefix(SECRETS): b64decode(value) for key, value in stored.items() if key.startswith(SECRETS)
        },
        deleted_topics=tuple(map(UUID, json.loads(stored.get(_DELETED_TOPICS_KEY, b"[]")))),
    )


def _check_requirement(name: str) -> None:
    if f"{REQUIRED}{name}" not in _REQUIREMENTS.values():
        raise ValueError(
            f"the coordination store contains metadata ({name}) of a newer Parley version: upgrade this broker"
        )


def scram_key(user: str) -> str:
    """Return the store's key for a user's SCRAM credentials."""
    return SCRAM + _short(quote(user, safe=""), user)


def quotas_key(entity: QuotaEntity) -> str:
    """Return the store's key for an entity's quotas."""
    name = ",".join(f"{kind}={quote(name, safe='')}" for kind, name in entity.parts().items())
    return CLIENT_QUOTAS + _short(name, name)


def _short(encoded: str, name: str) -> str:
    """Return the last segment of a key: the encoded name, or a hash of the name if the encoded name is too long."""
    return encoded if len(encoded) <= NAME_MAX else f"={sha256(name.encode()).hexdigest()}"


def scram_value(user: str, credentials: Mapping[str, ScramCredential]) -> bytes:
    """Encode a user's SCRAM credentials for the store."""
    return to_json({"user": user, "credentials": scram_to_json(credentials)})


def scram_user(value: bytes) -> tuple[str, dict[str, ScramCredential]]:
    """Return the user and the SCRAM credentials, by mechanism, that ``scram_value`` encoded."""
    stored = json.loads(value)
    return stored["user"], scram_from_json(stored["credentials"])


def _write_deleted_topics(writes: Writes, after: MetadataImage) -> None:
    writes.pop(_DELETED_TOPICS_KEY, None)  # it must be written after the deletions, as evidence of them
    writes[_DELETED_TOPICS_KEY] = to_json([str(topic_id) for topic_id in after.deleted_topics])


def _chunk_key(topic: str, chunk: int) -> str:
    return f"{PARTITIONS}{topic}/{chunk:05d}"


def _config_key(resource: ConfigResource) -> str:
    # A key may not end in a slash, so the empty name of the default of all brokers is written as "=".
    return f"{CONFIGS}{resource.type.name.lower()}/{quote(resource.name, safe='') or '='}"


def _name_of(stored: str) -> str:
    return "" if stored == "=" else unquote(stored)


def _write_topic(writes: Writes, after: MetadataImage, name: str) -> None:
    topic = after.topics.get(name)
    if topic is not None:
        key = TOPICS + name
        writes.pop(key, None)  # it must be written after the chunks
        writes[key] = to_json({"topic_id": str(topic.topic_id), "partitions": len(topic.partitions)})


def _write_chunks(writes: Writes, after: MetadataImage, name: str, first: int, last: int) -> None:
    topic = after.topics.get(name)
    if topic is None:
        return
    for chunk in range(first // CHUNK_PARTITIONS, last // CHUNK_PARTITIONS + 1):
        key = _chunk_key(name, chunk)
        if writes.get(key) is not None:
            continue  # already written in its final state
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
        writes.pop(key, None)  # deletions need their own order, regardless of earlier writes
        writes[key] = None


def _read_topic(name: str, value: Mapping[str, Any], stored: Mapping[str, bytes]) -> TopicImage:
    values: list[list[Any]] = []
    for chunk in range((value["partitions"] - 1) // CHUNK_PARTITIONS + 1):
        content = json.loads(stored[_chunk_key(name, chunk)])
        if content["topic_id"] != value["topic_id"]:
            raise ValueError(f"the partitions of topic '{name}' in the coordination store belong to another topic id")
        values += content["partitions"]
    return TopicImage(name, UUID(value["topic_id"]), tuple(states_from_json(values[: value["partitions"]])))
