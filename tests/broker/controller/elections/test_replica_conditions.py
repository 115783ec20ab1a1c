"""The condition of a broker's replicas when it registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.elections.replica_conditions import Condition, conditions
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID

TOPIC_ID, DISK, OTHER_DISK, NEW_DISK = UUID(int=9), UUID(int=101), UUID(int=102), UUID(int=103)
BEFORE = BrokerRegistration(1, 7, UUID(int=1), (), log_dirs=(DISK,))
CLEAN = BrokerRegistration(1, 8, UUID(int=2), (), previous_epoch=7, log_dirs=(DISK,))
KILLED = replace(CLEAN, previous_epoch=-1)
EMPTIED = replace(KILLED, log_dirs=(NEW_DISK,))
STATE = PartitionState((1, 2), (), NO_LEADER, elr=(1,))
INTACT = ReplicaReport(3, 20, 20, directory=DISK)


def found(
    joined: BrokerRegistration,
    log: ReplicaReport | None = INTACT,
    *,
    before: BrokerRegistration | None = BEFORE,
    state: PartitionState = STATE,
    is_any_directory_offline: bool = False,
) -> Condition:
    logs = {} if log is None else {(TOPIC_ID, 0): log}
    condition = conditions(before, joined, BrokerReport(joined.incarnation_id, logs, is_any_directory_offline))
    return Condition.UNHARMED if condition is None else condition(TOPIC_ID, 0, state)


def unreported(
    joined: BrokerRegistration, *, before: BrokerRegistration = BEFORE, state: PartitionState = STATE
) -> Condition:
    condition = conditions(before, joined, None)
    return Condition.UNHARMED if condition is None else condition(TOPIC_ID, 0, state)


def test_a_clean_restart_harms_nothing() -> None:
    assert found(CLEAN) is Condition.UNHARMED
    assert found(replace(CLEAN, previous_epoch=9)) is Condition.UNHARMED, "the epoch was never registered"
    assert found(replace(CLEAN, log_dirs=(DISK, NEW_DISK))) is Condition.UNHARMED


def test_a_missing_marker_makes_the_replicas_suspect() -> None:
    assert found(KILLED) is Condition.SUSPECT
    assert found(replace(KILLED, kept_epoch=7)) is Condition.SUSPECT


def test_an_older_copy_of_the_directory_has_lost_records() -> None:
    assert found(replace(CLEAN, previous_epoch=6)) is Condition.LOST
    assert found(replace(KILLED, kept_epoch=6)) is Condition.LOST


def test_the_same_process_and_older_versions_lose_nothing() -> None:
    assert found(replace(KILLED, incarnation_id=BEFORE.incarnation_id), None) is Condition.UNHARMED
    assert found(replace(KILLED, log_dirs=()), None) is Condition.UNHARMED
    assert found(KILLED, None, before=replace(BEFORE, log_dirs=())) is Condition.UNHARMED


@pytest.mark.parametrize(
    "log",
    [
        None,
        replace(INTACT, log_end_offset=19),
        replace(INTACT, directory=OTHER_DISK),
        replace(INTACT, error=ErrorCode.CORRUPT_MESSAGE),
    ],
)
@pytest.mark.parametrize("joined", [CLEAN, KILLED])
def test_a_log_that_is_missing_cut_elsewhere_or_damaged_is_lost(
    joined: BrokerRegistration, log: ReplicaReport | None
) -> None:
    assert found(joined, log) is Condition.LOST


def test_an_emptied_directory_has_another_id_even_if_its_logs_exist_again() -> None:
    assert found(EMPTIED, ReplicaReport(-1, 0, 0, directory=NEW_DISK)) is Condition.LOST


def test_a_directory_that_is_offline_may_have_the_log() -> None:
    two = replace(CLEAN, log_dirs=(OTHER_DISK,))
    before = replace(BEFORE, log_dirs=(DISK, OTHER_DISK))
    assert found(two, None, before=before, is_any_directory_offline=True) is Condition.SUSPECT
    assert found(two, None, before=before) is Condition.LOST


def test_an_assigned_directory_decides_alone() -> None:
    before = replace(BEFORE, log_dirs=(DISK, OTHER_DISK))
    assigned = replace(STATE, directories=(DISK, UUID(int=1)))
    assert found(CLEAN, before=before, state=assigned) is Condition.UNHARMED
    assert found(CLEAN, replace(INTACT, directory=OTHER_DISK), before=before, state=assigned) is Condition.LOST


def test_without_a_report_a_replica_is_lost_only_if_the_registration_shows_it() -> None:
    assert unreported(CLEAN) is Condition.UNHARMED
    assert unreported(KILLED) is Condition.SUSPECT
    assert unreported(replace(CLEAN, log_dirs=(NEW_DISK,))) is Condition.LOST
    assert unreported(EMPTIED) is Condition.LOST
    assert unreported(replace(KILLED, kept_epoch=6)) is Condition.LOST
    assert unreported(replace(CLEAN, previous_epoch=6)) is Condition.LOST


def test_without_a_report_a_directory_that_may_be_offline_makes_a_replica_suspect() -> None:
    two = replace(BEFORE, log_dirs=(DISK, OTHER_DISK))
    assigned = replace(STATE, directories=(DISK, UUID(int=1)))
    for joined in (replace(CLEAN, log_dirs=(OTHER_DISK,)), replace(KILLED, log_dirs=(OTHER_DISK,))):
        assert unreported(joined, before=two) is Condition.SUSPECT
        assert unreported(joined, before=two, state=assigned) is Condition.SUSPECT
    assert unreported(replace(CLEAN, log_dirs=(DISK,)), before=two, state=assigned) is Condition.UNHARMED


def test_a_broker_that_the_store_does_not_know_must_have_stopped_cleanly() -> None:
    assert found(CLEAN, before=None) is Condition.UNHARMED
    assert found(KILLED, before=None) is Condition.SUSPECT
