"""Roles, epochs and the high watermark of one replica."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from pathlib import Path

import pytest

from parley.broker.metadata.changes import PartitionsAdded
from parley.broker.metadata.types import PartitionState
from parley.broker.replication.follower_progress import NEVER_S
from parley.broker.replication.partition import Isolation, Partition
from parley.broker.replication.unhealed_range import UnhealedRange
from parley.broker.runtime.purgatory import Delayed
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage.checkpoints import INT64_MAX
from parley.storage.compaction.tombstone_checkpoint import CHECKPOINT, TombstoneCheckpoint
from parley.storage.damage.damaged_ranges import DamagedRange
from parley.storage.leader_epoch_cache import EpochStart
from parley.storage.log_config import LogConfig
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, at, batch


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.tasks.close()


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


async def test_alone_everything_is_committed_at_once(bench: Bench) -> None:
    await bench.create("t")
    bench.write("t", 3)
    partition = bench.partition("t")
    assert partition.high_watermark == 3
    assert [partition.end_visible(isolation) for isolation in Isolation] == [3, 3, 3]


async def test_the_high_watermark_is_the_lowest_end_offset_in_the_isr(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER, 3))
    bench.alter("t", isr=(BROKER, OTHER))
    bench.write("t", 5)
    partition = bench.partition("t")
    assert partition.high_watermark == 0
    assert partition.end_visible(Isolation.LOG_END) == 5
    partition.follower_fetched(OTHER, 3, 0, at(1.0))
    assert partition.high_watermark == 3, "broker 3 is not in sync: the high watermark does not wait for it"
    assert partition.followers.progress[OTHER].last_caught_up_s == NEVER_S
    partition.follower_fetched(OTHER, 5, 0, at(2.0))
    assert partition.high_watermark == 5
    assert partition.followers.progress[OTHER].last_caught_up_s == 2.0
    partition.follower_fetched(OTHER, 4, 0, at(3.0))
    assert partition.high_watermark == 5, "it never decreases"


async def test_a_partition_says_in_messages_whether_it_leads(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    assert repr(bench.partition("t")) == "Partition(t-0, leader)"
    bench.alter("t", leader=OTHER)
    assert repr(bench.partition("t")) == "Partition(t-0, follower)"


async def test_a_shrunk_isr_commits_the_records_that_it_has(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 5)
    bench.alter("t", isr=(BROKER,))
    assert bench.partition("t").high_watermark == 5


async def test_the_proposed_isr_counts_though_the_present_one_is_published_again(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", isr=(BROKER,))
    partition = bench.partition("t")
    partition.followers.propose_isr((BROKER, OTHER))
    partition.change(replace(partition.state))  # what the answer said, from the metadata
    bench.write("t", 1)
    assert partition.followers.has_proposed_isr
    assert partition.high_watermark == 0, "once OTHER is in sync it must have what is committed"
    bench.alter("t", isr=(BROKER,))
    assert not partition.followers.has_proposed_isr
    assert partition.high_watermark == 1


@pytest.mark.parametrize(("elr", "last_known_elr"), [((OTHER,), ()), ((), (OTHER,))])
async def test_the_high_watermark_waits_while_replicas_outside_the_isr_must_have_it(
    bench: Bench, elr: tuple[int, ...], last_known_elr: tuple[int, ...]
) -> None:
    """``min.insync.replicas`` was lowered, and the controller has not cleared the ELR and the last known ELR yet."""
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", isr=(BROKER,), elr=elr, last_known_elr=last_known_elr)
    bench.write("t")
    assert bench.partition("t").high_watermark == 0
    bench.alter("t", elr=(), last_known_elr=())
    assert bench.partition("t").high_watermark == 1


async def test_a_follower_or_an_unknown_replica_does_not_move_the_high_watermark(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    partition = bench.partition("t")
    for is_joining in (True, False):
        partition.set_joining(99, is_joining)
    assert partition.high_watermark == 0, "broker 99 is no replica"
    bench.alter("t", leader=OTHER)
    partition.withdraw_isr()
    assert partition.high_watermark == 0, "only the leader moves it by itself"


async def test_a_new_leader_knows_nothing_of_its_followers(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    partition = bench.partition("t")
    partition.follower_fetched(OTHER, 2, 0, at(0.0))
    bench.alter("t", leader=OTHER)
    assert not partition.is_leader
    assert not partition.followers.progress
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(), acks=1, now_ms=0)
    assert code_of(refused) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.alter("t", leader=BROKER)
    bench.write("t", 2)
    assert partition.high_watermark == 2
    assert partition.leader_epoch == 2
    assert partition.log.end_offset_for_epoch(0) == (0, 2)
    assert partition.log.end_offset_for_epoch(2) == (2, 4)
    partition.follower_fetched(OTHER, 4, 0, at(1.0))
    bench.alter("t", leader=BROKER)
    assert partition.followers.progress[OTHER].last_fetched_s == NEVER_S, (
        "it was elected again: they may have truncated"
    )


async def test_a_replica_waits_while_its_log_knows_a_higher_leader_epoch(bench: Bench) -> None:
    """The coordination store was rolled back. To lead under a lower epoch, the log would forget where epochs began."""
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    log = bench.partition("t").log
    log.leader_epochs.assign(7, 1)
    metrics, state = bench.partition("t").counters, replace(bench.partition("t").state, leader_epoch=6)
    purgatories = bench.partition("t")._purgatories
    partition = Partition("t", UUID(int=1), 0, broker_id=BROKER, state=state, purgatories=purgatories, counters=metrics)
    assert partition.is_leader
    assert not partition.is_outdated, "nothing is known before the log is open"
    partition.opened(log)
    assert partition.is_outdated
    assert not partition.is_leader
    with pytest.raises(KafkaError) as refused:
        partition.append(batch(), acks=1, now_ms=0)
    assert code_of(refused) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.leader_epochs.entries == (EpochStart(0, 0), EpochStart(7, 1))
    partition.change(replace(state, partition_epoch=9))
    assert not partition.is_leader
    partition.change(replace(state, leader_epoch=8, partition_epoch=1))
    assert partition.is_leader
    assert not partition.is_outdated
    assert log.leader_epochs.entries[-1] == EpochStart(8, 2)


async def test_an_outdated_state_changes_nothing_and_the_leader_epoch_counts_first(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    partition = bench.partition("t")
    present = replace(partition.state, leader_epoch=5, partition_epoch=40)
    for state in (present, replace(present, partition_epoch=39), replace(present, leader_epoch=4, partition_epoch=41)):
        partition.change(state)
        assert partition.state == present
    lifted = replace(present, leader_epoch=6, partition_epoch=3)
    partition.change(lifted)
    assert partition.state == lifted, "the controller of a restored store counts partition epochs from an older one"


async def test_a_new_leader_must_learn_the_high_watermark(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    partition = bench.partition("t")
    assert not partition.knows_high_watermark
    partition.follower_fetched(OTHER, 2, 0, at(0.0))
    assert partition.knows_high_watermark


async def test_a_new_leader_counts_a_follower_that_shows_its_epoch(bench: Bench) -> None:
    """Its followers may acknowledge records of earlier epochs, and no record shows its own epoch yet."""
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    partition = bench.partition("t")
    assert partition.required_epoch == 2
    partition.follower_fetched(OTHER, 2, 0, at(1.0), counts=False)
    assert (partition.high_watermark, partition.log.stored_epoch) == (0, 0)
    progress = partition.followers.progress[OTHER]
    assert (progress.log_end_offset, progress.counted_end) == (2, -1)
    assert not progress.is_caught_up(2, 1.0, 10.0)
    partition.follower_fetched(OTHER, 2, 0, at(2.0), counts=True)
    assert (partition.high_watermark, partition.log.stored_epoch) == (2, 2)
    assert progress.is_caught_up(2, 2.0, 10.0)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    assert partition.required_epoch == 2, "everything is committed, so no follower can acknowledge older records"


async def test_an_idle_leader_stores_nothing(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER)
    partition = bench.partition("t")
    partition.follower_fetched(OTHER, 0, 0, at(1.0))
    assert (partition.required_epoch, partition.log.stored_epoch) == (-1, -1)
    assert not partition.log.leader_epochs.path.exists()


async def test_a_leader_alone_in_the_isr_stores_its_epoch_with_the_first_follower(bench: Bench) -> None:
    """If the store was rolled back, a broker may lead alone although it lacks records: its log must not win."""
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    bench.alter("t", leader=OTHER)
    bench.alter("t", leader=BROKER, isr=(BROKER,))
    partition = bench.partition("t")
    assert (partition.high_watermark, partition.log.stored_epoch) == (2, 0)
    partition.follower_fetched(OTHER, 2, 0, at(1.0))
    assert partition.log.stored_epoch == 2


async def test_epochs_are_checked(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", leader=OTHER)
    partition = bench.partition("t")
    for epoch, code in (
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(KafkaError) as refused:
            partition.check_leader(epoch)
        assert code_of(refused) == code


async def test_a_large_epoch_is_compared_by_its_value(bench: Bench) -> None:
    await bench.create("t")
    bench.alter("t", leader_epoch=1000)
    bench.partition("t").check_leader(int("1000"))


async def test_a_stranger_is_no_follower(bench: Bench) -> None:
    await bench.create("t")
    with pytest.raises(KafkaError):
        bench.partition("t").follower_fetched(99, 0, 0, at(0.0))


async def test_replicas_needed_for_acks_all(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=3))
    partition = bench.partition("t")
    assert partition.min_in_sync == 2, "no more than there are"
    assert partition.has_enough_replicas
    bench.alter("t", isr=(BROKER,))
    assert not partition.has_enough_replicas


async def test_a_lost_log_is_an_error_that_is_retried(bench: Bench) -> None:
    await bench.create("t")
    partition = bench.partition("t")
    bench.partitions.lose_logs([partition.log])
    assert partition.has_failed
    for use in (lambda: partition.log, lambda: partition.append(batch(), acks=1, now_ms=0)):
        with pytest.raises(KafkaError) as refused:
            use()
        assert code_of(refused) == ErrorCode.KAFKA_STORAGE_ERROR
    assert partition.append_outcome(0) == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("config", "must_flush"),
    [
        (LogConfig(flush_messages=1), True),
        (LogConfig(flush_messages=2), False),
        (LogConfig(flush_ms=1000), False),
    ],
)
async def test_an_append_waits_for_a_flush_only_if_flush_messages_says_so(
    bench: Bench, config: LogConfig, must_flush: bool
) -> None:
    """The broker flushes in the background when ``flush.ms`` has passed: no request waits for that."""
    await bench.create("t", config=config)
    bench.write("t", 1)
    assert bench.partition("t").must_flush(NOW_MS + 1000) is must_flush


async def test_fetched_records_are_flushed_first_only_if_flush_messages_says_so(bench: Bench) -> None:
    await bench.create("t", replicas=(OTHER, BROKER), leader=OTHER)
    await bench.create("flushed", replicas=(OTHER, BROKER), leader=OTHER, config=LogConfig(flush_messages=2))
    for topic in ("t", "flushed"):
        partition = bench.partition(topic)
        assert not partition.must_flush_fetched
        partition.append_fetched(batch(), high_watermark=0, log_start_offset=0)
        assert not partition.must_flush_fetched
        partition.append_fetched(
            build([Record(0, 1, None, b"v", ())], base_offset=1), high_watermark=0, log_start_offset=0
        )
        assert partition.must_flush_fetched is (topic == "flushed")
        partition.append_fetched(
            build([Record(0, 1, None, b"v", ())], base_offset=2), high_watermark=0, log_start_offset=0
        )
        assert partition.must_flush_fetched is (topic == "flushed"), "also beyond the bound"


async def test_the_high_watermark_of_a_follower_never_goes_back(bench: Bench) -> None:
    await bench.create("t", replicas=(OTHER, BROKER), leader=OTHER)
    partition = bench.partition("t")
    partition.append_fetched(batch(), high_watermark=1, log_start_offset=0)
    partition.append_fetched(None, high_watermark=0, log_start_offset=0)
    assert partition.log.high_watermark == 1


@pytest.mark.parametrize(("damaged", "is_inside"), [((2, 8), True), ((3, 5), True), ((1, 5), False), ((3, 9), False)])
async def test_a_range_without_a_copy_may_lie_inside_one_that_no_replica_could_give(
    bench: Bench, damaged: tuple[int, int], is_inside: bool
) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    partition = bench.partition("t")
    partition.unhealed = (UnhealedRange(DamagedRange(2, 8, "altered"), frozenset({OTHER})),)
    assert partition.has_no_copy(DamagedRange(*damaged, "altered")) is is_inside
    assert partition.is_lost(DamagedRange(*damaged, "altered")) is is_inside


@pytest.mark.parametrize(
    ("replicas", "lacked_by", "ends", "is_lost"),
    [
        ((BROKER,), set(), {}, True),
        ((BROKER, OTHER, 3), {OTHER, 3}, {}, True),
        ((BROKER, OTHER, 3), {OTHER}, {}, False),
        ((BROKER, OTHER, 3), {OTHER}, {3: 2}, True),
        ((BROKER, OTHER, 3), {OTHER}, {3: 3}, False),
    ],
    ids=["no other replica", "both answered", "one is down", "one ends before", "one ends inside"],
)
async def test_a_range_is_lost_only_if_no_replica_of_the_assignment_can_have_it(
    bench: Bench, replicas: tuple[int, ...], lacked_by: set[int], ends: dict[int, int], is_lost: bool
) -> None:
    """A replica that is down may have it."""
    await bench.create("t", replicas=replicas)
    bench.write("t", 9)
    partition, damage = bench.partition("t"), DamagedRange(2, 8, "altered")
    partition.unhealed = (UnhealedRange(damage, frozenset(lacked_by)),)
    for replica, end in ends.items():
        partition.follower_fetched(replica, end, 0, at(1.0))
    assert partition.is_lost(damage) is is_lost


class Watching(Delayed[None]):
    """Waits for a partition for ever, and records what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.amounts: list[int] = []

    def on_change(self, key: Hashable, amount: int) -> bool:
        self.amounts.append(amount)
        return True


