"""Writes groups and committed offsets to ``__consumer_offsets``; the group is updated once the ISR has the records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from parley.broker.coordinators.groups.group import CommittedOffset, Group, GroupState, TopicPartition
from parley.broker.coordinators.groups.group_records import (
    KeyValue,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
)
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record

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


class OffsetsLog(Protocol):
    """Appends to the partitions of ``__consumer_offsets`` that this broker leads."""

    async def append(self, partition: int, batch: bytearray) -> int:
        """Append a batch, wait until the whole ISR has it, and return its last offset. Raises KafkaError."""
        ...


class GroupLog:
    """The durable state of groups. Each method returns once the whole ISR has the records, and raises KafkaError."""

    def __init__(self, offsets_log: OffsetsLog, now_ms: Callable[[], int]) -> None:
        self._log = offsets_log
        self._now_ms = now_ms

    async def store_group(self, group: Group, assignments: Mapping[str, bytes] | None = None) -> None:
        """Store the group's generation, with ``assignments`` in place of the members' own if given."""
        await self._append(group, [group_record(group, assignments)], _GROUP_ERRORS)

    async def store_offsets(self, group: Group, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Store committed offsets in one batch, then add them to the group."""
        records = [offset_record(group.group_id, partition, offset) for partition, offset in offsets.items()]
        partitions = tuple(offsets)
        group.commit_begins(partitions)
        try:
            group.committed(offsets, await self._append(group, records, _OFFSET_ERRORS))
        finally:
            group.commit_ended(partitions)

    async def forget(self, group: Group, offsets: Collection[TopicPartition], *, whole_group: bool) -> None:
        """Write tombstones for offsets, and for the group itself if asked; then remove the offsets from the group."""
        records: list[KeyValue] = [offset_tombstone(group.group_id, partition) for partition in offsets]
        if whole_group:
            records.append(group_tombstone(group.group_id))
        if records:
            group.forget(offsets, await self._append(group, records, _GROUP_ERRORS))

    async def _append(self, group: Group, records: list[KeyValue], errors: Mapping[ErrorCode, ErrorCode]) -> int:
        if group.state is GroupState.DEAD:  # another coordinator has it, perhaps in a new topic of this name
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        now_ms = self._now_ms()
        batch = build([Record(offset, now_ms, key, value, ()) for offset, (key, value) in enumerate(records)])
        try:
            return await self._log.append(group.partition, batch)
        except KafkaError as error:
            raise KafkaError(errors.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), str(error)) from error
