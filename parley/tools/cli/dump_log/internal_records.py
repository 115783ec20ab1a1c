"""Decode the records of internal topics to JSON, with Kafka's field names."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from parley.protocol.codec import decode_from
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages import stored
from parley.protocol.messages import stored_consumer_groups as consumer
from parley.protocol.messages import stored_share_groups as share
from parley.protocol.messages import stored_share_state as share_state
from parley.protocol.messages import stored_streams_groups as streams
from parley.protocol.records.record import Record
from parley.protocol.schema import Data, Struct
from parley.protocol.uuids import UUID

Texts = tuple[str | None, str | None]


def as_data(message: Struct, version: int, *, read_members: bool = True) -> dict[str, Any]:
    """Return the fields of a message in the given version, without tagged fields that are at their default.

    With ``read_members``, the subscriptions and assignments of group members are decoded as those of consumers.
    Otherwise they are base64, like all bytes.
    """
    fields = {}
    for one in type(message).fields():
        value = getattr(message, one.name)
        if version not in one.versions or (version in one.tagged and value == one.default()):
            continue
        first, *rest = one.name.rstrip("_").split("_")
        fields[first + "".join(word.capitalize() for word in rest)] = _json(value, version, read_members)
    return fields


def _json(value: Any, version: int, read_members: bool) -> Any:
    if isinstance(value, Struct):
        data = as_data(value, version, read_members=read_members)
        return _with_consumer_protocol(value, data) if read_members and isinstance(value, _MEMBER) else data
    if isinstance(value, list):
        return [_json(one, version, read_members) for one in value]
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


_MEMBER = stored.GroupMetadataValue.MemberMetadata


def _with_consumer_protocol(member: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Replace the member's subscription and assignment in ``data`` with their decoded forms, if they are those of a
    consumer."""
    kinds: dict[str, type[Data]] = {
        "subscription": stored.ConsumerProtocolSubscription,
        "assignment": stored.ConsumerProtocolAssignment,
    }
    for name, kind in kinds.items():
        raw = getattr(member, name)
        version = min(int.from_bytes(raw[:2], "big"), kind.VERSIONS.max)
        try:
            decoded, _ = decode_from(kind, version, raw, 2)
        except MalformedMessage:
            continue
        data[name] = as_data(decoded, version)
    return data


def _decoded(data: bytes | None, kinds: Mapping[int, type[Data]], tag: str) -> str | None:
    """Decode a key or value to JSON. The number that it begins with selects its type, and is stored under ``tag``.
    Returns None for null, and a text instead of JSON if the data is malformed."""
    if data is None:
        return None
    version = int.from_bytes(data[:2], "big", signed=True)
    kind = kinds.get(version)
    if len(data) < 2 or kind is None:
        return json.dumps({tag: str(version), "data": "unknown"}, separators=(",", ":"))
    try:
        message, _ = decode_from(kind, version, data, 2)
    except MalformedMessage as error:
        return f"malformed: {error}"
    whole = {tag: str(version), "data": as_data(message, version)}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


def _payload(value: bytes | None, kind: type[Data]) -> str | None:
    """Decode a value to JSON, or to a text that says why it is malformed. A tombstone (None) is shown as the text that
    Kafka's tool prints for it."""
    return "<DELETE>" if value is None else _decoded(value, _all_versions(kind), "version")


def _all_versions(kind: type[Data]) -> dict[int, type[Data]]:
    return dict.fromkeys(kind.VERSIONS, kind)


_OFFSET_KINDS: dict[int, tuple[type[Data], type[Data]]] = {
    0: (stored.OffsetCommitKey, stored.OffsetCommitValue),
    1: (stored.OffsetCommitKey, stored.OffsetCommitValue),
    2: (stored.GroupMetadataKey, stored.GroupMetadataValue),
    3: (consumer.ConsumerGroupMetadataKey, consumer.ConsumerGroupMetadataValue),
    4: (consumer.ConsumerGroupPartitionMetadataKey, consumer.ConsumerGroupPartitionMetadataValue),
    5: (consumer.ConsumerGroupMemberMetadataKey, consumer.ConsumerGroupMemberMetadataValue),
    6: (consumer.ConsumerGroupTargetAssignmentMetadataKey, consumer.ConsumerGroupTargetAssignmentMetadataValue),
    7: (consumer.ConsumerGroupTargetAssignmentMemberKey, consumer.ConsumerGroupTargetAssignmentMemberValue),
    8: (consumer.ConsumerGroupCurrentMemberAssignmentKey, consumer.ConsumerGroupCurrentMemberAssignmentValue),
    10: (share.ShareGroupMemberMetadataKey, share.ShareGroupMemberMetadataValue),
    11: (share.ShareGroupMetadataKey, share.ShareGroupMetadataValue),
    12: (share.ShareGroupTargetAssignmentMetadataKey, share.ShareGroupTargetAssignmentMetadataValue),
    13: (share.ShareGroupTargetAssignmentMemberKey, share.ShareGroupTargetAssignmentMemberValue),
    14: (share.ShareGroupCurrentMemberAssignmentKey, share.ShareGroupCurrentMemberAssignmentValue),
    15: (share.ShareGroupStatePartitionMetadataKey, share.ShareGroupStatePartitionMetadataValue),
    16: (consumer.ConsumerGroupRegularExpressionKey, consumer.ConsumerGroupRegularExpressionValue),
    17: (streams.StreamsGroupMetadataKey, streams.StreamsGroupMetadataValue),
    19: (streams.StreamsGroupMemberMetadataKey, streams.StreamsGroupMemberMetadataValue),
    20: (streams.StreamsGroupTargetAssignmentMetadataKey, streams.StreamsGroupTargetAssignmentMetadataValue),
    21: (streams.StreamsGroupTargetAssignmentMemberKey, streams.StreamsGroupTargetAssignmentMemberValue),
    22: (streams.StreamsGroupCurrentMemberAssignmentKey, streams.StreamsGroupCurrentMemberAssignmentValue),
    23: (streams.StreamsGroupTopologyKey, streams.StreamsGroupTopologyValue),
}
"""The types of keys and values in __consumer_offsets, by the number that keys begin with."""

