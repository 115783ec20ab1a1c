"""Which replica becomes the leader of a partition without eligible replicas: the pure rule of a recovery (KIP-966).

* The replica whose log shows the highest leader epoch wins (docs/coordination.md, "Stored epochs"). Among several, the
  highest log end offset wins. This log contains all records of the other logs, except those that the last leader did
  not have.
* ``Balanced`` waits until all replicas in ``last_known_elr`` have reported. If none of them is intact, it waits for all
  replicas. ``Aggressive``, and an election that an operator requests, choose among the replicas that have reported.
* A report counts only if it is final: a broker that does not know yet that the partition has no leader may still append
  records, and acknowledge them.
* A replica is intact if its log is undamaged and reaches the highest reported high watermark. If any replica in
  ``last_known_elr`` is intact, only an intact replica can win. No acknowledged record is lost if, in addition, all
  replicas in ``elr`` and ``last_known_elr`` have reported, and an intact one is on a machine that has not lost power.
* If the machines of all intact replicas have lost power, records that were on no disk may be lost. If at least
  ``min.insync.replicas`` are intact, the recovery counts as ``is_after_power_cut``: no better evidence can exist.
* In all other cases the recovery is unclean: acknowledged records may be lost.
* After a store was rolled back, a ``Quorum`` of sound replicas suffices, whatever ``last_known_elr`` contains. Sound
  means that the log is undamaged, and that the machine has not lost power, unless every append is synced. A record was
  acknowledged by at least ``min.insync.replicas`` replicas, so one of the quorum has it, and so has the replica that
  wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from parley.broker.controller.broker_reports import BrokerReport, Replica, ReplicaReport
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy, RulesOf
from parley.broker.controller.elections.leader_choice import recovered
from parley.broker.metadata.changes import Change, PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The leader that a recovery has chosen, or the brokers whose reports it waits for."""

    leader: int = NO_LEADER
    is_unclean: bool = False
    is_after_power_cut: bool = False
    """True if the recovery is clean except for power cuts: the machines of all replicas that were last eligible have
    lost power, and records that had not been written to any disk by then may be lost."""
    missing_records: int = 0
    """The number of records below the highest reported high watermark that the leader lacks."""
    awaited: tuple[int, ...] = ()
    """The brokers whose reports the recovery waits for. Empty if a leader was chosen."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Defines which sets of a partition's replicas are a quorum: at least one of them has every acknowledged record."""

    replicas: frozenset[int]
    """All replicas of the partition. The quorum is void once the partition has other replicas."""
    eligible: frozenset[int]
    """The replicas that had every acknowledged record, according to the metadata that the store has lost. A quorum
    contains at least one of them."""
    size: int
    """The minimum number of replicas in a quorum."""

    def is_reached(self, state: PartitionState, replicas: Set[int]) -> bool:
        """Return True if these replicas contain a quorum, and the partition still has the same replicas."""
        is_same = self.replicas == frozenset(state.replicas)
        return is_same and len(self.replicas & replicas) >= self.size and not self.eligible.isdisjoint(replicas)


def needs_recovery(state: PartitionState, strategy: RecoveryStrategy) -> bool:
    """Return True if the partition has no leader, and the controller should recover it under this strategy.

    Returns False if a replica in the ELR may still return and lead, unless the strategy is ``Aggressive``. Also returns
    False for the strategy ``None``.
    """
    if state.leader != NO_LEADER or strategy is RecoveryStrategy.NONE:
        return False
    return not state.elr or strategy is RecoveryStrategy.AGGRESSIVE


def awaited_at_least(state: PartitionState, strategy: RecoveryStrategy) -> tuple[int, ...]:
    """Return the brokers that must report before a leader may be chosen without a ``Quorum``, whatever the other
    brokers report."""
    return () if strategy is RecoveryStrategy.AGGRESSIVE else state.last_known_elr or state.replicas


def _awaited(
    state: PartitionState, reports: Mapping[int, ReplicaReport], strategy: RecoveryStrategy
) -> tuple[int, ...]:
    """Return the brokers that must report before a leader may be chosen."""
    conclusive = {broker for broker, report in reports.items() if report.is_conclusive}
    waiting = tuple(broker for broker in awaited_at_least(state, strategy) if broker not in conclusive)
    if waiting or strategy is RecoveryStrategy.AGGRESSIVE or _intact(state, reports):
        return waiting
    return tuple(broker for broker in state.replicas if broker not in conclusive)


def choose_leader(
    state: PartitionState, reports: Mapping[int, ReplicaReport], rules: ElectionRules, strategy: RecoveryStrategy
) -> Choice:
    """Choose a leader among the replicas that have reported.

    If reports are still missing, the choice contains no leader (``NO_LEADER``) but the brokers that must report.
    ``reports`` contains the reports of live brokers only. Pass ``rules.recovery`` as ``strategy``, or ``AGGRESSIVE``
    for an election that an operator requests.
    """
    waiting = _awaited(state, reports, strategy)
    candidates = [broker for broker in state.replicas if broker in reports and reports[broker].is_conclusive]
    if waiting or not candidates:
        return Choice(awaited=waiting or state.replicas)
    committed = _committed(state, reports)
    intact = _intact(state, reports)
    electable = [broker for broker in candidates if not intact or _is_intact(reports[broker], committed)]
    leader = max(electable, key=lambda broker: _rank(state, broker, reports[broker]))
    missing = max(0, committed - max(0, reports[leader].log_end_offset))
    # "Cut" means that a power cut may have removed records. It has nothing to do with the .cut files of truncated logs.
    is_cut = not rules.is_every_append_synced and all(each.may_be_cut_by_power for each in intact)
    is_unclean = (
        not intact
        or any(broker not in candidates for broker in (*state.elr, *state.last_known_elr))
        or (is_cut and len(intact) < min(rules.min_insync_replicas, len(state.replicas)))
    )
    return Choice(leader, is_unclean=is_unclean, is_after_power_cut=is_cut and not is_unclean, missing_records=missing)


