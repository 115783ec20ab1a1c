"""Which followers are in sync, and which ISR a leader therefore wants (KIP-497). No I/O, no clock.

A member falls out when it has not been caught up for ``replica.lag.time.max.ms``. A follower comes in as soon as it has
what is committed and what the leader began its term with, if its broker is alive under the epoch it fetches with
(KIP-903: one that restarted, perhaps without its disk, is another).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.replication.follower_progress import FollowerProgress
from parley.protocol.sentinels import NO_EPOCH


@dataclass(frozen=True, slots=True)
class LeaderSnapshot:
    """What a leader knows of one partition when it looks at its followers."""

    broker_id: int
    state: PartitionState
    followers: Mapping[int, FollowerProgress]
    log_end_offset: int
    high_watermark: int
    term_start: int
    """The log's end when this leader's term began."""


def is_eligible(broker: BrokerRegistration | None, fetched_with_epoch: int) -> bool:
    """Whether a broker may be in sync at all."""
    return broker is not None and not broker.fenced and fetched_with_epoch in (NO_EPOCH, broker.epoch)


def has_arrived(view: LeaderSnapshot, progress: FollowerProgress, now_s: float, lag_max_s: float) -> bool:
    """Whether a follower has all that it must have to come in, fetches still, and does not lag: or it would be let go
    again at once."""
    return (
        progress.log_end_offset >= max(view.high_watermark, view.term_start)
        and now_s - progress.last_fetched_s <= lag_max_s
        and progress.is_caught_up(view.log_end_offset, now_s, lag_max_s)
    )


def is_lagging(view: LeaderSnapshot, replica: int, now_s: float, lag_max_s: float) -> bool:
    """Whether a member of the ISR has to go."""
    progress = view.followers.get(replica)
    return replica != view.broker_id and (
        progress is None or not progress.is_caught_up(view.log_end_offset, now_s, lag_max_s)
    )


def wanted_isr(
    view: LeaderSnapshot, brokers: Mapping[int, BrokerRegistration], now_s: float, lag_max_s: float
) -> tuple[int, ...]:
    """The ISR as it should be; that of ``view.state`` itself where nothing has to change."""
    isr = view.state.isr
    stays = [replica for replica in isr if not is_lagging(view, replica, now_s, lag_max_s)]
    comes = [
        replica
        for replica, progress in view.followers.items()
        if replica not in isr
        and has_arrived(view, progress, now_s, lag_max_s)
        and is_eligible(brokers.get(replica), progress.broker_epoch)
    ]
    return isr if len(stays) == len(isr) and not comes else (*stays, *comes)


def epochs_of(view: LeaderSnapshot, isr: Iterable[int], own_epoch: int) -> list[tuple[int, int]]:
    """The members with the broker epochs under which they are known to have what they have."""
    return [
        (replica, own_epoch if replica == view.broker_id else _epoch(view.followers.get(replica))) for replica in isr
    ]


def _epoch(progress: FollowerProgress | None) -> int:
    return NO_EPOCH if progress is None else progress.broker_epoch
