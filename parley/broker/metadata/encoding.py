"""The values of the metadata as JSON, for the coordination store and for the messages between brokers.

JSON values are plain lists and dicts. Decoding raises ValueError, KeyError, TypeError or IndexError for any other
value; code that reads data from outside turns these into an error of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
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
from parley.broker.metadata.terms import NO_TERM, Term
from parley.broker.metadata.types import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    PartitionState,
    ResourceType,
    TopicImage,
)

_NO_RECOVERY: tuple[Any, ...] = ((), (), (), -1)
"""Defaults of the fields that the states in older stores do not have."""


def to_json(value: Any) -> bytes:
    """Encode a value compactly. Equal values give equal bytes."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def state_to_json(state: PartitionState) -> list[Any]:
    """Return a partition's state as a JSON value: a list that ends with the last field that has no default value."""
    value: list[Any] = [list(state.replicas), list(state.isr), state.leader, state.leader_epoch, state.partition_epoch]
    if state.elr or state.last_known_elr or state.directories or state.unclean_epoch >= 0:
        value += [list(state.adding), list(state.removing), list(state.elr), list(state.last_known_elr)]
        value += [[str(directory) for directory in state.directories], state.unclean_epoch]
    elif state.adding or state.removing:
        value += [list(state.adding), list(state.removing)]
    return value


def state_from_json(value: list[Any]) -> PartitionState:
    """The inverse of ``state_to_json``."""
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
    if registration.seen != NO_TERM:
        value["seen"] = list(registration.seen)
    return value


def registration_from_json(value: Mapping[str, Any]) -> BrokerRegistration:
    """The inverse of ``registration_to_json``."""
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
        seen=Term(*value.get("seen", NO_TERM)),
    )


def registration_to_bytes(registration: BrokerRegistration) -> bytes:
    """Encode a registration as a broker announces it to the group of brokers."""
    return to_json(registration_to_json(registration))


def registration_from_bytes(data: bytes) -> BrokerRegistration:
    """The inverse of ``registration_to_bytes``."""
    return registration_from_json(json.loads(data))


def changes_to_bytes(changes: Iterable[Change]) -> bytes:
    """Encode changes, in order, as the controller sends them to the other brokers."""
    return to_json([_from_change(change) for change in changes])


def changes_from_bytes(data: bytes | memoryview) -> tuple[Change, ...]:
    """The inverse of ``changes_to_bytes``. Raises ValueError if the bytes are not such an encoding."""
    try:
        return tuple(_to_change(*value) for value in json.loads(bytes(data)))
    except (KeyError, TypeError, IndexError) as wrong:
        raise ValueError(f"these bytes are not metadata changes: {wrong!r}") from wrong


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


def _to_change(kind: str, *value: Any) -> Change:
    match kind:
        case "partition":
            return PartitionChanged(value[0], value[1], state_from_json(value[2]))
        case "partitions":
            return PartitionsAdded(value[0], tuple(map(state_from_json, value[1])))
        case "topic":
            return TopicCreated(TopicImage(value[0], UUID(value[1]), tuple(map(state_from_json, value[2]))))
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
    raise ValueError(f"there is no metadata change of the kind {kind!r}")