_OFFSET_KEYS: dict[int, type[Data]] = {number: key for number, (key, _) in _OFFSET_KINDS.items()}


def _offsets(record: Record) -> Texts:
    """Decode a record of __consumer_offsets; the type of its key decides the type of its value."""
    kind = int.from_bytes((record.key or b"")[:2], "big")
    values = _OFFSET_KINDS.get(kind, _OFFSET_KINDS[0])[1]
    return _decoded(record.key, _OFFSET_KEYS, "type"), _payload(record.value, values)


def _transactions(record: Record) -> Texts:
    """Decode a record of __transaction_state."""
    key = _decoded(record.key, _all_versions(stored.TransactionLogKey), "type")
    return key, _payload(record.value, stored.TransactionLogValue)


_SHARE_STATE_KINDS: dict[int, tuple[type[Data], type[Data]]] = {
    0: (share_state.ShareSnapshotKey, share_state.ShareSnapshotValue),
    1: (share_state.ShareUpdateKey, share_state.ShareUpdateValue),
}
"""The types of keys and values in __share_group_state, by the number that keys begin with."""


def _share_state(record: Record) -> Texts:
    """Decode a record of __share_group_state; the type of its key decides the type of its value."""
    kind = int.from_bytes((record.key or b"")[:2], "big")
    values = _SHARE_STATE_KINDS.get(kind, _SHARE_STATE_KINDS[0])[1]
    keys = {number: key for number, (key, _) in _SHARE_STATE_KINDS.items()}
    return _decoded(record.key, keys, "type"), _payload(record.value, values)


DECODERS: dict[str, Callable[[Record], Texts]] = {
    "offsets": _offsets,
    "transactions": _transactions,
    "share_state": _share_state,
}
"""The decoders of internal topics, by the value of ``DumpOptions.decoder``."""


_KINDS: dict[tuple[str, int], tuple[type[Data], type[Data]]] = {
    ("__consumer_offsets", 0): (stored.OffsetCommitKey, stored.OffsetCommitValue),
    ("__consumer_offsets", 1): (stored.OffsetCommitKey, stored.OffsetCommitValue),
    ("__consumer_offsets", 2): (stored.GroupMetadataKey, stored.GroupMetadataValue),
    ("__transaction_state", 0): (stored.TransactionLogKey, stored.TransactionLogValue),
}
"""The key and value types of internal topics, by topic and the type number in the key."""


def record_data(topic: str, key: bytes | None, value: bytes | None, kinds: Sequence[int]) -> dict[str, Any] | None:
    """Decode a record as Kafka's console formatters do. Returns None if the type of its key is not in ``kinds``, and an
    ``error`` instead of the data if the record is malformed."""
    kind = int.from_bytes((key or b"")[:2], "big", signed=True) if len(key or b"") >= 2 else -1
    if key is None or kind not in kinds or (topic, kind) not in _KINDS:
        return None
    key_kind, value_kind = _KINDS[topic, kind]
    try:
        read_key, _ = decode_from(key_kind, kind, key, 2)
        shown: dict[str, Any] = {"key": {"type": kind, "data": as_data(read_key, kind)}, "value": None}
        if value is not None:
            version = int.from_bytes(value[:2], "big", signed=True)
            read_value, _ = decode_from(value_kind, min(version, value_kind.VERSIONS.max), value, 2)
            shown["value"] = {"version": version, "data": as_data(read_value, version, read_members=False)}
    except MalformedMessage as error:
        return {"error": f"malformed: {error}"}
    return shown
