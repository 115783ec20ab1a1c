"""The controller's decisions if the coordination store is older than the brokers' logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.brokers import register_broker
from parley.broker.controller.distrusted_partitions import distrust_all, distrusted
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy
from parley.broker.controller.elections.unclean_leader_choice import Quorum, recover_leader, recover_leaders
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState, TopicImage
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID

TOPIC, DIRECTORY, OTHER_DIRECTORY = UUID(int=100), UUID(int=200), UUID(int=201)
STATE = PartitionState(
    (1, 2, 3),
    (1, 2),
    1,
    leader_epoch=5,
    partition_epoch=40,
    elr=(3,),
    directories=(DIRECTORY, DIRECTORY, DIRECTORY),
    unclean_epoch=2,
)


def broker(number: int, epoch: int = 1, *, incarnation: int = 0, fenced: bool = False) -> BrokerRegistration:
    incarnation_id = UUID(int=incarnation or number)
    return BrokerRegistration(number, epoch, incarnation_id, (), fenced=fenced, log_dirs=(DIRECTORY,))


def image(*states: PartitionState) -> MetadataImage:
    return MetadataImage(
        "c",
        brokers={number: broker(number) for number in (1, 2, 3)},
        topics={"t": TopicImage("t", TOPIC, states)},
        topic_names={TOPIC: "t"},
    )


def rules(image: MetadataImage, topic: str) -> ElectionRules:
    return ElectionRules(min_insync_replicas=2)


def report(number: int, *logs: ReplicaReport) -> BrokerReport:
    return BrokerReport(UUID(int=number), {(TOPIC, index): log for index, log in enumerate(logs)})


def log(epoch: int, end: int = 10, *, current: int | None = None) -> ReplicaReport:
    current_epoch = epoch if current is None else current
    return ReplicaReport(epoch, end, end, current_leader_epoch=current_epoch, directory=OTHER_DIRECTORY)


def test_no_replica_of_a_distrusted_partition_is_eligible_and_all_are_awaited() -> None:
    state = distrusted(STATE)
    assert (state.isr, state.elr, state.leader, state.last_known_elr) == ((), (), NO_LEADER, (1, 2, 3))
    assert (state.leader_epoch, state.partition_epoch, state.unclean_epoch) == (6, 41, 2)
    assert state.directories == (), "a replica is not lost because it was moved since the backup"
    assert distrusted(STATE, 9).leader_epoch == 10
    assert distrusted(STATE, 3).leader_epoch == 6


def test_all_partitions_are_distrusted_and_the_directories_of_brokers_that_are_away_forgotten() -> None:
    before = image(STATE, replace(STATE, leader=2))
    decision = distrust_all(before, {UUID(int=1)})
    assert (decision.result.partitions, decision.result.quorums) == (2, {}), "min.insync.replicas is not known"
    after = before.with_changes(decision.changes)
    assert after.topics["t"].partitions == (distrusted(STATE), distrusted(replace(STATE, leader=2)))
    assert [after.brokers[number].log_dirs for number in (1, 2, 3)] == [(DIRECTORY,), (), ()]


@pytest.mark.parametrize(
    ("known", "min_insync_replicas", "awaited"),
    [
        (replace(STATE, isr=(2, 1), elr=()), 2, (1, 2)),
        (replace(STATE, isr=(2,), elr=(3,)), 2, (2, 3)),
        (replace(STATE, isr=(1, 2, 3), elr=()), 2, (1, 2, 3)),
        (replace(STATE, isr=(2,), elr=()), 3, (2,)),
        (replace(STATE, isr=(2,), elr=()), 2, (1, 2, 3)),  # the other two may have acknowledged records since
        (replace(STATE, isr=(1, 2), elr=()), 1, (1, 2, 3)),
        (replace(STATE, isr=(), elr=(), leader=NO_LEADER), 2, (1, 2, 3)),
        (replace(STATE, replicas=(1, 2, 4), isr=(1, 2), elr=()), 2, (1, 2, 3)),
    ],
)
def test_only_replicas_that_may_have_acknowledged_records_are_awaited_if_the_lost_metadata_is_known(
    known: PartitionState, min_insync_replicas: int, awaited: tuple[int, ...]
) -> None:
    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        return ElectionRules(min_insync_replicas)

    before, missing = image(STATE), image(known)
    changes = distrust_all(before, (), missing=missing, rules=rules).changes
    assert before.with_changes(changes).topics["t"].partitions[0].last_known_elr == awaited


@pytest.mark.parametrize(
    ("known", "min_insync_replicas", "size", "eligible"),
    [
        (STATE, 2, 2, {1, 2, 3}),
        (STATE, 1, 3, {1, 2, 3}),
        (STATE, 3, 1, {1, 2, 3}),
        (replace(STATE, isr=(1,), elr=(), last_known_elr=(2,)), 2, 2, {1}),
        (distrusted(STATE, awaited=(1, 2)), 2, 2, {1, 2}),  # the store is rolled back again
    ],
)
def test_a_quorum_of_replicas_suffices_if_the_lost_metadata_is_known(
    known: PartitionState, min_insync_replicas: int, size: int, eligible: set[int]
) -> None:
    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        return ElectionRules(min_insync_replicas)

    found = distrust_all(image(STATE), (), missing=image(known), rules=rules).result
    assert found.quorums == {(TOPIC, 0): Quorum(frozenset((1, 2, 3)), frozenset(eligible), size)}


def test_no_quorum_suffices_if_the_partition_had_other_replicas() -> None:
    known = replace(STATE, replicas=(1, 2, 4))
    assert not distrust_all(image(STATE), (), missing=image(known), rules=rules).result.quorums


SHORTER = replace(log(5, 9), current_leader_epoch=6)
CUT = replace(SHORTER, may_be_cut_by_power=True)
LOST = ReplicaReport(5, 9, 9, 6, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


@pytest.mark.parametrize(
    ("second", "third", "leader"),
    [
        (log(5, 10, current=6), SHORTER, 2),
        (SHORTER, log(5, 10, current=6), 3),
        (replace(log(4, 12, current=6), high_watermark=8), SHORTER, 3),
        (SHORTER, CUT, NO_LEADER),
        (SHORTER, LOST, NO_LEADER),
        (SHORTER, replace(SHORTER, high_watermark=10), NO_LEADER),
        (SHORTER, replace(SHORTER, current_leader_epoch=5, partition_epoch=40), NO_LEADER),
    ],
)
def test_a_quorum_of_sound_replicas_elects_the_one_with_the_last_record(
    second: ReplicaReport, third: ReplicaReport, leader: int
) -> None:
    """The first replica is dead, and was in the ISR. Of the others, each must be sound, and its report final."""
    before = image(distrusted(STATE))
    reports = {2: report(2, second), 3: report(3, third)}
    quorums = {(TOPIC, 0): Quorum(frozenset((1, 2, 3)), frozenset((1, 2, 3)), 2)}
    found = recover_leaders(before, [("t", 0)], reports, rules, quorums=quorums)
    after = before.with_changes(found.changes).topics["t"].partitions[0]
    assert after.leader == leader
    assert [each.choice.is_unclean for each in found.result] == [False]
    assert not recover_leaders(before, [("t", 0)], reports, rules).changes
    for replicas, eligible in ((1, 2, 4), (1, 2, 3)), ((1, 2, 3), (1,)):
        other = {(TOPIC, 0): Quorum(frozenset(replicas), frozenset(eligible), 2)}
        assert not recover_leaders(before, [("t", 0)], reports, rules, quorums=other).changes


def test_a_lower_min_insync_replicas_in_the_lost_metadata_counts() -> None:
    before, missing = image(STATE), image(replace(STATE, isr=(1, 2), elr=()))

    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        return ElectionRules(1 if image is missing else 2)

    changes = distrust_all(before, (), missing=missing, rules=rules).changes
    assert before.with_changes(changes).topics["t"].partitions[0].last_known_elr == (1, 2, 3)


def test_lost_metadata_about_another_topic_of_the_same_name_does_not_count() -> None:
    before, other = image(STATE), TopicImage("t", UUID(int=7), (replace(STATE, isr=(1, 2), elr=()),))
    missing = replace(before, topics={"t": other})
    changes = distrust_all(before, (), missing=missing, rules=rules).changes
    assert before.with_changes(changes).topics["t"].partitions[0].last_known_elr == (1, 2, 3)


def test_leader_epochs_that_no_log_has_are_passed_when_the_store_was_rolled_back() -> None:
    """The first member has seen epoch 7 of some partition. The other one, which joins later, has seen epoch 9."""
    before = image(STATE, replace(STATE, leader_epoch=8))
    after = before.with_changes(distrust_all(before, {UUID(int=1)}, 7).changes)
    assert [state.leader_epoch for state in after.topics["t"].partitions] == [8, 9]
    late = replace(broker(2, 7, incarnation=22), seen_leader_epoch=9)
    after = after.with_changes(register_broker(after, late, report(22, log(5), log(5)), rules).changes)
    assert [(state.leader_epoch, state.partition_epoch) for state in after.topics["t"].partitions] == [(10, 42)] * 2
    assert after.brokers[2].seen_leader_epoch == -1, "only a registration on its way to the controller has it"


def test_a_partition_with_a_leader_keeps_its_epoch_if_a_broker_has_seen_higher_ones_elsewhere() -> None:
    before = image(STATE)
    joining = replace(broker(2, 7, incarnation=22), seen_leader_epoch=90)
    after = before.with_changes(register_broker(before, joining, report(22, log(5)), rules).changes)
    assert after.topics["t"].partitions[0].leader_epoch == 5


def test_a_recovery_of_another_cause_keeps_its_candidates_when_a_broker_joins() -> None:
    """Replica 1 was last eligible. Replica 2 is stale and must not be chosen instead."""
    waiting = replace(STATE, isr=(), elr=(), leader=NO_LEADER, last_known_elr=(1,))
    before = image(waiting)
    joining = replace(broker(2, 7, incarnation=22), seen_leader_epoch=50)
    after = before.with_changes(register_broker(before, joining, report(22, log(5)), rules).changes)
    assert after.topics["t"].partitions == (replace(waiting, leader_epoch=51, partition_epoch=41),)


def test_a_broker_whose_log_knows_a_higher_epoch_brings_down_that_partition_only() -> None:
    before = image(STATE, STATE)
    joining = broker(2, 7, incarnation=22)
    decision = register_broker(before, joining, report(22, log(5), log(4, current=9)), rules)
    after = before.with_changes(decision.changes)
    assert after.brokers[2].epoch == 7
    first, second = after.topics["t"].partitions
    assert (first.leader, first.leader_epoch) == (1, 5)
    assert (second.leader, second.leader_epoch) == (NO_LEADER, 10)
    assert second.last_known_elr == (1, 2, 3), "the replica in the exchanged directory is not lost: it was moved"


def test_a_replica_without_a_log_is_lost_also_if_the_store_was_rolled_back() -> None:
    """The report counts, though the directories in the store do not."""
    waiting = replace(STATE, isr=(), elr=(2,), leader=NO_LEADER)
    before = image(waiting, STATE)
    joining = broker(2, 7, incarnation=22)
    only_second = BrokerReport(UUID(int=22), {(TOPIC, 1): log(7)})
    decision = register_broker(before, joining, only_second, rules)
    first, second = before.with_changes(decision.changes).topics["t"].partitions
    assert (first.leader, first.elr) == (NO_LEADER, ())
    assert (second.leader, second.leader_epoch) == (NO_LEADER, 8)


def test_former_replicas_without_logs_prove_nothing_after_a_rollback() -> None:
    """The partition has moved to other brokers since the backup. The former replicas have deleted their logs."""
    before = image(STATE)
    after = before.with_changes(distrust_all(before, ()).changes)
    for number in (1, 2, 3):
        joining = broker(number, 7 + number, incarnation=20 + number)
        after = after.with_changes(register_broker(after, joining, report(20 + number), rules).changes)
    created = {number: report(20 + number, log(-1, 0)) for number in (1, 2, 3)}
    (recovery,) = recover_leaders(after, [("t", 0)], created, rules).result
    assert recovery.choice.is_unclean


def test_processes_that_stayed_up_without_logs_prove_nothing_after_a_rollback() -> None:
    """Each has created an empty log meanwhile, which it reports as missing. Replica 3 has lost one more."""
    before = image(STATE, STATE)
    after = before.with_changes(distrust_all(before, {UUID(int=number) for number in (1, 2, 3)}).changes)
    new = replace(log(-1, 0), error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    reports = {number: report(number, new, new if number == 3 else log(5)) for number in (1, 2, 3)}
    for number in (1, 2, 3):
        after = after.with_changes(register_broker(after, broker(number, 7), reports[number], rules).changes)
    assert [state.last_known_elr for state in after.topics["t"].partitions] == [(), (1, 2)]
    outcomes = recover_leaders(after, [("t", 0), ("t", 1)], reports, rules).result
    assert [each.choice.is_unclean for each in outcomes] == [True, False]


def test_a_process_that_stayed_up_while_the_store_was_rolled_back_reports_too() -> None:
    before = image(STATE)
    decision = register_broker(before, broker(1, 7), report(1, log(8)), rules)
    (state,) = before.with_changes(decision.changes).topics["t"].partitions
    assert (state.leader, state.leader_epoch) == (NO_LEADER, 9)


def test_a_log_that_knows_no_more_than_the_store_changes_nothing() -> None:
    before = image(STATE)
    decision = register_broker(before, broker(1, 7), report(1, log(5)), rules)
    assert before.with_changes(decision.changes).topics["t"].partitions == (STATE,)


def test_the_leader_epoch_of_a_recovery_is_above_every_reported_one() -> None:
    uncommitted = replace(log(5, 30), high_watermark=15)
    reports = {1: uncommitted, 2: log(7, 20, current=12), 3: replace(log(7, 19), high_watermark=15)}
    state, choice = recover_leader(distrusted(STATE), reports, ElectionRules(), RecoveryStrategy.BALANCED)
    assert choice.leader == 2, "its last record has the highest epoch, and of those its log is the longest"
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2,), 13)
