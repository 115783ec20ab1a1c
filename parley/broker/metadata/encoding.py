"""The values of the metadata as JSON, for the coordination store and for the messages between brokers.

JSON values are plain lists and dicts. Decoding a value of any other form raises ValueError, KeyError, TypeError,
IndexError or AttributeError. Code that decodes data from outside the broker converts these errors to an error of its
own interface.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
from parley.broker.metadata.feature_levels import FeatureLevels
from parley.broker.metadata.terms import NO_TERM, Term
from parley.broker.metadata.types import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)
from parley.broker.quotas.entities import CLIENT_ID, DEFAULT, IP, USER, QuotaEntity
from parley.broker.security.acls.stored import bucket_from_json, bucket_to_json
from parley.broker.security.delegation_tokens.delegation_token import DelegationToken
from parley.broker.security.principal import Principal
from parley.protocol.security.scram import ScramCredential
from parley.protocol.uuids import UUID

_NO_RECOVERY: tuple[Any, ...] = ((), (), (), -1)
"""Defaults of the fields that partition states in older stores lack."""
_USUAL_FIELDS = 5
"""The number of fields that are encoded for most partition states: the remaining fields have their defaults."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)
"""One encoder for all values: ``json.dumps`` creates one for each call, which takes longer than encoding a small
value."""


def to_json(value: Any) -> bytes:
    """Encode a value compactly. Equal values give equal bytes."""
    return _ENCODER.encode(value).encode()


def state_to_json(state: PartitionState) -> list[Any]:
    """Return a partition's state as a JSON value: a list, without the last fields if all of them have their
    defaults."""
    value: list[Any] = [list(state.replicas), list(state.isr), state.leader, state.leader_epoch, state.partition_epoch]
    if state.elr or state.last_known_elr or state.directories or state.unclean_epoch >= 0:
        value += [list(state.adding), list(state.removing), list(state.elr), list(state.last_known_elr)]
        value += [[str(directory) for directory in state.directories], state.unclean_epoch]
    elif state.adding or state.removing:
        value += [list(state.adding), list(state.removing)]
    return value


def state_from_json(value: list[Any]) -> PartitionState:
    """Return the partition's state that ``state_to_json`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``value`` has another form.
    """
    replicas, isr, leader, leader_epoch, partition_epoch, *more = value
    if not more:
        return PartitionState(tuple(replicas), tuple(isr), leader, leader_epoch, partition_epoch)
    adding, removing, elr, last_known_elr, directories, unclean_epoch = [*more, *_NO_RECOVERY[len(more) - 2 :]]
    return PartitionState(
        tuple(replicas),
        tuple(isr),
        leader,
        leader_epoch,
        partition_epoch,
        tuple(adding),
        tuple(removing),
        tuple(elr),
        tuple(last_known_elr),
        tuple(map(UUID, directories)),
        unclean_epoch,
    )


def states_from_json(values: Iterable[list[Any]]) -> Iterator[PartitionState]:
    """Yield the partition states that ``state_to_json`` encoded. Raises the errors of ``state_from_json``.

    Equal states share one object, which saves memory and time.
    """
    known: dict[tuple[Any, ...], PartitionState] = {}
    for value in values:
        if len(value) > _USUAL_FIELDS:
            yield state_from_json(value)
            continue
        replicas, isr, *numbers = value
        key = (tuple(replicas), tuple(isr), *numbers)
        state = known.get(key)
        if state is None:
            state = known[key] = state_from_json(value)
        yield state


def registration_to_json(registration: BrokerRegistration) -> dict[str, Any]:
    """Return a broker's registration as a JSON value."""
    value: dict[str, Any] = {
        "broker_id": registration.broker_id,
        "epoch": registration.epoch,
        "incarnation_id": str(registration.incarnation_id),
        "endpoints": [[e.listener, e.security_protocol, e.host, e.port] for e in registration.endpoints],
        "rack": registration.rack,
        "fenced": registration.fenced,
        "features": {name: list(levels) for name, levels in registration.features.items()},
    }
    if registration.previous_epoch >= 0:
        value["previous_epoch"] = registration.previous_epoch
    if registration.kept_epoch >= 0:
        value["kept_epoch"] = registration.kept_epoch
    if registration.log_dirs:
        value["log_dirs"] = [str(directory) for directory in registration.log_dirs]
    if registration.inter_broker_listener:
        value["inter_broker_listener"] = registration.inter_broker_listener
    if registration.seen != NO_TERM:
        value["seen"] = list(registration.seen)
    if registration.seen_leader_epoch >= 0:
        value["seen_leader_epoch"] = registration.seen_leader_epoch
    if registration.host_label:
        value["host_label"] = registration.host_label
    return value


