"""The records of consumer groups in ``__consumer_offsets``, in Kafka's formats.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
3                      group                                              group epoch, hash of its topics
4                      group                                              topics (until Kafka 4.0, now only deleted)
5                      group, member                                      a member and its subscription
6                      group                                              epoch of the target assignment
7                      group, member                                      a member's target assignment
8                      group, member                                      a member's epochs and partitions
16                     group, regular expression                          the topics that match it
=====================  =================================================  ==========================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.consumer.consumer_group import FIRST_EPOCH, ConsumerGroup, ResolvedRegex
from parley.broker.coordinators.groups.consumer.member import (
    NOTHING,
    Assignment,
    ClassicMember,
    Member,
    MemberDetails,
    MemberState,
    Owned,
    Progress,
)
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.messages.stored_consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from parley.protocol.uuids import UUID

GROUP, OLD_METADATA, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 4, 5, 6, 7, 8, 16
"""The kinds of records, as in the first two bytes of their keys."""

_VALUE_VERSION: Final = 0
_STATES: Final = {state.value: state for state in MemberState}

_Topics = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions


# --- Writing ---


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> KeyValue:
    """Return the record of a group's epoch."""
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return _group_key(group_id), encode_stored(value, _VALUE_VERSION)


def member_record(group_id: str, member: Member) -> KeyValue:
    """Return the record of a member's subscription."""
    details = member.details
    kind = ConsumerGroupMemberMetadataValue
    classic = details.classic
    value = kind(
        instance_id=details.instance_id,
        rack_id=details.rack_id,
        client_id=details.client_id,
        client_host=details.client_host,
        subscribed_topic_names=list(details.topics),
        subscribed_topic_regex=details.regex,
        rebalance_timeout_ms=details.rebalance_timeout_ms,
        server_assignor=details.assignor,
        classic_member_metadata=None
        if classic is None
        else kind.ClassicMemberMetadata(
            session_timeout_ms=classic.session_timeout_ms,
            supported_protocols=[kind.ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
        ),
    )
    return _member_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def target_epoch_record(group_id: str, epoch: int, since_ms: int) -> KeyValue:
    """Return the record of the epoch of a target assignment, which was computed at the time ``since_ms``."""
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=since_ms)
    return _target_epoch_key(group_id), encode_stored(value, _VALUE_VERSION)


def target_record(group_id: str, member_id: str, target: Assignment) -> KeyValue:
    """Return the record of a member's target assignment."""
    kind = ConsumerGroupTargetAssignmentMemberValue
    value = kind(
        topic_partitions=[
            kind.TopicPartition(topic_id=topic, partitions=list(partitions)) for topic, partitions in target.items()
        ]
    )
    return _target_key(group_id, member_id), encode_stored(value, _VALUE_VERSION)


def current_record(group_id: str, member: Member) -> KeyValue:
    """Return the record of a member's epochs and partitions."""
    progress = member.progress
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=progress.epoch,
        previous_member_epoch=progress.previous_epoch,
        state=progress.state,
        assigned_partitions=_stored(progress.assigned),
        partitions_pending_revocation=_stored(progress.revoking),
    )
    return _current_key(group_id, member.member_id), encode_stored(value, _VALUE_VERSION)


def _stored(owned: Owned) -> list[_Topics]:
    return [
        _Topics(topic_id=topic, partitions=list(partitions), assignment_epochs=list(partitions.values()))
        for topic, partitions in owned.items()
    ]


def regex_record(group_id: str, regex: str, resolved: ResolvedRegex) -> KeyValue:
    """Return the record of the topics that match a regular expression."""
    value = ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return _regex_key(group_id, regex), encode_stored(value, _VALUE_VERSION)


def member_tombstones(group_id: str, member_id: str) -> list[KeyValue]:
    """Return the records that delete a member, in Kafka's order."""
    return [
        (_current_key(group_id, member_id), None),
        (_target_key(group_id, member_id), None),
        (_member_key(group_id, member_id), None),
    ]