async def test_fetches_that_wait_count_only_bytes_that_were_appended(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=2))
    partition = bench.partition("t")
    watching = Watching()
    partition._purgatories.fetch.watch(watching, (partition,), 60)
    partition.opened(partition.log)
    partition.change(replace(partition.state, partition_epoch=partition.state.partition_epoch + 1))
    partition.config_changed()
    partition.followers.propose_isr((BROKER, OTHER))
    partition.withdraw_isr()
    for is_joining in (True, False):
        partition.set_joining(OTHER, is_joining=is_joining)
    partition.follower_fetched(OTHER, 0, 0, at(0.0))
    assert watching.amounts == []
    bench.write("t", 1)
    (appended,) = watching.amounts
    assert appended == partition.log.size_bytes
    watching.cancel()


async def test_the_high_watermark_no_longer_waits_for_a_follower_that_has_fallen_back(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", isr=(BROKER,))
    partition = bench.partition("t")
    partition.set_joining(OTHER, is_joining=True)
    bench.write("t", 3)
    assert partition.high_watermark == 0
    partition.set_joining(OTHER, is_joining=False)
    assert partition.high_watermark == 3


async def test_compaction_keeps_the_tombstones_that_a_follower_has_yet_to_fetch(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER, 3))
    bench.write("t", 9)
    partition = bench.partition("t")
    kept_from = partition.log.tombstones_kept_from
    assert kept_from(100.0) == INT64_MAX, "no follower fetches"
    partition.follower_fetched(OTHER, 4, 0, at(100.0))
    partition.follower_fetched(3, 9, 0, at(150.0))
    assert kept_from(150.0) == 4
    assert kept_from(160.1) == 9, "a broker that does not fetch holds up nothing"
    bench.alter("t", leader=OTHER)
    assert kept_from(160.1) == INT64_MAX


