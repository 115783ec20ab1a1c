"""Messages stored in ``__share_group_state``: the state of share partitions (KIP-932).

A key's version is the kind of record: 0 a snapshot, 1 an update of the snapshot before it.
"""

from __future__ import annotations

from parley.protocol.schema import Data, Struct, field, i8, i16, i32, i64
from parley.protocol.uuids import UUID


class ShareSnapshotKey(Data, versions="0"):
    """Key of the whole state of a share partition."""

    group_id: str
    topic_id: UUID
    partition: i32


class ShareSnapshotValue(Data, versions="0", flexible="0+"):
    """The whole state of a share partition."""

    class StateBatch(Struct):
        """Consecutive records with the same state, both ends included."""

        first_offset: i64
        last_offset: i64
        delivery_state: i8  # 0 available, 2 acknowledged, 4 archived
        delivery_count: i16

    snapshot_epoch: i32  # the number of the snapshot, counted for each share partition
    state_epoch: i32
    leader_epoch: i32  # of the partition's leader
    start_offset: i64  # -1: the group has none yet
    delivery_complete_count: i32 = field(tag=0, tagged="0+", default=-1)  # final records from start_offset on
    create_timestamp: i64
    write_timestamp: i64  # later than create_timestamp if an unchanged snapshot was written again
    state_batches: list[StateBatch]


class ShareUpdateKey(Data, versions="1"):
    """Key of a change in the state of a share partition since its snapshot."""

    group_id: str
    topic_id: UUID
    partition: i32


class ShareUpdateValue(Data, versions="0", flexible="0+"):
    """A change in the state of a share partition since its snapshot."""

    class StateBatch(Struct):
        """Consecutive records with the same state, both ends included."""

        first_offset: i64
        last_offset: i64
        delivery_state: i8  # 0 available, 2 acknowledged, 4 archived
        delivery_count: i16

    snapshot_epoch: i32  # of the snapshot
    leader_epoch: i32  # of the partition's leader
    start_offset: i64  # -1: unchanged
    delivery_complete_count: i32 = field(tag=0, tagged="0+", default=-1)  # final records from start_offset on
    state_batches: list[StateBatch]