def registration_from_json(value: Mapping[str, Any]) -> BrokerRegistration:
    """Return the registration that ``registration_to_json`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``value`` has another form.
    """
    return BrokerRegistration(
        broker_id=value["broker_id"],
        epoch=value["epoch"],
        incarnation_id=UUID(value["incarnation_id"]),
        endpoints=tuple(Endpoint(*endpoint) for endpoint in value["endpoints"]),
        rack=value["rack"],
        fenced=value["fenced"],
        features={name: (levels[0], levels[1]) for name, levels in value["features"].items()},
        previous_epoch=value.get("previous_epoch", -1),
        kept_epoch=value.get("kept_epoch", -1),
        log_dirs=tuple(map(UUID, value.get("log_dirs", ()))),
        inter_broker_listener=value.get("inter_broker_listener", ""),
        seen=Term(*value.get("seen", NO_TERM)),
        seen_leader_epoch=value.get("seen_leader_epoch", -1),
        host_label=value.get("host_label", ""),
    )


def scram_to_json(credentials: Mapping[str, ScramCredential]) -> dict[str, Any]:
    """Return a user's SCRAM credentials, by mechanism, as a JSON value."""
    return {
        mechanism: [
            credential.iterations,
            *(b64encode(each).decode() for each in (credential.salt, credential.stored_key, credential.server_key)),
        ]
        for mechanism, credential in credentials.items()
    }


def scram_from_json(value: Mapping[str, Any]) -> dict[str, ScramCredential]:
    """Return the SCRAM credentials, by mechanism, that ``scram_to_json`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``value`` has another form.
    """
    found = {}
    for mechanism, (iterations, *encoded) in value.items():
        salt, stored_key, server_key = (b64decode(each, validate=True) for each in encoded)
        found[mechanism] = ScramCredential(salt, iterations, stored_key, server_key)
    return found


def token_to_json(token: DelegationToken) -> dict[str, Any]:
    """Return a delegation token as a JSON value. It does not contain the token's secret."""
    return {
        "token_id": token.token_id,
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": [str(renewer) for renewer in token.renewers],
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
    }


def token_from_json(value: Mapping[str, Any]) -> DelegationToken:
    """Return the delegation token that ``token_to_json`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``value`` has another form.
    """
    return DelegationToken(
        token_id=value["token_id"],
        owner=Principal.parse(value["owner"]),
        requester=Principal.parse(value["requester"]),
        renewers=tuple(map(Principal.parse, value["renewers"])),
        issued_ms=value["issued_ms"],
        expires_ms=value["expires_ms"],
        max_ms=value["max_ms"],
    )


def quotas_to_json(entity: QuotaEntity, quotas: Mapping[str, float]) -> dict[str, Any]:
    """Return the quotas of an entity as a JSON value. The name of a default is null, as in Kafka's protocol."""
    return {"entity": {kind: name or None for kind, name in entity.parts().items()}, "quotas": dict(quotas)}


def quotas_from_json(value: Mapping[str, Any]) -> tuple[QuotaEntity, dict[str, float]]:
    """Return the entity and the quotas that ``quotas_to_json`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``value`` has another form.
    """
    names = {kind: name or DEFAULT for kind, name in value["entity"].items()}
    entity = QuotaEntity(names.get(USER), names.get(CLIENT_ID), names.get(IP))
    return entity, {key: float(rate) for key, rate in value["quotas"].items()}


def levels_to_json(levels: FeatureLevels) -> dict[str, Any]:
    """Return the levels of features as a JSON value."""
    return {"epoch": levels.epoch, "levels": dict(levels.chosen)}


def levels_from_json(value: Mapping[str, Any]) -> FeatureLevels:
    """Return the feature levels that ``levels_to_json`` encoded. Raises KeyError or TypeError if ``value`` has another
    form."""
    return FeatureLevels(value["epoch"], value["levels"])


