"""What a follower asks of its leader for one partition, and what it does with the answer. No I/O, no clock.

A follower's log is a prefix of its leader's, or it is cut until it is one. Each fetch names the epoch of the
follower's last record; a leader whose log has that epoch end elsewhere answers where the two may have parted
(KIP-595), and the follower cuts and asks again. So nothing is ever cut because it is above a high watermark: what a
dead leader had told its followers is not lost by their restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.log import Log


class Position(NamedTuple):
    """Where a follower is: what its fetch says of one partition."""

    offset: int
    leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    high_watermark: int


def position_of(log: Log, leader_epoch: int) -> Position:
    """Where a follower with this log goes on, under the leader of ``leader_epoch``."""
    last = log.leader_epochs.latest_epoch
    return Position(
        log.log_end_offset,
        leader_epoch,
        NO_EPOCH if last is None else last,
        log.log_start_offset,
        log.high_watermark,
    )


class Wait(Enum):
    """Why a partition is left alone for a while."""

    METADATA = "the leader has moved, or does not know yet that it leads"
    LEADER = "the leader cannot answer"


@dataclass(frozen=True, slots=True)
class Append:
    """The records go behind the log's end; the high watermark and the log's start follow the leader's."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The logs have parted: remove what is at ``offset`` and after it, and ask again."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartAnew:
    """The leader no longer has what comes next: remove everything, and go on at ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class AskForRange:
    """The leader's log does not reach to where this one ends: ask where it begins and ends (:func:`into_range`)."""


Step = Append | Cut | StartAnew | AskForRange | Wait

_APPEND = Append()
_ASK_FOR_RANGE = AskForRange()
_UNTIL_METADATA = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


def step_for(log: Log, data: FetchResponse.PartitionData) -> Step:
    """What a follower does about the leader's answer to a fetch from its log's end."""
    code = data.error_code
    if code:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return _ASK_FOR_RANGE
        return Wait.METADATA if code in _UNTIL_METADATA else Wait.LEADER
    diverging = data.diverging_epoch
    if diverging.epoch == NO_EPOCH:
        return _APPEND
    own_epoch, own_end = log.end_offset_for_epoch(diverging.epoch)
    return Cut(parted_at(own_epoch, own_end, diverging.epoch, diverging.end_offset, log.log_end_offset))


def parted_at(own_epoch: int, own_end: int, leader_epoch: int, leader_end: int, log_end: int) -> int:
    """Up to where a follower's log may agree with its leader's.

    The leader names the last epoch that both may have and where it ends there; ``own_epoch`` is the largest one up to
    it that this log has, ending at ``own_end``. Where that is a smaller one, the leader is asked about it next.
    """
    if own_epoch == NO_EPOCH:
        return min(leader_end, log_end)
    if own_epoch < leader_epoch:
        return min(own_end, log_end)
    return min(own_end, leader_end, log_end)


def into_range(log_end: int, leader_start: int, leader_end: int) -> Cut | StartAnew | None:
    """What a follower does whose log's end lies outside of its leader's log; None where it does not, after all.

    Beyond the leader's end: records that no longer count, as after an unclean election. Before its start: the follower
    was away for longer than the records are kept.
    """
    if leader_end < log_end:
        return Cut(leader_end)
    return StartAnew(leader_start) if log_end < leader_start else None
