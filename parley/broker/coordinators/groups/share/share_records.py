"""The records of share groups in ``__consumer_offsets``, in Kafka's formats.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
10                     group, member                                      a member and its subscription
11                     group                                              group epoch, hash of its topics
12                     group                                              epoch of the target assignment
13                     group, member                                      a member's target assignment
14                     group, member                                      a member's epochs and partitions
15                     group                                              the stored share partitions
=====================  =================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.share.share_group import (
    FIRST_EPOCH,
    NOTHING_STORED,
    Assignment,
    ShareGroup,
    ShareMember,
    Stored,
    TopicPartitions,
)
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.messages.stored_share_groups import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)
from parley.protocol.uuids import UUID

MEMBER, GROUP, TARGET_EPOCH, TARGET, CURRENT, STORED = 10, 11, 12, 13, 14, 15
"""The kinds of records, as in the first two bytes of their keys."""

_VALUE_VERSION: Final = 0
_STABLE: Final = 0
"""The number that is stored as the state of a member. Members of share groups have no other state."""


# --- Writing ---


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KeyValue:
    """Return the record of a group's epoch."""
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return _group_key(group_id), encode_stored(value, _VALUE_VERSION)


def member_record(group_id: str, member: ShareMember) -> KeyValue:
    """Return the record of a member's subscription."""
    value = ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
    )
    return _member_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def target_epoch_record(group_id: str, epoch: int, since_ms: int) -> KeyValue:
    """Return the record of the epoch of a target assignment, which was computed at the time ``since_ms``."""
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=since_ms)
    return _target_epoch_key(group_id), encode_stored(value, _VALUE_VERSION)


def target_record(group_id: str, member_id: str, target: Assignment) -> KeyValue:
    """Return the record of a member's target assignment."""
    kind = ShareGroupTargetAssignmentMemberValue
    value = kind(
        topic_partitions=[
            kind.TopicPartition(topic_id=topic, partitions=sorted(partitions)) for topic, partitions in target.items()
        ]
    )
    return _target_key(group_id, member_id), encode_stored(value, _VALUE_VERSION)


def current_record(group_id: str, member: ShareMember) -> KeyValue:
    """Return the record of a member's epochs and partitions."""
    kind = ShareGroupCurrentMemberAssignmentValue
    value = kind(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=_STABLE,
        assigned_partitions=[
            kind.TopicPartitions(topic_id=topic, partitions=sorted(partitions))
            for topic, partitions in member.assigned.items()
        ],
    )
    return _current_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def stored_record(group_id: str, stored: Stored) -> KeyValue:
    """Return the record of the stored share partitions."""
    kind = ShareGroupStatePartitionMetadataValue
    value = kind(
        initializing_topics=_infos(stored.initializing),
        initialized_topics=_infos(stored.initialized),
        deleting_topics=[
            kind.TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in stored.deleting.items()
        ],
    )
    return _stored_key(group_id), encode_stored(value, _VALUE_VERSION)


def _infos(
    topics: Mapping[UUID, TopicPartitions],
) -> list[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo]:
    make = ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo
    return [
        make(topic_id=topic_id, topic_name=each.name, partitions=sorted(each.partitions))
        for topic_id, each in topics.items()
    ]


def member_tombstones(group_id: str, member_id: str) -> list[KeyValue]:
    """Return the records that delete a member, in Kafka's order."""
    return [
        (_current_key(group_id, member_id), None),
        (_target_key(group_id, member_id), None),
        (_member_key(group_id, member_id), None),
    ]


def group_tombstones(group: ShareGroup) -> list[KeyValue]:
    """Return the records that delete a group, in Kafka's order: its members first."""
    group_id = group.group_id
    records: list[KeyValue] = [(_current_key(group_id, member_id), None) for member_id in group.members]
    records += [(_target_key(group_id, member_id), None) for member_id in group.targets]
    records.append((_target_epoch_key(group_id), None))
    records += [(_member_key(group_id, member_id), None) for member_id in group.members]
    if group.has_stored_record:
        records.append((_stored_key(group_id), None))
    return [*records, (_group_key(group_id), None)]


def _group_key(group_id: str) -> bytes:
    return encode_stored(ShareGroupMetadataKey(group_id=group_id), GROUP)


def _member_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), MEMBER)


def _target_epoch_key(group_id: str) -> bytes:
    return encode_stored(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), TARGET_EPOCH)


