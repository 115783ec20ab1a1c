"""Reads and changes the offsets of connectors, for the REST API (KIP-875)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from parley.pipeline.client.cluster import Cluster
from parley.pipeline.client.fetching import TopicPartition
from parley.pipeline.connect import groups
from parley.pipeline.connect.connector import SinkConnector, SourceConnector
from parley.pipeline.connect.errors import ConnectError
from parley.pipeline.connect.herder_results import BadRequest, HerderError
from parley.pipeline.connect.offset_stores import OffsetStore, SourceOffset
from parley.protocol.errors import KafkaError

TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
_LARGEST: Final = {"partition": 2**31 - 1, "offset": 2**63 - 1}


def sink_offsets(cluster: Cluster, connector: str, config: Mapping[str, str]) -> list[SourceOffset]:
    """Return the offsets of a sink's group, as pairs of partition and offset in the JSON of the REST API. Raises
    ConnectError if they cannot be read.
    """
    try:
        found = groups.committed(cluster, groups.group_of(connector, config))
    except KafkaError as error:
        raise ConnectError(f"The offsets of connector {connector} are unknown: {error.message}") from error
    return [({TOPIC: tp.topic, PARTITION: tp.partition}, {OFFSET: offset}) for tp, offset in sorted(found.items())]


def alter_sink_offsets(
    cluster: Cluster,
    connector: SinkConnector,
    name: str,
    config: Mapping[str, str],
    offsets: Sequence[SourceOffset] | None,
) -> str:
    """Commit these offsets of a sink's group; delete those that are None. If ``offsets`` itself is None, delete all.
    Returns the message for the user.

    Raises BadRequest for invalid offsets or if the connector rejects them, and HerderError if the change fails.
    """
    group = groups.group_of(name, config)
    try:
        known = groups.committed(cluster, group)
        wanted = dict.fromkeys(known) if offsets is None else dict(_sink_offset(*one) for one in offsets)
        was_looked_at = _ask(connector, name, config, wanted)
        groups.commit(cluster, group, {tp: offset for tp, offset in wanted.items() if offset is not None})
        groups.forget(cluster, group, [tp for tp, offset in wanted.items() if offset is None and tp in known])
    except KafkaError as error:
        raise HerderError(
            f"Failed to alter consumer group offsets for connector {name}: {error.message} (are its tasks stopped?)"
        ) from error
    return _success("reset" if offsets is None else "altered", was_looked_at)


def alter_source_offsets(
    store: OffsetStore,
    connector: SourceConnector,
    name: str,
    config: Mapping[str, str],
    offsets: Sequence[SourceOffset] | None,
) -> str:
    """Store these offsets of a source; delete those that are None. If ``offsets`` itself is None, delete all. Returns
    the message for the user.

    Raises BadRequest if the connector rejects the offsets, and HerderError if they cannot be read or stored.
    """
    try:
        wanted = [(partition, None) for partition, _ in store.all(name)] if offsets is None else list(offsets)
        was_looked_at = _ask(connector, name, config, {str(at): one for at, one in enumerate(wanted)})
        store.store(name, wanted)
    except ConnectError as error:
        raise HerderError(f"Failed to alter offsets for connector {name}: {error}") from error
    return _success("reset" if offsets is None else "altered", was_looked_at)


def _ask(connector: Any, name: str, config: Mapping[str, str], wanted: Mapping[Any, Any]) -> bool:
    try:
        return bool(connector.alter_offsets(config, wanted))
    except ConnectError as error:
        raise BadRequest(str(error)) from error
    except Exception as error:
        raise HerderError(f"Failed to alter offsets for connector {name}: {error}") from error


def _success(what: str, was_looked_at: bool) -> str:
    if was_looked_at:
        return f"The offsets for this connector have been {what} successfully"
    return (
        f"The Connect framework-managed offsets for this connector have been {what} successfully. However, if this "
        f"connector manages offsets externally, they will need to be manually {what} in the system that the connector "
        "uses."
    )


def _sink_offset(partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> tuple[TopicPartition, int | None]:
    """Parse a topic's partition and offset from JSON. A null offset becomes None. Raises BadRequest."""
    if not isinstance(partition, Mapping) or TOPIC not in partition or PARTITION not in partition:
        raise BadRequest(f"The partition for a sink connector offset must contain the keys '{TOPIC}' and '{PARTITION}'")
    topic = partition[TOPIC]
    if not isinstance(topic, str) or not topic:
        raise BadRequest("Kafka topic names must be valid strings and may not be null")
    if partition[PARTITION] is None:
        raise BadRequest("Kafka partitions must be valid numbers and may not be null")
    number = _integer(partition[PARTITION], "partition")
    if offset is None:
        return TopicPartition(topic, number), None
    if not isinstance(offset, Mapping) or OFFSET not in offset:
        raise BadRequest(f"The offset for a sink connector should either be null or contain the key '{OFFSET}'")
    return TopicPartition(topic, number), _integer(offset[OFFSET], "offset")


def _integer(given: Any, what: str) -> int:
    """Return an integer, from a number or a string. Raises BadRequest."""
    try:
        if isinstance(given, bool | float):
            raise ValueError
        number = int(given)
    except (TypeError, ValueError):
        shown = "null" if given is None else given
        raise BadRequest(
            f"Failed to parse the following Kafka {what} value in the provided offsets: '{shown}'. "
            f"{what.capitalize()} values for sink connectors need to be integers."
        ) from None
    if not 0 <= number <= _LARGEST[what]:
        raise BadRequest(f"Kafka {what}s must be integers from 0 to {_LARGEST[what]}, not {number}")
    return number