async def test_an_unfinished_copy_that_leads_appends_records_with_tombstones_of_its_own(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.alter("t", leader=OTHER)
    log = bench.partition("t").log
    log.truncate_fully_and_start_at(0, tombstones_removed_up_to=1000)
    bench.alter("t", leader=BROKER)
    assert log.tombstones_removed_up_to == 0
    assert TombstoneCheckpoint(log.directory / CHECKPOINT, 0).up_to == 0


async def test_the_high_watermark_advances_when_fewer_replicas_are_required(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=2))
    bench.alter("t", isr=(BROKER,))
    bench.write("t", 3)
    partition = bench.partition("t")
    assert partition.high_watermark == 0
    partition.log.config = LogConfig(min_insync_replicas=1)
    partition.config_changed()
    assert partition.high_watermark == 3


async def test_requests_that_wait_for_a_partition_end_when_it_is_no_longer_hosted(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 1)
    partition = bench.partition("t")
    assert partition.append_outcome(0) is None
    waiting = Watching(), Watching()
    for purgatory, each in zip((partition._purgatories.produce, partition._purgatories.fetch), waiting, strict=True):
        purgatory.watch(each, (partition,), 60)
    partition.close()
    assert [each.amounts for each in waiting] == [[0], [0]]
    assert partition.append_outcome(0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for each in waiting:
        each.cancel()


async def test_a_follower_may_fall_back_before_the_log_is_open(bench: Bench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    known = bench.partition("t")
    state, purgatories, counters = known.state, known._purgatories, known.counters
    opening = Partition("t", UUID(int=1), 0, broker_id=BROKER, state=state, purgatories=purgatories, counters=counters)
    for is_joining in (True, False):
        opening.set_joining(OTHER, is_joining=is_joining)
    opening.config_changed()
    opening.withdraw_isr()
    assert not opening.is_open


# The table of partitions.


async def test_partitions_come_and_go_with_the_metadata(bench: Bench) -> None:
    await bench.create("t", 2)
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    assert len(bench.partitions) == 2
    bench.change(PartitionsAdded("t", (PartitionState((BROKER,), (BROKER,), BROKER),)))
    await bench.partitions.until_opened()
    assert [partition.index for partition in bench.partitions] == [0, 1, 2]
    assert bench.partition("t", 2).log.log_end_offset == 0
    bench.alter("elsewhere", replicas=(OTHER, BROKER))
    await bench.partitions.until_opened()
    assert bench.partition("elsewhere").is_open
    bench.alter("t", 1, replicas=(OTHER,), leader=OTHER)
    with pytest.raises(KafkaError) as moved:
        bench.partition("t", 1)
    assert code_of(moved) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.delete("t")
    with pytest.raises(KafkaError) as gone:
        bench.partition("t")
    assert code_of(gone) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    while bench.tasks:
        await bench.idle()
    assert sorted(bench.logs.deleted) == [("t", 0), ("t", 1), ("t", 2)]


async def test_a_partition_is_refused_until_it_is_open(bench: Bench) -> None:
    creating = bench.create("t")
    creating.send(None)  # the topic is known, its log is not there yet
    with pytest.raises(KafkaError) as early:
        _ = bench.partition("t").log
    assert code_of(early) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    creating.close()
    await bench.partitions.until_opened()
    assert bench.partition("t").log.log_end_offset == 0
