"""How groups and committed offsets lie in ``__consumer_offsets``: keys, values, appends and the reading back.

A group lives in the partition that its id hashes to, with Kafka's own hash and record formats, so that Kafka's tools
read the topic. The topic is compacted: the last value of a key counts, a null value is a tombstone.

=====================  =================================================  ==========================
key (first two bytes)  key                                                value
=====================  =================================================  ==========================
0, 1                   group, topic, partition                            a committed offset
2                      group                                              generation and its members
=====================  =================================================  ==========================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupMember, GroupState, TopicPartition
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from parley.protocol.messages.stored import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.sentinels import NO_EPOCH

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_WITH_EXPIRY_VALUE_VERSION = 1
"""The one version that carries the moment at which the offset expires (a client of before KIP-211 asked for it)."""
GROUP_VALUE_VERSION = 3
GENERATION_MAX = (1 << 31) - 1

KeyValue = tuple[bytes, bytes | None]


class OffsetsLog(Protocol):
    """What the journal needs of the partitions of ``__consumer_offsets`` that this broker leads."""

    async def append(self, partition: int, batch: bytearray) -> int:
        """Append and wait until the whole ISR has it. Answers the last offset; raises KafkaError."""
        ...


def group_partition(group_id: str, partitions: int) -> int:
    """The partition a group lives in: Java's ``String.hashCode``, without its sign, modulo the partitions."""
    units = group_id.encode("utf-16-be", "surrogatepass")
    hashed = 0
    for i in range(0, len(units), 2):
        hashed = (31 * hashed + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return (hashed & 0x7FFFFFFF) % partitions


class GroupLog:
    """Writes what groups must not forget."""

    def __init__(self, offsets_log: OffsetsLog, now_ms: Callable[[], int]) -> None:
        self._log = offsets_log
        self._now_ms = now_ms

    async def store_group(self, group: Group, assignments: Mapping[str, bytes] | None = None) -> None:
        """Make a generation durable, with ``assignments`` in place of the members' own where given."""
        await self._append(group, [group_record(group, assignments)], _GROUP_ERRORS)

    async def store_offsets(self, group: Group, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Make committed offsets durable, all in one batch, and then known to the group."""
        records = [offset_record(group.group_id, partition, offset) for partition, offset in offsets.items()]
        partitions = tuple(offsets)
        group.commit_begins(partitions)
        try:
            group.committed(offsets, await self._append(group, records, _OFFSET_ERRORS))
        finally:
            group.commit_ended(partitions)

    async def forget(self, group: Group, offsets: Collection[TopicPartition], *, whole_group: bool) -> None:
        """Write tombstones for offsets, and for the group itself; then the group has these offsets no more."""
        records: list[KeyValue] = [(_offset_key(group.group_id, partition), None) for partition in offsets]
        if whole_group:
            records.append((encode_stored(GroupMetadataKey(group=group.group_id), GROUP_KEY_VERSION), None))
        if records:
            group.forget(offsets, await self._append(group, records, _GROUP_ERRORS))

    async def _append(self, group: Group, records: list[KeyValue], errors: Mapping[ErrorCode, ErrorCode]) -> int:
        if group.state is GroupState.DEAD:  # it has moved on, perhaps to a new topic of this name: no word of it here
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        now_ms = self._now_ms()
        batch = build([Record(offset, now_ms, key, value, ()) for offset, (key, value) in enumerate(records)])
        try:
            return await self._log.append(group.partition, batch)
        except KafkaError as error:
            raise KafkaError(errors.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), str(error)) from error


_UNAVAILABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_GROUP_ERRORS = {**_UNAVAILABLE, ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS}
_OFFSET_ERRORS = {
    **_UNAVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}


def _offset_key(group_id: str, partition: TopicPartition) -> bytes:
    key = OffsetCommitKey(group=group_id, topic=partition[0], partition=partition[1])
    return encode_stored(key, OFFSET_KEY_VERSION)


def offset_record(group_id: str, partition: TopicPartition, committed: CommittedOffset) -> KeyValue:
    """One committed offset as a record."""
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
    """A group's generation as a record."""
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


@dataclass(slots=True)
class GroupReplay:
    """Gathers what the records of one partition amount to, read from the first to the last."""

    partition: int
    generations: dict[str, GroupMetadataValue] = field(default_factory=dict)
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(default_factory=dict)
    skipped: int = 0
    why_skipped: str = ""
    """What was wrong with the first record or batch left out."""

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Take in one record; one that cannot be understood is counted and left out."""
        try:
            self._apply(key, value)
        except MalformedMessage as error:
            self.skip(error)

    def skip(self, error: Exception) -> None:
        """Count a record, or a whole batch, that cannot be understood."""
        self.skipped += 1
        self.why_skipped = self.why_skipped or str(error)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        if key is None or len(key) < 2:
            raise MalformedMessage("a record of the offsets topic without a key")
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
        """The groups as they were when the last record was written."""
        groups = []
        for group_id in self.generations.keys() | self.offsets.keys():
            group = Group(group_id, self.partition, offsets=self.offsets.get(group_id, {}))
            if group_id in self.generations:
                _restore(group, self.generations[group_id])
            groups.append(group)
        return groups


def _restore(group: Group, stored: GroupMetadataValue) -> None:
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol = stored.protocol
    group.leader_id = stored.leader
    group.state_since_ms = stored.current_state_timestamp
    group.state = GroupState.STABLE if stored.members else GroupState.EMPTY
    for member in stored.members:
        group.add(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 of the value knew one timeout only.
                rebalance_timeout_ms=member.rebalance_timeout
                if member.rebalance_timeout >= 0
                else member.session_timeout,
                session_timeout_ms=member.session_timeout,
                protocols=((stored.protocol or "", member.subscription),),
                assignment=member.assignment,
            )
        )
