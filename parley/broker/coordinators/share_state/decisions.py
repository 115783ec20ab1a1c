"""The decisions of the share coordinator: initialize, read, write, delete and summarize a share partition.

A share partition must be initialized before it is read or written. Its first record is a snapshot. Updates follow, and
after every ``share.coordinator.snapshot.update.records.per.snapshot`` updates another snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from parley.broker.coordinators.decision import Decision, KeyValue
from parley.broker.coordinators.share_state.batches import combined
from parley.broker.coordinators.share_state.persister import (
    NO_CHECK,
    UNINITIALIZED_OFFSET,
    UNKNOWN_COUNT,
    ShareState,
    ShareStateSummary,
    StateBatch,
)
from parley.broker.coordinators.share_state.records import is_sound, snapshot_record, tombstone, update_record
from parley.broker.coordinators.share_state.shard import ShareStateShard
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.protocol.errors import ErrorCode, KafkaError

NEVER_READ: Final = -1
"""The leader epoch of state that no leader has read."""


def initialize(
    key: SharePartitionKey,
    state_epoch: int,
    start_offset: int,
    leader_epoch: int,
    shard: ShareStateShard,
    now_ms: int,
) -> Decision[None]:
    """Initialize the state of a share partition.

    A group coordinator that does not know whether its initialization was stored repeats it, perhaps after members have
    acknowledged records. An initialization with the stored state epoch and without an offset therefore changes nothing.
    If a leader replaces the state in the same state epoch, earlier leaders stay fenced. Raises FENCED_STATE_EPOCH if a
    higher state epoch is stored. For a leader, it also raises the errors of ``write``.
    """
    if leader_epoch != NO_CHECK:
        known: StoredState | None = _led(key, "Initialize", leader_epoch, state_epoch, shard)
    else:
        known = shard.states.get(key)
        if known is not None:
            _check_state_epoch(known, state_epoch)
            if known.state_epoch == state_epoch and start_offset == UNINITIALIZED_OFFSET:
                return Decision(None)
    state = StoredState(
        snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
        state_epoch=state_epoch,
        leader_epoch=known.leader_epoch if known is not None and known.state_epoch == state_epoch else NEVER_READ,
        start_offset=start_offset,
        delivery_complete_count=UNKNOWN_COUNT if start_offset == UNINITIALIZED_OFFSET else 0,
        created_ms=now_ms,
        written_ms=now_ms,
    )
    return Decision(None, [snapshot_record(key, state)])


def read(key: SharePartitionKey, leader_epoch: int, shard: ShareStateShard, now_ms: int) -> Decision[ShareState]:
    """Return the state of a share partition, and fence earlier leaders. Raises INVALID_REQUEST if the share partition
    is not initialized, or FENCED_LEADER_EPOCH if a leader with a higher epoch has read the state."""
    known = _initialized(key, "Read", shard)
    _check_leader_epoch(known, leader_epoch)
    state = ShareState(known.state_epoch, known.start_offset, known.delivery_complete_count, known.batches)
    if leader_epoch in (NO_CHECK, known.leader_epoch):
        return Decision(state)
    led = replace(known, leader_epoch=leader_epoch)
    return Decision(state, [_changed(key, known, led, (), shard, now_ms)])


def write(
    key: SharePartitionKey,
    leader_epoch: int,
    state_epoch: int,
    start_offset: int,
    delivery_complete_count: int,
    batches: Sequence[StateBatch],
    shard: ShareStateShard,
    now_ms: int,
) -> Decision[None]:
    """Store a change in the state of a share partition, as ``Persister.write`` describes.

    Raises INVALID_REQUEST, FENCED_LEADER_EPOCH or FENCED_STATE_EPOCH.
    """
    known = _led(key, "Write", leader_epoch, state_epoch, shard)
    _check_batches(batches)
    changed = replace(
        known,
        start_offset=known.start_offset if start_offset == UNINITIALIZED_OFFSET else start_offset,
        delivery_complete_count=delivery_complete_count,
    )
    return Decision(None, [_changed(key, known, changed, batches, shard, now_ms)])


def delete(key: SharePartitionKey, state_epoch: int, shard: ShareStateShard, now_ms: int) -> Decision[None]:
    """Delete the state of a share partition, if there is any. Raises FENCED_STATE_EPOCH if it was initialized in a
    higher epoch."""
    known = shard.states.get(key)
    if known is None:
        return Decision(None)
    _check_state_epoch(known, state_epoch)
    return Decision(None, [tombstone(key)])


def summarize(key: SharePartitionKey, shard: ShareStateShard, now_ms: int) -> Decision[ShareStateSummary]:
    """Return the state of a share partition, without its batches.

    If the state was never initialized, the result has the state epoch 0 and ``UNINITIALIZED_OFFSET``.
    """
    known = shard.states.get(key)
    if known is None:
        return Decision(ShareStateSummary(0, UNINITIALIZED_OFFSET, UNKNOWN_COUNT, 0))
    leader_epoch = max(known.leader_epoch, 0)
    return Decision(
        ShareStateSummary(known.state_epoch, known.start_offset, known.delivery_complete_count, leader_epoch)
    )


def _changed(
    key: SharePartitionKey,
    known: StoredState,
    changed: StoredState,
    batches: Sequence[StateBatch],
    shard: ShareStateShard,
    now_ms: int,
) -> KeyValue:
    """Return the record that stores a change: an update, or a snapshot if enough updates follow the last snapshot."""
    if known.updates < shard.config().share_coordinator_snapshot_update_records_per_snapshot:
        return update_record(
            key,
            known.snapshot_epoch,
            changed.leader_epoch,
            changed.start_offset,
            changed.delivery_complete_count,
            combined((), batches, changed.start_offset),
        )
    snapshot = replace(
        changed,
        snapshot_epoch=known.snapshot_epoch + 1,
        batches=combined(known.batches, batches, changed.start_offset),
        created_ms=now_ms,
        written_ms=now_ms,
    )
    return snapshot_record(key, snapshot)


# --- Checks ---


def _initialized(key: SharePartitionKey, operation: str, shard: ShareStateShard) -> StoredState:
    known = shard.states.get(key)
    if known is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"{operation} operation on uninitialized share partition not allowed."
        )
    return known


def _led(
    key: SharePartitionKey, operation: str, leader_epoch: int, state_epoch: int, shard: ShareStateShard
) -> StoredState:
    """Return the state that a leader may change. Raises INVALID_REQUEST, FENCED_LEADER_EPOCH or FENCED_STATE_EPOCH.

    A leader that passes another state epoch, or that has not read this state, knows the state of an earlier group with
    the same id: the group was deleted and created again, and its epochs started over.
    """
    known = _initialized(key, operation, shard)
    _check_leader_epoch(known, leader_epoch)
    if state_epoch not in (NO_CHECK, known.state_epoch) or leader_epoch > known.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
    return known


def _check_leader_epoch(known: StoredState, leader_epoch: int) -> None:
    if leader_epoch != NO_CHECK and known.fenced_below > leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)


def _check_state_epoch(known: StoredState, state_epoch: int) -> None:
    if state_epoch != NO_CHECK and known.state_epoch > state_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)


def _check_batches(batches: Sequence[StateBatch]) -> None:
    """Raise INVALID_REQUEST for batches that no leader writes, because a later read could not use them."""
    for batch in batches:
        if not is_sound(batch):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A state batch is malformed: {tuple(batch)}.")
