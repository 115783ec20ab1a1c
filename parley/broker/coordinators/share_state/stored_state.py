"""The state of a share partition at its share coordinator."""

from __future__ import annotations

from parley.broker.coordinators.share_state.persister import StateBatch
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredState:
    """The stored state of a share partition, including the bookkeeping of the share coordinator."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    created_ms: int
    written_ms: int
    """When the last snapshot was written. It is later than ``created_ms`` if the snapshot repeats the previous one."""
    batches: tuple[StateBatch, ...] = ()
    updates: int = 0
    """The number of updates since the last snapshot."""
    fenced_below: int = -1
    """The highest leader epoch so far. Leaders with an earlier epoch are fenced."""