def _target_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), TARGET)


def _current_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), CURRENT)


def _stored_key(group_id: str) -> bytes:
    return encode_stored(ShareGroupStatePartitionMetadataKey(group_id=group_id), STORED)


# --- Reading ---

_KEYS: Final[dict[int, Any]] = {
    MEMBER: ShareGroupMemberMetadataKey,
    GROUP: ShareGroupMetadataKey,
    TARGET_EPOCH: ShareGroupTargetAssignmentMetadataKey,
    TARGET: ShareGroupTargetAssignmentMemberKey,
    CURRENT: ShareGroupCurrentMemberAssignmentKey,
    STORED: ShareGroupStatePartitionMetadataKey,
}

Change = Callable[[ShareGroup], None]


def is_of_share_group(kind: int) -> bool:
    """Return True if keys of this kind belong to records of share groups."""
    return kind in _KEYS


def decode_change(kind: int, key: bytes, value: bytes | None) -> tuple[str, Change, bool]:
    """Decode a record whose key is of ``kind``, for which ``is_of_share_group`` is true. Returns its group id, a
    function that applies it to the group, and True if it deletes the group.

    Raises MalformedMessage if the record cannot be decoded.
    """
    found = decode_stored(_KEYS[kind], key)[0]
    return found.group_id, _CHANGES[kind](found, value), kind == GROUP and value is None


def _epoch(key: ShareGroupMetadataKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(ShareGroupMetadataValue, value)[0]

    def change(group: ShareGroup) -> None:
        group.epoch = FIRST_EPOCH if stored is None else stored.epoch
        group.metadata_hash = 0 if stored is None else stored.metadata_hash

    return change


def _member(key: ShareGroupMemberMetadataKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_member(key.member_id)
    stored = decode_stored(ShareGroupMemberMetadataValue, value)[0]
    topics = tuple(sorted(set(stored.subscribed_topic_names)))
    return lambda group: group.put_member(key.member_id, stored.rack_id, stored.client_id, stored.client_host, topics)


def _target_epoch(key: ShareGroupTargetAssignmentMetadataKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(ShareGroupTargetAssignmentMetadataValue, value)[0]

    def change(group: ShareGroup) -> None:
        group.target_epoch = FIRST_EPOCH if stored is None else stored.assignment_epoch
        group.target_since_ms = 0 if stored is None else stored.assignment_timestamp

    return change


def _target(key: ShareGroupTargetAssignmentMemberKey, value: bytes | None) -> Change:
    target = None
    if value is not None:
        stored = decode_stored(ShareGroupTargetAssignmentMemberValue, value)[0]
        target = {each.topic_id: frozenset(each.partitions) for each in stored.topic_partitions}

    def change(group: ShareGroup) -> None:
        if target is None:
            group.targets.pop(key.member_id, None)
        else:
            group.targets[key.member_id] = target

    return change


def _current(key: ShareGroupCurrentMemberAssignmentKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_progress(key.member_id)
    stored = decode_stored(ShareGroupCurrentMemberAssignmentValue, value)[0]
    assigned = {each.topic_id: frozenset(each.partitions) for each in stored.assigned_partitions}
    return lambda group: group.put_progress(key.member_id, stored.member_epoch, stored.previous_member_epoch, assigned)


def _stored(key: ShareGroupStatePartitionMetadataKey, value: bytes | None) -> Change:
    stored = NOTHING_STORED
    if value is not None:
        found = decode_stored(ShareGroupStatePartitionMetadataValue, value)[0]
        stored = Stored(
            _topics(found.initializing_topics),
            _topics(found.initialized_topics),
            {each.topic_id: each.topic_name for each in found.deleting_topics},
        )

    def change(group: ShareGroup) -> None:
        group.stored = stored
        group.has_stored_record = value is not None

    return change


def _topics(
    infos: Iterable[ShareGroupStatePartitionMetadataValue.TopicPartitionsInfo],
) -> dict[UUID, TopicPartitions]:
    return {each.topic_id: TopicPartitions(each.topic_name, frozenset(each.partitions)) for each in infos}


_CHANGES: Final[dict[int, Callable[[Any, bytes | None], Change]]] = {
    MEMBER: _member,
    GROUP: _epoch,
    TARGET_EPOCH: _target_epoch,
    TARGET: _target,
    CURRENT: _current,
    STORED: _stored,
}
