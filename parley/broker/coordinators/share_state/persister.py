"""The interface to the stored state of share partitions, for partition leaders and the group coordinator (KIP-932).

A *share partition* is a partition as one share group sees it. A share coordinator, which may be on another broker,
stores its state in ``__share_group_state``. All methods find the share coordinator, send to it, and retry if it moves:

* The group coordinator *initializes* the state when the group subscribes to the partition, and later *deletes* it. It
  may have been superseded without knowing it, so a deletion spares state that was initialized in a higher state epoch.
* The partition's leader *reads* the state when the first member fetches. It *writes* whenever the outcome of records
  becomes final or their delivery counts change.

An initialization with the same *state epoch* or a higher one replaces the stored state. A higher one also fences the
leader. A higher *leader epoch* fences earlier leaders of the partition. Each method raises KafkaError:

* FENCED_STATE_EPOCH: the state has been initialized again. Read it again.
* FENCED_LEADER_EPOCH: a later leader of the partition has read the state. Discard the state in memory.
* UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
* NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE,
  REQUEST_TIMED_OUT: the share coordinator could not be reached after several attempts. A write may have been stored
  nevertheless.
* INVALID_REQUEST: the share partition was not initialized, or the request is malformed.
* UNKNOWN_SERVER_ERROR: the state does not fit in a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from parley.light_dataclasses import dataclass
from parley.protocol.uuids import UUID

UNINITIALIZED_OFFSET: Final = -1
"""The start offset of state without a known position. The group then starts at the position that
``share.auto.offset.reset`` selects."""

NO_CHECK: Final = -1
"""The leader epoch or state epoch of a request that must not be checked for fencing."""

UNKNOWN_COUNT: Final = -1
"""The ``delivery_complete_count`` of state that was just initialized, or written by a broker before Kafka 4.2."""


class StateBatch(NamedTuple):
    """Consecutive records in the same state, from the first offset to the last, inclusive."""

    first_offset: int
    last_offset: int
    delivery_state: int
    """One of ``parley.broker.share.record_states.STORED``."""
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    """The stored state of a share partition."""

    state_epoch: int
    start_offset: int
    """The first offset that is not final for the group, or ``UNINITIALIZED_OFFSET`` if it is not known yet."""
    delivery_complete_count: int
    """The number of final records from ``start_offset`` on (KIP-1226), or ``UNKNOWN_COUNT``."""
    batches: tuple[StateBatch, ...]
    """The batches in the order of offsets, without overlaps. Offsets between two batches are available and were never
    delivered."""


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """The stored state of a share partition, without its batches."""

    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    leader_epoch: int


class Persister(Protocol):
    """The stored state of share partitions. The module's docstring lists the errors that all methods raise.

    Concurrent calls for several partitions with the same share coordinator are sent to it in the same requests.
    """

    async def initialize(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        state_epoch: int,
        start_offset: int,
        leader_epoch: int = NO_CHECK,
    ) -> None:
        """Initialize the state of a share partition, replacing any stored state.

        Raises FENCED_STATE_EPOCH if a higher state epoch is stored. A leader that replaces state that it has read is
        fenced as in ``write``, and must pass the same state epoch.
        """
        ...

    async def read(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        """Return the state, and fence leaders of the partition with a lower leader epoch than ``leader_epoch``.

        A leader epoch of -1 fences no leader. Raises FENCED_LEADER_EPOCH, or INVALID_REQUEST if the group coordinator
        has not initialized the share partition: the group does not subscribe to it, or has only just subscribed.
        """
        ...

    async def write(
        self,
        group_id: str,
        topic_id: UUID,
        partition: int,
        leader_epoch: int,
        state_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Store a change, and return when the in-sync replicas have it. The leader must have read the state before.

        ``batches`` contains only the batches that have changed. If an offset is already stored, the state with the
        higher delivery count wins, and among equal counts the state with the higher number. State before
        ``start_offset`` is dropped; a ``start_offset`` of -1 means unchanged. Raises FENCED_LEADER_EPOCH,
        FENCED_STATE_EPOCH or INVALID_REQUEST.
        """
        ...

    async def delete(self, group_id: str, topic_id: UUID, partition: int, state_epoch: int) -> None:
        """Delete the state, if there is any. Raises FENCED_STATE_EPOCH if a higher state epoch is stored."""
        ...

    async def summary(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareStateSummary:
        """Return the state without its batches. ``leader_epoch`` is not checked, and fences no leader.

        If the state was never initialized, the result has the state epoch 0 and ``UNINITIALIZED_OFFSET``.
        """
        ...
