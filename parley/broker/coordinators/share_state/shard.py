"""The share partitions of one partition of ``__share_group_state``, rebuilt from its records (``ShardState``).

The log must start at the oldest snapshot that no later snapshot supersedes. Share partitions that have not changed for
a long time are periodically stored again, so that older records can be deleted (``pruning.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.decision import Decision, ProducerIdentity, Timer
from parley.broker.coordinators.share_state.batches import combined
from parley.broker.coordinators.share_state.records import SNAPSHOT, read_key, read_snapshot, read_update
from parley.broker.coordinators.share_state.share_partition_key import SharePartitionKey
from parley.broker.coordinators.share_state.stored_state import StoredState
from parley.broker.metadata.image import MetadataImage
from parley.light_dataclasses import dataclass
from parley.protocol.errors import MalformedMessage
from parley.protocol.sentinels import NO_OFFSET


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything outside a shard that its decisions depend on, and the actions that they start outside it."""

    config: Callable[[], BrokerConfig]
    image: Callable[[], MetadataImage]
    """The cluster's metadata."""
    batch_bytes_max: Callable[[int], int]
    """Returns the size of the largest batch that a partition accepts. Raises KafkaError if it has no log on this
    broker."""
    delete_before: Callable[[int, int], None]
    """Deletes the records of a partition of the topic before an offset."""
    periodic: Mapping[str, Callable[[ShareStateShard, int], Decision[None]]]
    """The periodic events, which start when the shard is loaded, by the keys of their timers."""


class ShareStateShard:
    """The share partitions of one partition."""

    def __init__(self, partition: int, surroundings: Surroundings) -> None:
        self.partition = partition
        self.config = surroundings.config
        self.image = surroundings.image
        self.delete_before = surroundings.delete_before
        self._surroundings = surroundings
        self.states: dict[SharePartitionKey, StoredState] = {}
        self.snapshots: dict[SharePartitionKey, int] = {}
        """The offset of each share partition's last snapshot, in ascending order."""
        self.last_offset = NO_OFFSET
        """The offset of the last record."""

    @property
    def batch_bytes_max(self) -> int:
        """The size of the largest batch that the partition accepts. Raises KafkaError if it has no log on this
        broker."""
        return self._surroundings.batch_bytes_max(self.partition)

    @property
    def superseded_before(self) -> int:
        """The offset before which all records are superseded by later ones, or -1 if there are no records."""
        return next(iter(self.snapshots.values()), self.last_offset)

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record. Raises MalformedMessage if it cannot be decoded."""
        kind, share_partition = read_key(key)
        if kind != SNAPSHOT:
            self._replay_update(share_partition, value)
        elif value is None:
            self.states.pop(share_partition, None)
            self.snapshots.pop(share_partition, None)
        else:
            self._put_snapshot(share_partition, read_snapshot(value))
            self.snapshots.pop(share_partition, None)
            self.snapshots[share_partition] = offset
        self.last_offset = offset

    def _put_snapshot(self, key: SharePartitionKey, state: StoredState) -> None:
        known = self.states.get(key)
        if known is not None and known.fenced_below > state.fenced_below:
            state = replace(state, fenced_below=known.fenced_below)
        self.states[key] = state

    def _replay_update(self, key: SharePartitionKey, value: bytes | None) -> None:
        if value is None:
            raise MalformedMessage("an update of a share partition has no value")
        update, batches = read_update(value)
        known = self.states.get(key)
        if known is None:
            return  # the share partition was deleted, or its snapshot is damaged
        start_offset = known.start_offset if update.start_offset == NO_OFFSET else update.start_offset
        self.states[key] = replace(
            known,
            leader_epoch=known.leader_epoch if update.leader_epoch < 0 else update.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=update.delivery_complete_count,
            batches=combined(known.batches, batches, start_offset),
            updates=known.updates + 1,
            fenced_below=max(known.fenced_below, update.leader_epoch),
        )

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """Do nothing: the records of this topic do not belong to transactions."""

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        """Return the timers of the periodic events."""
        return {key: Timer(0, event) for key, event in self._surroundings.periodic.items()}

    def unloaded(self) -> None:
        """Do nothing: the timers end with the shard."""
