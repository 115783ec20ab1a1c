"""The records of ``__consumer_offsets`` for committed offsets and classic groups: encoding and decoding.

A group is stored in the partition that its id hashes to. The hash and the formats are Kafka's, so that Kafka's tools
can read the topic. The topic is compacted: the last value of a key counts, and a null value is a tombstone.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
0, 1                   group, topic, partition                            a committed offset
2                      group                                              a generation and its members
=====================  =================================================  ==========================
"""

from __future__ import annotations

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.groups.classic.membership import GroupMember, GroupState, Membership
from parley.broker.coordinators.groups.committed_offsets import OFFSET_VALUE_VERSION, CommittedOffset
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.topic_partition import TopicPartition

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_WITH_EXPIRY_VALUE_VERSION = 1
"""The only version of the value that contains an expiry time, which clients older than KIP-211 set."""
GROUP_VALUE_VERSION = 3
GENERATION_MAX = (1 << 31) - 1


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1])
    return encode_stored(key, OFFSET_KEY_VERSION)


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> KeyValue:
    """Return the record of a committed offset."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_at_ms,
    )
    if committed.expire_at_ms >= 0:
        value.leader_epoch = NO_EPOCH
        return _offset_key(group_id, partition), encode_stored(value, OFFSET_WITH_EXPIRY_VALUE_VERSION)
    return _offset_key(group_id, partition), encode_stored(value, OFFSET_VALUE_VERSION)


def group_record(group_id: str, membership: Membership) -> KeyValue:
    """Return the record of a group's generation."""
    value = GroupMetadataValue(
        protocol_type=membership.protocol_type or "",
        generation=membership.generation,
        protocol=membership.protocol,
        leader=membership.leader_id,
        current_state_timestamp=membership.state_since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata_for(membership.protocol),
                assignment=membership.assignments.get(member.member_id, b""),
            )
            for member in membership.members.values()
        ],
    )
    return encode_stored(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION), encode_stored(value, GROUP_VALUE_VERSION)


def offset_tombstone(group_id: str, partition: TopicPartition) -> KeyValue:
    """Return the record that deletes a committed offset."""
    return _offset_key(group_id, partition), None


def group_tombstone(group_id: str) -> KeyValue:
    """Return the record that deletes a group."""
    return encode_stored(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION), None


def decode_offset_key(key: bytes) -> tuple[str, TopicPartition]:
    """Decode the group and the partition from the key of an offset. Raises MalformedMessage if it cannot be decoded."""
    found = decode_stored(OffsetCommitKey, key)[0]
    return found.group, (found.topic, found.partition)


def decode_offset(value: bytes, log_offset: int) -> CommittedOffset:
    """Decode the committed offset in a record at ``log_offset``. Raises MalformedMessage if the value is malformed."""
    stored, _ = decode_stored(OffsetCommitValue, value)
    return CommittedOffset(
        offset=stored.offset,
        leader_epoch=stored.leader_epoch,
        metadata=stored.metadata,
        commit_timestamp_ms=stored.commit_timestamp,
        expire_at_ms=stored.expire_timestamp,
        log_offset=log_offset,
    )


def decode_group_key(key: bytes) -> str:
    """Decode the group id from the key of a generation. Raises MalformedMessage if it cannot be decoded."""
    return decode_stored(GroupMetadataKey, key)[0].group


def decode_generation(value: bytes) -> GroupMetadataValue:
    """Decode a generation. Raises MalformedMessage if it cannot be decoded, or if its number is negative or so high
    that no generation can follow."""
    stored, _ = decode_stored(GroupMetadataValue, value)
    if not 0 <= stored.generation < GENERATION_MAX:
        raise MalformedMessage(f"invalid generation {stored.generation}")
    return stored


def restored(stored: GroupMetadataValue) -> Membership:
    """Return the membership of a loaded group. Each member supports only the strategy that the group has chosen,
    because its other strategies are not stored."""
    members = [
        GroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            # Version 0 of the value has only one timeout.
            rebalance_timeout_ms=member.rebalance_timeout if member.rebalance_timeout >= 0 else member.session_timeout,
            session_timeout_ms=member.session_timeout,
            protocols=((stored.protocol or "", member.subscription),),
        )
        for member in stored.members
    ]
    first = members[0].member_id if members else None
    return Membership(
        state=GroupState.STABLE if members else GroupState.EMPTY,
        state_since_ms=stored.current_state_timestamp,
        generation=stored.generation,
        protocol_type=stored.protocol_type or None,
        protocol=stored.protocol,
        leader_id=first if stored.leader is None else stored.leader,
        members={member.member_id: member for member in members},
        static_ids={
            member.group_instance_id: member.member_id for member in members if member.group_instance_id is not None
        },
        assignments={member.member_id: member.assignment for member in stored.members},
    )
