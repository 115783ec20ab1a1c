"""Which replica a recovery elects, when it waits, and when it reports that records may be lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.broker.controller.broker_reports import MISSING, OFFLINE, BrokerReport, ReplicaReport
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy, RulesOf
from parley.broker.controller.elections.unclean_leader_choice import (
    Choice,
    Recovery,
    choose_leader,
    needs_recovery,
    recover_leaders,
)
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, aggressive, balanced, image_with

RULES = ElectionRules(2)
BALANCED, AGGRESSIVE = RecoveryStrategy.BALANCED, RecoveryStrategy.AGGRESSIVE
STATE = PartitionState((1, 2, 3), (), NO_LEADER, 5, 7, last_known_elr=(1, 3))


def log(end: int, epoch: int = 4, high_watermark: int = 0) -> ReplicaReport:
    return ReplicaReport(epoch, end, high_watermark)


def chosen(
    reports: dict[int, ReplicaReport],
    state: PartitionState = STATE,
    strategy: RecoveryStrategy = BALANCED,
    rules: ElectionRules = RULES,
) -> Choice:
    return choose_leader(state, reports, rules, strategy)


def test_it_waits_for_all_that_were_eligible_last() -> None:
    assert chosen({1: log(9), 2: log(9)}) == Choice(awaited=(3,))
    assert chosen({}) == Choice(awaited=(1, 3))
    assert chosen({1: log(9), 3: log(9)}) == Choice(1)


def test_a_log_on_an_offline_disk_is_waited_for() -> None:
    assert chosen({1: log(9), 2: log(9), 3: OFFLINE}) == Choice(awaited=(3,))


@pytest.mark.parametrize(
    ("reports", "leader"),
    [
        ({1: log(9), 3: log(10)}, 3),
        ({1: log(10, epoch=3), 3: log(9)}, 3),
        ({1: log(9), 2: log(11), 3: log(10)}, 2),
        ({1: log(9), 2: MISSING, 3: log(9)}, 1),
    ],
)
def test_the_last_leader_epoch_and_then_the_log_end_decide(reports: dict[int, ReplicaReport], leader: int) -> None:
    assert chosen(reports) == Choice(leader)


def test_a_log_below_a_reported_high_watermark_is_not_intact() -> None:
    cut = log(5)
    assert chosen({1: cut, 3: log(9, high_watermark=8)}) == Choice(3)
    assert chosen({1: cut, 2: log(9, high_watermark=8), 3: cut}) == Choice(2, is_unclean=True)
    assert chosen({1: cut, 2: log(3, high_watermark=8), 3: cut}) == Choice(1, is_unclean=True, missing_records=3)


def test_if_no_last_known_replica_is_intact_all_replicas_must_report() -> None:
    assert chosen({1: MISSING, 3: log(5, high_watermark=9)}) == Choice(awaited=(2,))
    assert chosen({1: MISSING, 2: MISSING, 3: log(5, high_watermark=9)}) == Choice(
        3, is_unclean=True, missing_records=4
    )
    lost = replace(STATE, last_known_elr=())
    assert chosen({1: log(0, epoch=-1), 2: log(7)}, lost) == Choice(awaited=(3,))
    assert chosen({1: log(0, epoch=-1), 2: log(7), 3: log(6)}, lost) == Choice(2, is_unclean=True)


def test_a_whole_log_is_preferred_to_a_damaged_one() -> None:
    damaged = replace(log(10), error=ErrorCode.CORRUPT_MESSAGE)
    assert chosen({1: damaged, 3: log(9)}) == Choice(3), "broker 3 was eligible, so it has all committed records"
    assert chosen({1: damaged, 2: log(9), 3: damaged}) == Choice(1, is_unclean=True)
    assert chosen({1: damaged, 2: log(10), 3: damaged}) == Choice(2, is_unclean=True)


def test_after_a_power_cut_of_all_intact_replicas_unsynced_records_may_be_missing() -> None:
    whole, cut, longer = log(9), replace(log(9), may_be_cut_by_power=True), replace(log(10), may_be_cut_by_power=True)
    assert chosen({1: whole, 3: longer}) == Choice(3), "broker 1 has all committed records, and 3 even more"
    assert chosen({1: cut, 3: longer}) == Choice(3, is_after_power_cut=True)
    assert chosen({1: cut, 3: longer}, rules=ElectionRules(2, is_every_append_synced=True)) == Choice(3)
    assert chosen({2: whole, 3: longer}, replace(STATE, last_known_elr=(3,))) == Choice(3, is_unclean=True)
    assert chosen({1: MISSING, 2: whole, 3: cut}) == Choice(2, is_unclean=True)
    single = PartitionState((3,), (), NO_LEADER, last_known_elr=(3,))
    assert chosen({3: cut}, single) == Choice(3, is_after_power_cut=True), "there is only one replica"


def test_an_aggressive_recovery_waits_for_no_broker() -> None:
    assert chosen({2: log(5)}, strategy=AGGRESSIVE) == Choice(2, is_unclean=True)
    assert chosen({2: log(5), 3: log(9)}, strategy=AGGRESSIVE) == Choice(3, is_unclean=True)
    assert chosen({1: log(5), 3: log(9)}, strategy=AGGRESSIVE) == Choice(3)
    assert chosen({1: log(5), 3: log(9)}, replace(STATE, elr=(2,)), AGGRESSIVE) == Choice(3, is_unclean=True)
    assert chosen({2: OFFLINE}, strategy=AGGRESSIVE).leader == NO_LEADER


def test_an_unreadable_log_of_an_eligible_replica_makes_an_aggressive_recovery_unclean() -> None:
    intact = log(9, high_watermark=9)
    assert chosen({1: OFFLINE, 3: intact}, strategy=AGGRESSIVE) == Choice(3, is_unclean=True)
    eligible = replace(STATE, elr=(2,), last_known_elr=(3,))
    assert chosen({2: OFFLINE, 3: intact}, eligible, AGGRESSIVE) == Choice(3, is_unclean=True)


def test_a_recovery_begins_only_if_nothing_else_can_elect_a_leader() -> None:
    waiting = replace(STATE, elr=(2,))
    assert [needs_recovery(STATE, each) for each in RecoveryStrategy] == [True, True, False]
    assert [needs_recovery(waiting, each) for each in RecoveryStrategy] == [False, True, False]
    assert not any(needs_recovery(replace(STATE, leader=1), each) for each in RecoveryStrategy)


def reported(*brokers: int, incarnation: int | None = None) -> dict[int, BrokerReport | None]:
    return {i: BrokerReport(UUID(int=incarnation or i), {(TOPIC_ID, 0): log(9)}) for i in brokers}


def test_reports_of_dead_brokers_and_other_processes_do_not_count() -> None:
    image = image_with(STATE, fenced=[3])
    (outcome,) = recover_leaders(image, [(TOPIC, 0)], reported(1, 3), balanced).result
    assert outcome.choice == Choice(awaited=(3,))
    image = image_with(STATE)
    (outcome,) = recover_leaders(image, [(TOPIC, 0)], {**reported(1), **reported(3, incarnation=9)}, balanced).result
    assert outcome.choice == Choice(awaited=(3,))
    decision = recover_leaders(image, [(TOPIC, 0)], reported(1, 3), balanced)
    assert image.with_changes(decision.changes).partition(TOPIC, 0) == PartitionState((1, 2, 3), (1,), 1, 6, 8)


@pytest.mark.parametrize("strategy", [balanced, aggressive])
def test_the_report_of_a_broker_that_may_still_lead_does_not_count(strategy: RulesOf) -> None:
    """Broker 1 leads under epoch 4 until it learns that the store was rolled back: it may acknowledge records that only
    broker 2 has, while broker 3 catches up."""
    told = replace(log(9), current_leader_epoch=5, partition_epoch=7)
    leading = replace(log(9), current_leader_epoch=4, partition_epoch=6)
    restarted = replace(log(9), current_leader_epoch=4)

    def outcome(*reports: ReplicaReport) -> Recovery:
        found = {i: BrokerReport(UUID(int=i), {(TOPIC_ID, 0): each}) for i, each in zip((1, 3), reports, strict=True)}
        return recover_leaders(image_with(STATE), [(TOPIC, 0)], found, strategy).result[0]

    assert outcome(leading, leading).choice.leader == NO_LEADER
    early = outcome(leading, told)
    assert early.is_early
    assert early.choice == (Choice(awaited=(1,)) if strategy is balanced else Choice(3, is_unclean=True))
    assert outcome(told, told) == Recovery(TOPIC, 0, Choice(1), {1: told, 3: told})
    assert outcome(restarted, told) == Recovery(TOPIC, 0, Choice(1), {1: restarted, 3: told})


def test_an_unclean_recovery_is_noted_in_the_state() -> None:
    image = image_with(replace(STATE, elr=(1,), last_known_elr=()), fenced=[1, 3])
    assert recover_leaders(image, [(TOPIC, 0), ("x", 0)], reported(2), balanced).result == []
    decision = recover_leaders(image, [(TOPIC, 0)], reported(2), aggressive)
    after = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert after == PartitionState((1, 2, 3), (2,), 2, 6, 8, unclean_epoch=6)


def test_the_strategy_none_leaves_it_to_the_operator() -> None:
    image = image_with(STATE)
    wanted = [(TOPIC, 0)]
    assert (
        recover_leaders(image, wanted, reported(1, 3), lambda *_: ElectionRules(1, RecoveryStrategy.NONE)).result == []
    )
    (outcome,) = recover_leaders(image, wanted, reported(2), balanced, requested=True).result
    assert outcome.choice == Choice(2, is_unclean=True)


reports = st.builds(
    ReplicaReport,
    leader_epoch=st.integers(-1, 3),
    log_end_offset=st.integers(0, 5),
    high_watermark=st.integers(0, 5),
    error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.KAFKA_STORAGE_ERROR]),
)


@given(
    known=st.sets(st.integers(1, 3)),
    found=st.dictionaries(st.integers(1, 3), reports),
    strategy=st.sampled_from([BALANCED, AGGRESSIVE]),
)
def test_no_choice_without_warning_lacks_committed_records(
    known: set[int], found: dict[int, ReplicaReport], strategy: RecoveryStrategy
) -> None:
    state = replace(STATE, last_known_elr=tuple(sorted(known)))
    choice = chosen(found, state, strategy)
    if choice.leader == NO_LEADER:
        assert choice.awaited
        return
    assert found[choice.leader].is_conclusive
    committed = max(report.high_watermark for report in found.values())
    conclusive = {broker for broker, report in found.items() if report.is_conclusive}
    if strategy is BALANCED or not choice.is_unclean:
        assert known <= conclusive
    if not choice.is_unclean:
        leader = found[choice.leader]
        assert leader.log_end_offset >= committed
        whole = [found[i] for i in known if i in found and found[i].is_intact and found[i].log_end_offset >= committed]
        assert any(
            (each.leader_epoch, each.log_end_offset) <= (leader.leader_epoch, leader.log_end_offset) for each in whole
        )
    assert choice.missing_records == max(0, committed - found[choice.leader].log_end_offset)
