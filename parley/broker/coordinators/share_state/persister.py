"""The stored state of share partitions, as the leaders of partitions and the group coordinator use it (KIP-932).

A *share partition* is a partition as one share group sees it. Its state is stored by the share coordinator, a shard of
``__share_group_state``, which may be on another broker. All methods find it, send to it, and retry while it moves:

* The group coordinator *initializes* the state when the group subscribes to the partition, and *deletes* it. It may be
  superseded without knowing that: a deletion spares state that was initialized since, in a higher state epoch.
* The partition's leader *reads* it when the first member fetches, and *writes* to it whenever the outcome of records
  has become final, or their delivery count has changed.

An initialization in the same *state epoch* or a higher one replaces what was stored before; a higher one also fences
the leader. A higher *leader epoch* fences earlier leaders of the partition. Each method raises KafkaError:

* FENCED_STATE_EPOCH: the state was initialized again since. Read it again.
* FENCED_LEADER_EPOCH: a later leader of the partition has read the state. Drop what is in memory.
* UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
* NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NETWORK_EXCEPTION, BROKER_NOT_AVAILABLE,
  REQUEST_TIMED_OUT: the share coordinator could not be reached after several attempts. A write may have been stored
  nevertheless.
* INVALID_REQUEST: the share partition was not initialized, or the request makes no sense.
* UNKNOWN_SERVER_ERROR: the state does not fit in a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from uuid import UUID

UNINITIALIZED_OFFSET: Final = -1
"""The start offset of state that does not say where the group begins: ``share.auto.offset.reset`` says so."""

NO_CHECK: Final = -1
"""The epoch of requests that are not fenced."""

UNKNOWN_COUNT: Final = -1
"""The number of completed deliveries of state that was initialized, or written by a broker older than Kafka 4.2."""


class StateBatch(NamedTuple):
    """Consecutive records in the same state, from the first offset to the last, inclusive."""

    first_offset: int
    last_offset: int
    delivery_state: int
    """One of ``parley.broker.share.record_states.STORED``."""
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    """What is stored of a share partition."""

    state_epoch: int
    start_offset: int
    """The first offset that is not final for the group; ``UNINITIALIZED_OFFSET`` if it has none yet."""
    delivery_complete_count: int
    """How many records from ``start_offset`` on are final (KIP-1226); ``UNKNOWN_COUNT`` if that is not known."""
    batches: tuple[StateBatch, ...]
    """In the order of offsets, without overlaps. Offsets between them are available and were never delivered."""


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """What is stored of a share partition, without its batches."""

    state_epoch: int
    start_offset: int
    delivery_complete_count: int
    leader_epoch: int


class Persister(Protocol):
    """Stores the state of share partitions. The head of this module says which errors all methods raise.

    Calls for several partitions that wait for the same share coordinator share requests to it.
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
        """Begin the state of a share partition, in place of what was stored before.

        Raises FENCED_STATE_EPOCH if a higher state epoch is stored. A leader that begins again what it has read is
        fenced as in ``write``, and needs the same state epoch.
        """
        ...

    async def read(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareState:
        """Return the state, and fence leaders of the partition with an earlier ``leader_epoch`` than this.

        A leader epoch of -1 fences no leader. Raises FENCED_LEADER_EPOCH, and INVALID_REQUEST if the group coordinator
        has not initialized the share partition: its group does not subscribe to it, or does so only now.
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
        """Store what has changed, and return when the in-sync replicas have it. The leader has read the state before.

        Of two states of an offset, that with the higher delivery count counts, then that with the higher number of
        its delivery state. Offsets before ``start_offset`` are forgotten; -1 leaves it unchanged.
        Raises FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH, INVALID_REQUEST.
        """
        ...

    async def delete(self, group_id: str, topic_id: UUID, partition: int, state_epoch: int) -> None:
        """Forget the state. Does nothing if there is none. Raises FENCED_STATE_EPOCH if a higher epoch is stored."""
        ...

    async def summary(self, group_id: str, topic_id: UUID, partition: int, leader_epoch: int) -> ShareStateSummary:
        """Return the state without its batches. It fences no leader.

        State that was never initialized has the state epoch 0 and ``UNINITIALIZED_OFFSET``.
        """
        ...
