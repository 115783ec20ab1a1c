"""The decisions of followers and leaders, without logs or brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.metadata.types import BrokerRegistration, PartitionState
from parley.broker.replication.follower_progress import FetchClock, FollowerProgress
from parley.broker.replication.isr_decisions import LeaderSnapshot, epochs_of, is_eligible, may_join_isr, wanted_isr
from parley.broker.replication.truncation_decisions import (
    Append,
    AskForRange,
    Backoff,
    Loss,
    StartOver,
    Step,
    Truncate,
    TruncateFully,
    loss_by,
    step_for,
    step_for_range,
    truncation_offset,
)
from parley.protocol.errors import ErrorCode
from parley.protocol.messages.fetch import FetchResponse
from parley.protocol.sentinels import NO_EPOCH
from parley.protocol.uuids import UUID
from parley.storage.log_config import LogConfig

LAG_MAX_S = 10.0


# Where logs parted.


@pytest.mark.parametrize(
    ("own", "leader", "log_end", "cut"),
    [
        ((3, 50), (3, 40), 60, 40),  # the leader's epoch 3 ended earlier
        ((3, 40), (3, 50), 60, 40),  # this log's did, and went on with another epoch
        ((2, 30), (3, 50), 60, 30),  # epoch 3 is unknown here: go back to the one before, and ask again
        ((2, 55), (3, 50), 60, 55),  # also if it ended later here: the next fetch asks about epoch 2
        ((-1, -1), (3, 50), 60, 50),  # no epochs are known here
        ((3, 50), (3, 50), 45, 45),  # never beyond the end
    ],
)
def test_the_truncation_offset(own: tuple[int, int], leader: tuple[int, int], log_end: int, cut: int) -> None:
    assert truncation_offset(*own, *leader, log_end) == cut


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, AskForRange()),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Backoff.METADATA),
        (ErrorCode.FENCED_LEADER_EPOCH, Backoff.METADATA),
        (ErrorCode.UNKNOWN_TOPIC_ID, Backoff.METADATA),
        (ErrorCode.KAFKA_STORAGE_ERROR, Backoff.LEADER),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Backoff.LEADER),
    ],
)
def test_a_follower_s_step_after_an_error(code: ErrorCode, step: Step) -> None:
    log: Any = None  # an error says nothing about it
    failed = FetchResponse.PartitionData(partition_index=0, error_code=code, high_watermark=-1, records=None)
    assert step_for(log, failed) == step


@pytest.mark.parametrize(
    ("removed_up_to", "known", "step"),
    [
        (-1, 0, Append()),
        (99, 0, Append()),
        (100, 0, Append()),  # all of them were fetched
        (101, 0, StartOver(7, 101)),
        (101, 100, StartOver(7, 101)),
        (101, 101, Append()),  # fetched since they were removed
        (101, 200, Append()),
    ],
)
def test_a_follower_starts_over_if_it_lacks_removed_tombstones(removed_up_to: int, known: int, step: Step) -> None:
    log: Any = SimpleNamespace(log_end_offset=100, tombstones_removed_up_to=known)
    data = FetchResponse.PartitionData(
        partition_index=0,
        high_watermark=300,
        log_start_offset=7,
        snapshot_id=FetchResponse.SnapshotId(end_offset=removed_up_to, epoch=3),
        records=b"",
    )
    assert step_for(log, data) == step


def test_back_into_the_leader_s_range() -> None:
    assert step_for_range(100, 0, 80) == Truncate(80)
    assert step_for_range(100, 120, 200) == TruncateFully(120)
    assert step_for_range(100, 0, 100) is None


@pytest.mark.parametrize(
    ("step", "last_epoch", "unclean_epoch", "is_allowed", "loss"),
    [
        (Truncate(50), 4, -1, False, Loss.NONE),  # at the high watermark
        (Truncate(49), 4, -1, False, Loss.UNEXPLAINED),
        (Truncate(49), 4, 4, False, Loss.UNEXPLAINED),  # the log has followed the leader of that epoch
        (Truncate(49), 4, 5, False, Loss.EXPLAINED),
        (Truncate(49), None, 0, False, Loss.EXPLAINED),
        (Truncate(49), 4, -1, True, Loss.EXPLAINED),
        (TruncateFully(120), 4, -1, False, Loss.NONE),
        (TruncateFully(0), 4, -1, False, Loss.UNEXPLAINED),
    ],
)
def test_the_loss_of_committed_records_by_a_truncation(
    step: Truncate | TruncateFully, last_epoch: int | None, unclean_epoch: int, is_allowed: bool, loss: Loss
) -> None:
    log: Any = SimpleNamespace(
        high_watermark=50,
        latest_epoch=last_epoch,
        config=LogConfig(unclean_leader_election_enable=is_allowed),
    )
    assert loss_by(step, log, unclean_epoch) is loss


# When a follower is caught up.


def fetched(progress: FollowerProgress, clock: FetchClock, now_s: float, offset: int, leader_end: int) -> None:
    clock.fetched(now_s)
    progress.fetched(offset, 0, leader_end, clock)


def test_a_fetch_at_the_end_is_caught_up() -> None:
    progress, clock = FollowerProgress(), FetchClock()
    fetched(progress, clock, 1.0, 5, 10)
    assert not progress.is_caught_up(10, 1.0, LAG_MAX_S)
    fetched(progress, clock, 2.0, 10, 10)
    assert progress.last_caught_up_s == 2.0
    assert progress.is_caught_up(10, 1000.0, LAG_MAX_S), "there is nothing it lacks"
    assert progress.is_caught_up(11, 12.0, LAG_MAX_S)
    assert not progress.is_caught_up(11, 12.1, LAG_MAX_S)


def test_under_a_steady_load_the_end_at_the_fetch_before_counts() -> None:
    progress, clock = FollowerProgress(), FetchClock()
    for step in range(10):
        fetched(progress, clock, float(step), 10 * step, 10 * (step + 1))
    assert progress.last_caught_up_s == 8.0


def test_a_slow_follower_is_never_caught_up() -> None:
    progress, clock = FollowerProgress(), FetchClock()
    for step in range(1, 10):
        fetched(progress, clock, float(step), 9 * step, 10 * (step + 1))
    assert not progress.is_caught_up(100, 9.0, LAG_MAX_S)


def test_the_fetches_of_a_session_count_for_the_partitions_they_do_not_name() -> None:
    progress, clock = FollowerProgress(), FetchClock()
    fetched(progress, clock, 1.0, 10, 10)
    clock.fetched(50.0)
    assert progress.last_caught_up_s == 50.0
    fetched(progress, clock, 51.0, 10, 12)  # appended to between the two
    assert progress.last_caught_up_s == 50.0
    other = FetchClock()
    fetched(progress, other, 52.0, 12, 20)  # in a new session
    assert progress.last_caught_up_s == 51.0


# Which ISR a leader wants.


def view(followers: dict[int, FollowerProgress], **facts: int) -> LeaderSnapshot:
    state = PartitionState((1, 2, 3), (1, 2), 1)
    return LeaderSnapshot(
        1, state, followers, **{"log_end_offset": 20, "high_watermark": 10, "epoch_start_offset": 15, **facts}
    )


def follower(offset: int, now_s: float, *, epoch: int = 1, leader_end: int = 20) -> FollowerProgress:
    progress = FollowerProgress()
    fetched(progress, FetchClock(), now_s, offset, leader_end)
    progress.broker_epoch = epoch
    return progress


def broker(broker_id: int, *, epoch: int = 1, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, epoch, UUID(int=broker_id), (), fenced=fenced)


BROKERS = {i: broker(i) for i in (1, 2, 3)}


def test_a_follower_with_the_log_of_the_epochs_start_joins() -> None:
    for offset, arrived in ((9, False), (10, False), (14, False), (15, True), (20, True)):
        followers = {2: follower(20, 0.0), 3: follower(offset, 0.0, leader_end=offset)}
        assert may_join_isr(view(followers), followers[3], 0.0, LAG_MAX_S) is arrived
        assert wanted_isr(view(followers), BROKERS, 0.0, LAG_MAX_S) == ((1, 2, 3) if arrived else (1, 2))


def test_a_follower_that_would_leave_at_once_does_not_join() -> None:
    """The high watermark and the start of the epoch may lie far behind the leader's log end."""
    followers = {2: follower(20, 0.0), 3: follower(15, 0.0, leader_end=20)}
    assert wanted_isr(view(followers), BROKERS, 0.0, LAG_MAX_S) == (1, 2)
    member = LeaderSnapshot(1, PartitionState((1, 2, 3), (1, 2, 3), 1), followers, 20, 10, 15)
    assert wanted_isr(member, BROKERS, 0.0, LAG_MAX_S) == (1, 2)