def recover_leader(
    state: PartitionState, reports: Mapping[int, ReplicaReport], rules: ElectionRules, strategy: RecoveryStrategy
) -> tuple[PartitionState, Choice]:
    """Return the state with the chosen leader, and the choice. If no leader can be chosen yet, the state is the same
    object."""
    choice = choose_leader(state, reports, rules, strategy)
    if choice.leader == NO_LEADER:
        return state, choice
    highest = max(report.current_leader_epoch for report in reports.values())
    return recovered(state, choice.leader, unclean=choice.is_unclean, above=highest), choice


@dataclass(frozen=True, slots=True)
class Recovery:
    """The outcome of a recovery for one partition: the choice, and the reports that led to it, by broker."""

    topic: str
    partition: int
    choice: Choice
    reports: Mapping[int, ReplicaReport]
    is_early: bool = False
    """True if a report did not count, because it is not final: its broker will send another one soon."""


def recover_leaders(
    image: MetadataImage,
    wanted: Iterable[tuple[str, int]],
    reports: Mapping[int, BrokerReport | None],
    rules: RulesOf,
    *,
    requested: bool = False,
    quorums: Mapping[Replica, Quorum] | None = None,
) -> Decision[list[Recovery]]:
    """Elect a leader for each given partition that needs a recovery (``needs_recovery``).

    Returns an outcome for each of them, even if no leader could be elected yet. Other partitions have no outcome.
    Pass ``requested`` if an operator has requested the election. ``quorums`` contains the partitions for which a quorum
    of sound replicas suffices.

    ``reports`` contains the brokers' reports, by broker id. A report of a process that is no longer registered is
    ignored, and so is the report of a log that may still change.
    """
    present = {
        broker: report
        for broker, report in reports.items()
        if report is not None
        and (known := image.brokers.get(broker)) is not None
        and not known.fenced
        and known.incarnation_id == report.incarnation_id
    }
    changes: list[Change] = []
    outcomes = []
    for topic, index in wanted:
        state = image.partition(topic, index)
        topic_rules = rules(image, topic)
        strategy = RecoveryStrategy.AGGRESSIVE if requested else topic_rules.recovery
        if state is None or not needs_recovery(state, strategy):
            continue
        topic_id = image.topics[topic].topic_id
        found = {b: present[b].replica(topic_id, index) for b in state.replicas if b in present}
        final = {b: report for b, report in found.items() if report.is_final(state.leader_epoch)}
        if quorums and (quorum := quorums.get((topic_id, index))) is not None:
            state = _awaiting_quorum(state, final, topic_rules, quorum)
        after, choice = recover_leader(state, final, topic_rules, strategy)
        if after is not state:
            changes.append(PartitionChanged(topic, index, after))
        outcomes.append(Recovery(topic, index, choice, final, is_early=len(final) < len(found)))
    return Decision(tuple(changes), outcomes)


def _awaiting_quorum(
    state: PartitionState, reports: Mapping[int, ReplicaReport], rules: ElectionRules, quorum: Quorum
) -> PartitionState:
    """Return the state in which only the sound replicas are awaited, or the same object if they are too few."""
    sound = tuple(
        broker
        for broker in state.replicas
        if broker in reports
        and reports[broker].is_intact
        and (rules.is_every_append_synced or not reports[broker].may_be_cut_by_power)
    )
    return replace(state, last_known_elr=sound) if quorum.is_reached(state, {*sound}) else state


def _rank(state: PartitionState, broker: int, report: ReplicaReport) -> tuple[int, int, bool, int]:
    """Return the sort key of a candidate: the end of its log, then whether it is intact, then its preference. The
    highest key wins."""
    return report.leader_epoch, report.log_end_offset, report.is_intact, -state.replicas.index(broker)


def _committed(state: PartitionState, reports: Mapping[int, ReplicaReport]) -> int:
    """Return the highest high watermark that a replica has persisted."""
    return max((reports[broker].high_watermark for broker in state.replicas if broker in reports), default=0)


def _is_intact(report: ReplicaReport | None, committed: int) -> bool:
    """Return True if the reported log contains all records that are known to be committed."""
    return report is not None and report.is_intact and report.log_end_offset >= committed


def _intact(state: PartitionState, reports: Mapping[int, ReplicaReport]) -> list[ReplicaReport]:
    """Return the reports of the intact logs in the last known ELR."""
    committed = _committed(state, reports)
    found = (reports.get(broker) for broker in state.last_known_elr)
    return [report for report in found if report is not None and _is_intact(report, committed)]
