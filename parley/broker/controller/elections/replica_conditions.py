"""Which replicas of a broker may have lost records when the broker registers (KIP-966, KIP-858).

* After an unclean restart, a replica may lack records that had not reached the disk.
* All replicas are lost if the directories are an older copy: the broker epochs in them are below the registered epoch.
* A replica is lost if its log directory is missing or was replaced with another, if the directory no longer contains
  the log, or if the log is damaged or ends below the persisted high watermark. If the directory may only be offline,
  the replica is suspect.
* Without a report, a replica is lost only if the registration proves it (an older copy, or a replaced directory). It is
  suspect after an unclean restart, or if its directory may be offline: the recovery then requests its report again.
* A process that registers again has lost nothing: it reports a failed disk as soon as it notices the failure.
* A process that registers no log directories runs a version without these checks. Its replicas count as unharmed.
* If a partition waits for a recovery, a replica without a log is lost in any case: the broker will create an empty log,
  which must not count as complete. (A replica that has never contained a record does have a log.)
* If the store was rolled back, the directories in it may be outdated. Then only the reported logs count.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from parley.broker.controller.broker_reports import BrokerReport
from parley.broker.metadata.types import NO_LEADER, UNASSIGNED_DIRECTORY, BrokerRegistration, PartitionState
from parley.protocol.errors import ErrorCode
from parley.protocol.uuids import UUID


class Condition(Enum):
    """The condition of a replica at the registration of its broker."""

    UNHARMED = auto()
    """The replica still has all its records."""
    SUSPECT = auto()
    """The replica may lack records, or cannot be read now."""
    LOST = auto()
    """The replica certainly lacks records."""


ConditionOf = Callable[[UUID, int, PartitionState], Condition]
"""Returns the condition of the broker's replica of a partition, which is given by topic id, index and state."""


def is_older_copy(known: BrokerRegistration, joined: BrokerRegistration) -> bool:
    """Return True if a broker epoch in the broker's directories is below the epoch of ``known``, its previous
    registration."""
    return any(0 <= epoch < known.epoch for epoch in (joined.previous_epoch, joined.kept_epoch))


def conditions(
    known: BrokerRegistration | None,
    joined: BrokerRegistration,
    report: BrokerReport | None,
    *,
    directories_count: bool = True,
) -> ConditionOf | None:
    """Return a function that gives the condition of each of a broker's replicas, or None if all of them are unharmed.

    ``known`` is the previous registration, ``joined`` the new one. Without a report, a replica is suspect if it is
    neither certainly unharmed nor certainly lost. If ``directories_count`` is False, because the store was rolled back,
    the directories in the store are ignored: a replica may have moved to another directory since then.
    """
    if known is not None and (known.incarnation_id == joined.incarnation_id or not known.log_dirs):
        return None
    if not joined.log_dirs:
        return None
    is_unclean = joined.previous_epoch < (0 if known is None else known.epoch)
    is_outdated = known is not None and is_older_copy(known, joined)
    former = () if known is None or not directories_count else known.log_dirs
    is_any_offline = len(joined.log_dirs) < len(former)  # possibly: only online directories register

    def condition(topic_id: UUID, index: int, state: PartitionState) -> Condition:
        assigned = state.directory(joined.broker_id)
        expected = former if assigned == UNASSIGNED_DIRECTORY or not directories_count else (assigned,)
        if report is None:
            is_missing = not set(expected).issubset(joined.log_dirs)
            if is_outdated or (is_missing and not is_any_offline):
                return Condition.LOST
            return Condition.SUSPECT if is_unclean or is_missing else Condition.UNHARMED
        found = report.replica(topic_id, index)
        if not found.is_conclusive:
            return Condition.SUSPECT
        if is_outdated or not found.is_intact or (expected and found.directory not in expected):
            return Condition.LOST
        return Condition.SUSPECT if is_unclean else Condition.UNHARMED

    return condition


def lost_if_missing(report: BrokerReport) -> ConditionOf:
    """Return a function that gives the condition of each replica of a broker that has otherwise lost nothing.

    A replica is lost if its partition waits for a recovery and the broker has no log of it.
    """

    def condition(topic_id: UUID, index: int, state: PartitionState) -> Condition:
        waits = state.leader == NO_LEADER and not state.isr and not state.elr
        is_missing = report.replica(topic_id, index).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Condition.LOST if waits and is_missing else Condition.UNHARMED

    return condition
