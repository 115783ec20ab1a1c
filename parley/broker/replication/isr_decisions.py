"""Which followers are in sync, and which ISR a leader requests (KIP-497). No I/O, no clock.

A member leaves the ISR when it has not been caught up for ``replica.lag.time.max.ms``. A follower joins when it has all
committed records and all records from before the leader's epoch, shows the required epoch (docs/coordination.md,
"Stored epochs"), has been caught up within that time, and fetches with the current epoch of its broker, which must be
alive. (A broker that has restarted has another epoch, and perhaps an empty disk: KIP-903.) Fetches before the
controller's last change in the partition's state do not count. Before a follower removes its log, it stops fetching and
has the controller change the state. So it does not join until it has fetched its log again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.replication.follower_progress import FollowerProgress
from parley.light_dataclasses import dataclass
from parley.protocol.sentinels import NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderSnapshot:
    """A leader's view of a partition when it checks its followers."""

    broker_id: int
    state: PartitionState
    followers: Mapping[int, FollowerProgress]
    log_end_offset: int
    high_watermark: int
    epoch_start_offset: int
    """The log end offset at the start of this leader's epoch."""


def is_eligible(broker: BrokerRegistration | None, fetched_with_epoch: int) -> bool:
    """Return True if a broker may be in the ISR: it is registered and not fenced, and ``fetched_with_epoch``, the
    broker epoch in its fetches, is its current epoch or missing (``NO_EPOCH``)."""
    return broker is not None and not broker.fenced and fetched_with_epoch in (NO_EPOCH, broker.epoch)


def may_join_isr(view: LeaderSnapshot, progress: FollowerProgress, now_s: float, lag_max_s: float) -> bool:
    """Return True if a follower has everything that it needs to join the ISR, and would not leave it again right
    away."""
    return (
        progress.has_fetched
        and progress.counted_end >= max(view.high_watermark, view.epoch_start_offset)
        and now_s - progress.last_fetched_s <= lag_max_s
        and progress.is_caught_up(view.log_end_offset, now_s, lag_max_s)
    )


def is_lagging(view: LeaderSnapshot, replica: int, now_s: float, lag_max_s: float) -> bool:
    """Return True if a member must leave the ISR because it is not caught up. The leader itself never lags."""
    progress = view.followers.get(replica)
    return replica != view.broker_id and (
        progress is None or not progress.is_caught_up(view.log_end_offset, now_s, lag_max_s)
    )


def wanted_isr(
    view: LeaderSnapshot, brokers: Mapping[int, BrokerRegistration], now_s: float, lag_max_s: float
) -> tuple[int, ...]:
    """Return the ISR that the partition should have; the object in ``view.state`` if the ISR should not change."""
    isr = view.state.isr
    staying = [replica for replica in isr if not is_lagging(view, replica, now_s, lag_max_s)]
    joining = [
        replica
        for replica, progress in view.followers.items()
        if replica not in isr
        and may_join_isr(view, progress, now_s, lag_max_s)
        and is_eligible(brokers.get(replica), progress.broker_epoch)
    ]
    return isr if len(staying) == len(isr) and not joining else (*staying, *joining)


def epochs_of(view: LeaderSnapshot, isr: Iterable[int], own_epoch: int) -> list[tuple[int, int]]:
    """Return the members of an ISR, each with the broker epoch in its fetches. This broker has ``own_epoch``; a member
    that has not fetched has ``NO_EPOCH``."""
    return [
        (replica, own_epoch if replica == view.broker_id else _epoch(view.followers.get(replica))) for replica in isr
    ]


def _epoch(progress: FollowerProgress | None) -> int:
    return NO_EPOCH if progress is None else progress.broker_epoch
