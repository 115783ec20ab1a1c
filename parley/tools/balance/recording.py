"""Recorded clusters: a ``Cluster`` as JSON, for planning without a connection to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from parley.tools.balance.cluster import Broker, Cluster, Partition

VERSION: Final = 1


def as_data(cluster: Cluster) -> dict[str, object]:
    """Return the cluster as JSON data."""
    return {
        "version": VERSION,
        "brokers": [asdict(broker) for broker in cluster.brokers],
        "partitions": [{**asdict(one), "replicas": list(one.replicas)} for one in cluster.partitions],
    }


def from_data(data: object) -> Cluster:
    """Return the cluster that ``as_data`` recorded. Raises ValueError if the data is invalid."""
    if not isinstance(data, Mapping) or data.get("version") != VERSION:
        raise ValueError(f"not a recorded cluster of version {VERSION}")
    brokers = [_broker(each) for each in _objects(data, "brokers")]
    partitions = [_partition(each) for each in _objects(data, "partitions")]
    if len({broker.id for broker in brokers}) < len(brokers):
        raise ValueError("duplicate broker")
    if len({(one.topic, one.index) for one in partitions}) < len(partitions):
        raise ValueError("duplicate partition")
    return Cluster(
        tuple(sorted(brokers, key=lambda one: one.id)),
        tuple(sorted(partitions, key=lambda one: (one.topic, one.index))),
    )


def _objects(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = data.get(name)
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f'missing list of objects "{name}"')
    return found


def _broker(data: Mapping[str, Any]) -> Broker:
    disk, free = (None if data.get(name) is None else _number(data, name) for name in ("disk", "free"))
    return Broker(_number(data, "id"), _name(data, "rack"), disk, free, _name(data, "host"))


def _name(data: Mapping[str, Any], of: str) -> str | None:
    found = data.get(of)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"the {of} of a broker is not a string")
    return found


def _partition(data: Mapping[str, Any]) -> Partition:
    topic, replicas = data.get("topic"), data.get("replicas")
    if not isinstance(topic, str):
        raise ValueError("a partition has no topic")
    if not isinstance(replicas, list) or not replicas or not all(type(each) is int for each in replicas):
        raise ValueError(f"a partition of {topic} has no replicas")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"a partition of {topic} has two replicas on one broker")
    return Partition(
        topic,
        _number(data, "index"),
        tuple(replicas),
        _number(data, "leader", -1),
        _number(data, "size"),
        _number(data, "bytes_in"),
        _number(data, "bytes_out"),
        data.get("is_moving") is True,
    )


def _number(data: Mapping[str, Any], name: str, least: int = 0) -> int:
    found = data.get(name)
    if type(found) is not int or not least <= found < 1 << 63:
        raise ValueError(f'"{name}" must be a whole number of {least} or more, not {found!r:.40}')
    return found
