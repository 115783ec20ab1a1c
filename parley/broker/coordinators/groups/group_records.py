"""The records of ``__consumer_offsets``: what their keys and values mean, and groups read back from them.

A group is stored in the partition that its id hashes to. Hash and record formats are Kafka's, so that Kafka's tools can
read the topic. The topic is compacted: the last value of a key counts, and a null value is a tombstone.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
0, 1                   group, topic, partition                            a committed offset
2                      group                                              generation and its members
=====================  =================================================  ==========================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupMember, GroupState, TopicPartition
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from parley.protocol.sentinels import NO_EPOCH

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_WITH_EXPIRY_VALUE_VERSION = 1
"""The only version with an expiry time, which clients older than KIP-211 set."""
GROUP_VALUE_VERSION = 3
GENERATION_MAX = (1 << 31) - 1

KeyValue = tuple[bytes, bytes | None]


def group_partition(group_id: str, partitions: int) -> int:
    """Return the partition that stores a group: Java's ``String.hashCode`` without its sign, modulo the partitions."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for i in range(0, len(units), 2):
        hashed = (31 * hashed + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % partitions


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


def group_record(group: Group, assignments: Mapping[str, bytes] | None = None) -> KeyValue:
    """Return the record of a group's generation, with ``assignments`` in place of the members' own if given."""
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader_id,
        current_state_timestamp=group.state_since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata_for(group.protocol),
                assignment=member.assignment if assignments is None else assignments.get(member.member_id, b""),
            )
            for member in group.members.values()
        ],
    )
    return encode_stored(GroupMetadataKey(group=group.group_id), GROUP_KEY_VERSION), encode_stored(
        value, GROUP_VALUE_VERSION
    )


def offset_tombstone(group_id: str, partition: TopicPartition) -> KeyValue:
    """Return the record that deletes a committed offset."""
    return _offset_key(group_id, partition), None


def group_tombstone(group_id: str) -> KeyValue:
    """Return the record that deletes a group."""
    return encode_stored(GroupMetadataKey(group=group_id), GROUP_KEY_VERSION), None


@dataclass(slots=True)
class GroupReplay:
    """Rebuilds groups from the records of one partition, applied from the first to the last."""

    partition: int
    generations: dict[str, GroupMetadataValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    skipped: int = 0
    why_skipped: str = ""
    """What was wrong with the first record or batch that was skipped."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record. A record that cannot be decoded is counted and skipped."""
        try:
            self._apply(key, value)
        except MalformedMessage as error:
            self.skip(error)

    def skip(self, error: Exception) -> None:
        """Count a record, or a whole batch, that cannot be decoded."""
        self.skipped += 1
        self.why_skipped = self.why_skipped or str(error)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or len(key) < 2:
            raise MalformedMessage("a record of the offsets topic has no key")
        version = int.from_bytes(key[:2], "big")
        if version <= OFFSET_KEY_VERSION:
            self._apply_offset(decode_stored(OffsetCommitKey, key)[0], value)
        elif version == GROUP_KEY_VERSION:
            group_id = decode_stored(GroupMetadataKey, key)[0].group
            if value is None:
                self.generations.pop(group_id, None)
            else:
                stored = decode_stored(GroupMetadataValue, value)[0]
                if not 0 <= stored.generation < GENERATION_MAX:
                    raise MalformedMessage(f"generation {stored.generation}")
                self.generations[group_id] = stored
        else:
            raise MalformedMessage(f"unknown key version {version}")

    def _apply_offset(self, key: OffsetCommitKey, value: bytes | None) -> None:
        partition = (key.topic, key.partition)
        if value is None:
            of_group = self.offsets.get(key.group, {})
            of_group.pop(partition, None)
            if not of_group:
                self.offsets.pop(key.group, None)
            return
        stored, _ = decode_stored(OffsetCommitValue, value)
        self.offsets.setdefault(key.group, {})[partition] = CommittedOffset(
            offset=stored.offset,
            leader_epoch=stored.leader_epoch,
            metadata=stored.metadata,
            commit_timestamp_ms=stored.commit_timestamp,
            expire_at_ms=stored.expire_timestamp,
        )

    def groups(self) -> list[Group]:
        """Return the groups as they were when the last record was written."""
        groups = []
        for group_id in self.generations.keys() | self.offsets.keys():
            offsets = self.offsets.get(group_id, {})
            if group_id in self.generations:
                groups.append(_restored(group_id, self.partition, offsets, self.generations[group_id]))
            else:
                groups.append(Group(group_id, self.partition, offsets=offsets))
        return groups


def _restored(
    group_id: str,
    partition: int,
    offsets: dict[TopicPartition, CommittedOffset],
    stored: GroupMetadataValue,
) -> Group:
    group = Group(
        group_id,
        partition,
        state=GroupState.STABLE if stored.members else GroupState.EMPTY,
        state_since_ms=stored.current_state_timestamp,
        generation=stored.generation,
        protocol_type=stored.protocol_type or None,
        protocol=stored.protocol,
        leader_id=stored.leader,
        offsets=offsets,
    )
    for member in stored.members:
        group.add(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 of the value has only one timeout.
                rebalance_timeout_ms=member.rebalance_timeout
                if member.rebalance_timeout >= 0
                else member.session_timeout,
                session_timeout_ms=member.session_timeout,
                protocols=((stored.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
        )
    return group
