"""The records of ``__share_group_state``, in Kafka's formats: a snapshot of a share partition, or an update to it.

A tombstone with the key of a snapshot deletes the share partition. Updates have no tombstones: the topic is not
compacted, and updates that a snapshot has superseded are deleted with the start of the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from parley.broker.coordinators.decision import KeyValue
from parley.broker.coordinators.share_state.persister import StateBatch
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.broker.share.record_states import STORED
from parley.protocol.codec import decode_stored, encode_stored
from parley.protocol.errors import MalformedMessage
from parley.protocol.messages.stored_share_state import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)

SNAPSHOT, UPDATE = 0, 1
"""The kinds of records, as in the first two bytes of their keys."""

_VALUE_VERSION: Final = 0


def snapshot_record(key: SharePartitionKey, state: StoredState) -> KeyValue:
    """Return the record that stores the whole state."""
    make = ShareSnapshotValue.StateBatch
    value = ShareSnapshotValue(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.created_ms,
        write_timestamp=state.written_ms,
        state_batches=[make(**batch._asdict()) for batch in state.batches],
    )
    return _snapshot_key(key), encode_stored(value, _VALUE_VERSION)


def update_record(
    key: SharePartitionKey,
    snapshot_epoch: int,
    leader_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Iterable[StateBatch],
) -> KeyValue:
    """Return the record that stores a change. A ``start_offset`` of -1 means unchanged."""
    make = ShareUpdateValue.StateBatch
    value = ShareUpdateValue(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=delivery_complete_count,
        state_batches=[make(**batch._asdict()) for batch in batches],
    )
    stored_key = ShareUpdateKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return encode_stored(stored_key, UPDATE), encode_stored(value, _VALUE_VERSION)


def tombstone(key: SharePartitionKey) -> KeyValue:
    """Return the record that deletes a share partition."""
    return _snapshot_key(key), None


def _snapshot_key(key: SharePartitionKey) -> bytes:
    stored = ShareSnapshotKey(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return encode_stored(stored, SNAPSHOT)


def read_key(key: bytes) -> tuple[int, SharePartitionKey]:
    """Decode the kind of a record and its share partition. Raises MalformedMessage if it cannot be decoded."""
    kind = int.from_bytes(key[:2], "big") if len(key) >= 2 else -1
    if kind == SNAPSHOT:
        snapshot = decode_stored(ShareSnapshotKey, key)[0]
        return kind, SharePartitionKey(snapshot.group_id, snapshot.topic_id, snapshot.partition)
    if kind == UPDATE:
        update = decode_stored(ShareUpdateKey, key)[0]
        return kind, SharePartitionKey(update.group_id, update.topic_id, update.partition)
    raise MalformedMessage(f"unknown key version {kind}")


def read_snapshot(value: bytes) -> StoredState:
    """Decode a snapshot. Raises MalformedMessage if it cannot be decoded."""
    stored = decode_stored(ShareSnapshotValue, value)[0]
    return StoredState(
        snapshot_epoch=stored.snapshot_epoch,
        state_epoch=stored.state_epoch,
        leader_epoch=stored.leader_epoch,
        start_offset=stored.start_offset,
        delivery_complete_count=stored.delivery_complete_count,
        created_ms=stored.create_timestamp,
        written_ms=stored.write_timestamp,
        batches=tuple(_batches(stored.state_batches)),
        fenced_below=stored.leader_epoch,
    )


def is_sound(batch: StateBatch) -> bool:
    """Return True if the offsets, the state and the delivery count of the batch are valid."""
    is_range = 0 <= batch.first_offset <= batch.last_offset
    return is_range and batch.delivery_state in STORED and batch.delivery_count >= 0


def read_update(value: bytes) -> tuple[ShareUpdateValue, list[StateBatch]]:
    """Decode an update and its batches. Raises MalformedMessage if it cannot be decoded."""
    stored = decode_stored(ShareUpdateValue, value)[0]
    return stored, _batches(stored.state_batches)


def _batches(stored: Iterable[ShareSnapshotValue.StateBatch | ShareUpdateValue.StateBatch]) -> list[StateBatch]:
    """Return the valid batches. A single invalid batch would keep every leader from loading the share partition."""
    read = (
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in stored
    )
    return [batch for batch in read if is_sound(batch)]