def registration_to_bytes(registration: BrokerRegistration) -> bytes:
    """Encode a registration in the form in which a broker announces it to the group of brokers."""
    return to_json(registration_to_json(registration))


def registration_from_bytes(data: bytes) -> BrokerRegistration:
    """Return the registration that ``registration_to_bytes`` encoded.

    Raises ValueError, KeyError, TypeError, IndexError or AttributeError if ``data`` is not such an encoding.
    """
    return registration_from_json(json.loads(data))


def changes_to_bytes(changes: Iterable[Change]) -> bytes:
    """Encode changes, in order, in the form in which the controller sends them to the other brokers."""
    return to_json([_from_change(change) for change in changes])


def changes_from_bytes(data: bytes | memoryview) -> tuple[Change, ...]:
    """Return the changes that ``changes_to_bytes`` encoded. Raises ValueError if the bytes are not such an encoding."""
    try:
        return tuple(_to_change(*value) for value in json.loads(bytes(data)))
    except (KeyError, TypeError, IndexError, AttributeError) as wrong:
        raise ValueError(f"malformed metadata changes: {wrong!r}") from wrong


def _from_change(change: Change) -> list[Any]:
    match change:
        case PartitionChanged(topic, partition, state):
            return ["partition", topic, partition, state_to_json(state)]
        case PartitionsAdded(topic, states):
            return ["partitions", topic, [state_to_json(state) for state in states]]
        case TopicCreated(created):
            states = created.partitions
            return ["topic", created.name, str(created.topic_id), [state_to_json(state) for state in states]]
        case TopicDeleted(name, topic_id):
            return ["no topic", name, str(topic_id)]
        case DeletedTopicsReplaced(topic_ids):
            return ["deleted topics", [str(topic_id) for topic_id in topic_ids]]
        case ConfigReplaced(resource, entries):
            return ["config", resource.type.value, resource.name, dict(entries)]
        case BrokerRegistered(registration):
            return ["broker", registration_to_json(registration)]
        case BrokerUnregistered(broker_id):
            return ["no broker", broker_id]
        case ControllerElected(controller_id, epoch):
            return ["controller", controller_id, epoch]
        case AclBucketReplaced(number, bucket):
            return ["acls", number, bucket_to_json(bucket)]
        case ScramUserReplaced(user, credentials):
            return ["scram", user, scram_to_json(credentials)]
        case DelegationTokenReplaced(token_id, token):
            return ["token", token_id, None if token is None else token_to_json(token)]
        case ClientQuotasReplaced(entity, quotas):
            return ["quotas", quotas_to_json(entity, quotas)]
        case FeatureLevelsReplaced(levels):
            return ["features", levels_to_json(levels)]
        case ClusterSecretSet(name, value):
            return ["secret", name, b64encode(value).decode()]


def _to_change(kind: str, *value: Any) -> Change:
    match kind:
        case "partition":
            return PartitionChanged(value[0], value[1], state_from_json(value[2]))
        case "partitions":
            return PartitionsAdded(value[0], tuple(states_from_json(value[1])))
        case "topic":
            return TopicCreated(TopicImage(value[0], UUID(value[1]), tuple(states_from_json(value[2]))))
        case "no topic":
            return TopicDeleted(value[0], UUID(value[1]))
        case "deleted topics":
            return DeletedTopicsReplaced(tuple(map(UUID, value[0])))
        case "config":
            return ConfigReplaced(ConfigResource(ResourceType(value[0]), value[1]), value[2])
        case "broker":
            return BrokerRegistered(registration_from_json(value[0]))
        case "no broker":
            return BrokerUnregistered(value[0])
        case "controller":
            return ControllerElected(value[0], value[1])
        case "acls":
            return AclBucketReplaced(value[0], bucket_from_json(value[1]))
        case "scram":
            return ScramUserReplaced(value[0], scram_from_json(value[1]))
        case "token":
            return DelegationTokenReplaced(value[0], None if value[1] is None else token_from_json(value[1]))
        case "quotas":
            return ClientQuotasReplaced(*quotas_from_json(value[0]))
        case "features":
            return FeatureLevelsReplaced(levels_from_json(value[0]))
        case "secret":
            return ClusterSecretSet(value[0], b64decode(value[1], validate=True))
    raise ValueError(f"unknown kind of metadata change: {kind!r}")
