"""What a follower does with its leader's response for a partition: append, truncate its log, or wait. No I/O, no clock.

A follower's log must be a prefix of its leader's log; otherwise it is truncated until it is one. Each fetch names the
epoch of the follower's last record. If that epoch is missing from the leader's log, or ends earlier there, the leader
returns an epoch and an offset at which the logs may still agree (KIP-595); the follower truncates and fetches again. So
nothing is truncated merely because it is above a high watermark: records that a dead leader had replicated survive a
restart of its followers.

A follower that has not fetched tombstones that compaction has removed from the leader's log would keep the records that
they delete. It fetches the log from the beginning (docs/storage.md, "Replicas that were away").
"""

from __future__ import annotations

from enum import Enum

from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.storage.log import Log


class Backoff(Enum):
    """Why a partition is fetched again only after a pause."""

    METADATA = "the leader has moved, or does not know yet that it leads"
    LEADER = "the leader cannot serve the partition"


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records, and adopt the leader's high watermark and log start offset."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """The logs have diverged: remove the records from ``offset`` on, and fetch again."""

    offset: int


@dataclass(frozen=True, slots=True)
class TruncateFully:
    """The leader no longer has the next records: remove everything, and fetch from ``offset``."""

    offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """Remove everything, and fetch from ``offset``.

    The leader has removed tombstones that this log has not fetched, or this log is damaged and no replica can heal it.
    The new copy of the leader's log may lack tombstones below ``tombstones_removed_up_to``, as the leader's log does.
    """

    offset: int
    tombstones_removed_up_to: int


class Loss(Enum):
    """The reason why a truncation removes committed records, or NONE."""

    NONE = "it removes none"
    EXPLAINED = "an unclean election has given them up, or the topic allows such elections"
    UNEXPLAINED = "the leader should have them"


@dataclass(frozen=True, slots=True)
class AskForRange:
    """This log ends outside the leader's log: ask the leader for its start and end offsets (``step_for_range``)."""


Removal = Truncate | TruncateFully | StartOver
Step = Append | Removal | AskForRange | Backoff

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
    """Return the follower's next step after the leader's response to a fetch from the end of the follower's log."""
    code = data.error_code
    if code:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return _ASK_FOR_RANGE
        return Backoff.METADATA if code in _UNTIL_METADATA else Backoff.LEADER
    diverging = data.diverging_epoch
    if diverging.epoch == NO_EPOCH:
        removed_up_to = data.snapshot_id.end_offset
        if removed_up_to > log.log_end_offset and removed_up_to > log.tombstones_removed_up_to:
            return StartOver(data.log_start_offset, removed_up_to)
        return _APPEND
    own_epoch, own_end = log.end_offset_for_epoch(diverging.epoch)
    return Truncate(truncation_offset(own_epoch, own_end, diverging.epoch, diverging.end_offset, log.log_end_offset))


def truncation_offset(own_epoch: int, own_end: int, leader_epoch: int, leader_end: int, log_end: int) -> int:
    """Return the offset up to which a follower's log may agree with its leader's.

    ``leader_epoch`` is the last epoch that both logs may contain, according to the leader, and ``leader_end`` is where
    it ends in the leader's log. ``own_epoch`` is the largest epoch in this log that is not above it, and ends at
    ``own_end``. If ``own_epoch`` is smaller, the next fetch asks the leader about it.
    """
    if own_epoch == NO_EPOCH:
        return min(leader_end, log_end)
    if own_epoch < leader_epoch:
        return min(own_end, log_end)
    return min(own_end, leader_end, log_end)


def loss_by(step: Truncate | TruncateFully, log: Log, unclean_epoch: int) -> Loss:
    """Return whether a truncation removes committed records, that is, records below the high watermark that this log
    knows, and if so, whether that is explained.

    ``unclean_epoch`` is the last leader epoch of the partition that started with an unclean election or recovery. It
    explains the loss of records if the last record of this log is older than that epoch.
    """
    if step.offset >= log.high_watermark:
        return Loss.NONE
    last_epoch = log.latest_epoch
    if log.config.unclean_leader_election_enable or (NO_EPOCH if last_epoch is None else last_epoch) < unclean_epoch:
        return Loss.EXPLAINED
    return Loss.UNEXPLAINED


def step_for_range(log_end: int, leader_start: int, leader_end: int) -> Truncate | TruncateFully | None:
    """Return the step that moves the end of a follower's log into the range of its leader's log; None if it is already
    there.

    Records beyond the leader's end no longer count, for example after an unclean election. If the log ends before the
    leader's start, the follower was offline for longer than the retention time.
    """
    if leader_end < log_end:
        return Truncate(leader_end)
    return TruncateFully(leader_start) if log_end < leader_start else None