def regex_tombstone(group_id: str, regex: str) -> KeyValue:
    """Return the record that deletes a regular expression."""
    return _regex_key(group_id, regex), None


def old_metadata_tombstone(group_id: str) -> KeyValue:
    """Return the record that deletes the topic metadata that an older broker stored."""
    return encode_stored(ConsumerGroupPartitionMetadataKey(group_id=group_id), OLD_METADATA), None


def group_tombstones(group: ConsumerGroup) -> list[KeyValue]:
    """Return the records that delete a group, in Kafka's order: its members first."""
    group_id = group.group_id
    records: list[KeyValue] = [(_current_key(group_id, member_id), None) for member_id in group.members]
    records += [(_target_key(group_id, member_id), None) for member_id in group.targets]
    records.append((_target_epoch_key(group_id), None))
    records += [(_member_key(group_id, member_id), None) for member_id in group.members]
    records += [regex_tombstone(group_id, regex) for regex in group.regexes]
    if group.has_old_metadata:
        records.append(old_metadata_tombstone(group_id))
    return [*records, (_group_key(group_id), None)]


def group_records(group: ConsumerGroup) -> list[KeyValue]:
    """Return all records of a group, except those of its regular expressions, in Kafka's order."""
    group_id, members = group.group_id, group.members.values()
    records = [member_record(group_id, member) for member in members]
    records.append(epoch_record(group_id, group.epoch, group.metadata_hash))
    records += [target_record(group_id, member_id, target) for member_id, target in group.targets.items()]
    records.append(target_epoch_record(group_id, group.target_epoch, group.target_since_ms))
    return records + [current_record(group_id, member) for member in members]


def _group_key(group_id: str) -> bytes:
    return encode_stored(ConsumerGroupMetadataKey(group_id=group_id), GROUP)


def _member_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), MEMBER)


def _target_epoch_key(group_id: str) -> bytes:
    return encode_stored(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), TARGET_EPOCH)


def _target_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), TARGET)


def _current_key(group_id: str, member_id: str) -> bytes:
    return encode_stored(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), CURRENT)


def _regex_key(group_id: str, regex: str) -> bytes:
    return encode_stored(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), REGEX)


# --- Reading ---

_KEYS: Final[dict[int, Any]] = {
    GROUP: ConsumerGroupMetadataKey,
    OLD_METADATA: ConsumerGroupPartitionMetadataKey,
    MEMBER: ConsumerGroupMemberMetadataKey,
    TARGET_EPOCH: ConsumerGroupTargetAssignmentMetadataKey,
    TARGET: ConsumerGroupTargetAssignmentMemberKey,
    CURRENT: ConsumerGroupCurrentMemberAssignmentKey,
    REGEX: ConsumerGroupRegularExpressionKey,
}

Change = Callable[[ConsumerGroup], None]


def decode_change(kind: int, key: bytes, value: bytes | None) -> tuple[str, Change, bool]:
    """Decode a record whose key is of ``kind``, for which ``is_of_consumer_group`` is true. Returns its group id, a
    function that applies it to the group, and True if it deletes the group.

    Raises MalformedMessage if the record cannot be decoded.
    """
    found = decode_stored(_KEYS[kind], key)[0]
    return found.group_id, _CHANGES[kind](found, value), kind == GROUP and value is None


def is_of_consumer_group(kind: int) -> bool:
    """Return True if keys of this kind belong to records of consumer groups."""
    return kind in _KEYS


def _epoch(key: ConsumerGroupMetadataKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(ConsumerGroupMetadataValue, value)[0]

    def change(group: ConsumerGroup) -> None:
        group.epoch = FIRST_EPOCH if stored is None else stored.epoch
        group.metadata_hash = 0 if stored is None else stored.metadata_hash

    return change


def _old_metadata(key: ConsumerGroupPartitionMetadataKey, value: bytes | None) -> Change:
    if value is not None:
        decode_stored(ConsumerGroupPartitionMetadataValue, value)

    def change(group: ConsumerGroup) -> None:
        group.has_old_metadata = value is not None

    return change


def _member(key: ConsumerGroupMemberMetadataKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_member(key.member_id)
    details = _details(decode_stored(ConsumerGroupMemberMetadataValue, value)[0])
    return lambda group: group.put_details(key.member_id, details)


def _details(stored: ConsumerGroupMemberMetadataValue) -> MemberDetails:
    classic = stored.classic_member_metadata
    return MemberDetails(
        instance_id=stored.instance_id,
        rack_id=stored.rack_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        topics=tuple(sorted(set(stored.subscribed_topic_names))),
        regex=stored.subscribed_topic_regex,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        assignor=stored.server_assignor,
        classic=None
        if classic is None
        else ClassicMember(
            classic.session_timeout_ms, tuple([(each.name, each.metadata) for each in classic.supported_protocols])
        ),
    )


def _target_epoch(key: ConsumerGroupTargetAssignmentMetadataKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(ConsumerGroupTargetAssignmentMetadataValue, value)[0]

    def change(group: ConsumerGroup) -> None:
        group.target_epoch = FIRST_EPOCH if stored is None else stored.assignment_epoch
        group.target_since_ms = 0 if stored is None else stored.assignment_timestamp

    return change


def _target(key: ConsumerGroupTargetAssignmentMemberKey, value: bytes | None) -> Change:
    stored = None if value is None else decode_stored(ConsumerGroupTargetAssignmentMemberValue, value)[0]

    def change(group: ConsumerGroup) -> None:
        if stored is None:
            group.targets.pop(key.member_id, None)
        else:
            group.targets[key.member_id] = {
                each.topic_id: tuple(sorted(each.partitions)) for each in stored.topic_partitions
            }

    return change


def _current(key: ConsumerGroupCurrentMemberAssignmentKey, value: bytes | None) -> Change:
    if value is None:
        return lambda group: group.remove_progress(key.member_id)
    stored = decode_stored(ConsumerGroupCurrentMemberAssignmentValue, value)[0]
    progress = Progress(
        stored.member_epoch,
        stored.previous_member_epoch,
        _STATES.get(stored.state, MemberState.UNKNOWN),
        _owned(stored.assigned_partitions, stored.member_epoch),
        _owned(stored.partitions_pending_revocation, stored.member_epoch),
    )
    return lambda group: group.put_progress(key.member_id, progress)


def _owned(stored: Iterable[_Topics], member_epoch: int) -> Owned:
    """Return partitions with their epochs. Kafka before 4.3 stored no epochs: the member epoch is used instead."""
    owned: dict[UUID, dict[int, int]] = {}
    for each in stored:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [member_epoch] * len(each.partitions)
        owned[each.topic_id] = dict(sorted(zip(each.partitions, epochs, strict=True)))
    return owned or NOTHING


def _regex(key: ConsumerGroupRegularExpressionKey, value: bytes | None) -> Change:
    """Decode the topics that match an expression. Equal names and equal sets are shared, to save memory."""
    stored = None if value is None else decode_stored(ConsumerGroupRegularExpressionValue, value)[0]

    def change(group: ConsumerGroup) -> None:
        if stored is None:
            group.regexes.pop(key.regular_expression, None)
        else:
            found = frozenset(map(sys.intern, stored.topics))
            topics = next((each.topics for each in group.regexes.values() if each.topics == found), found)
            group.regexes[key.regular_expression] = ResolvedRegex(topics, stored.version, stored.timestamp)

    return change


_CHANGES: Final[dict[int, Callable[[Any, bytes | None], Change]]] = {
    GROUP: _epoch,
    OLD_METADATA: _old_metadata,
    MEMBER: _member,
    TARGET_EPOCH: _target_epoch,
    TARGET: _target,
    CURRENT: _current,
    REGEX: _regex,
}