def test_a_broker_that_is_fenced_or_has_another_epoch_does_not_join() -> None:
    followers = {2: follower(20, 0.0), 3: follower(20, 0.0)}
    for changed in (broker(3, fenced=True), broker(3, epoch=2)):
        assert wanted_isr(view(followers), {**BROKERS, 3: changed}, 0.0, LAG_MAX_S) == (1, 2)
    assert not is_eligible(None, 1)
    assert is_eligible(broker(3), NO_EPOCH)


def test_a_follower_that_has_stopped_fetching_does_not_join() -> None:
    followers = {2: follower(20, 0.0), 3: follower(20, 0.0)}
    assert wanted_isr(view(followers), BROKERS, LAG_MAX_S, LAG_MAX_S) == (1, 2, 3)
    assert wanted_isr(view(followers), BROKERS, LAG_MAX_S + 1, LAG_MAX_S) == (1, 2)


def test_a_lagging_member_leaves_and_an_unchanged_isr_is_the_same_object() -> None:
    followers = {2: follower(20, 0.0), 3: follower(0, 0.0)}
    unchanged = view(followers)
    assert wanted_isr(unchanged, BROKERS, 5.0, LAG_MAX_S) is unchanged.state.isr
    behind = view(followers, log_end_offset=21)
    assert wanted_isr(behind, BROKERS, 10.0, LAG_MAX_S) == (1, 2)
    assert wanted_isr(behind, BROKERS, 10.1, LAG_MAX_S) == (1,)


def test_members_are_named_with_the_epochs_they_fetched_with() -> None:
    followers = {2: follower(20, 0.0, epoch=7), 3: FollowerProgress()}
    assert epochs_of(view(followers), (1, 2, 3), 5) == [(1, 5), (2, 7), (3, NO_EPOCH)]
