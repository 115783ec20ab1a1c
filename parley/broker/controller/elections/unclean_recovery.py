"""Recovery of partitions without eligible replicas (KIP-966): a duty of the controller.

KIP-966 calls it unclean recovery, but most recoveries are clean: the elected leader lacks no committed record.

If every replica in the ISR and the ELR of a partition may have lost records, the controller elects none of them right
away. It requests reports of the logs from the live replicas, and elects a leader by the rule in
``unclean_leader_choice.py``. It tries again when a broker registers, when the configuration changes, after
``RETRY_S`` if a broker does not respond, and after ``EARLY_S`` if a broker does not know yet that it no longer leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial

from parley.broker.controller.broker_reports import BrokerReport, Replica, ReplicaReport
from parley.broker.controller.controller import Controller
from parley.broker.controller.elections.election_rules import RecoveryStrategy, RulesOf
from parley.broker.controller.elections.leaderless_log import LeaderlessLog, Wait
from parley.broker.controller.elections.requested_elections import ElectionOutcome, elect_unclean_leaders
from parley.broker.controller.elections.unclean_leader_choice import (
    Quorum,
    Recovery,
    awaited_at_least,
    needs_recovery,
    recover_leaders,
)
from parley.broker.metadata.changes import BrokerRegistered, ConfigReplaced, ControllerElected, Delta, PartitionChanged
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from parley.broker.metrics.catalogue.replication import ElectionMetrics
from parley.broker.runtime.tasks import race
from parley.protocol.errors import ErrorCode
from parley.protocol.topic_partition import TopicPartition

_log = logging.getLogger(__name__)

RETRY_S = 1.0
"""The pause in seconds before the next request to a broker that has not responded."""
EARLY_S = 0.05
"""The pause in seconds before the next request to a broker that has not applied the newest metadata. The metadata is
already on its way to it."""
PARTITIONS_MAX = 1000
"""The maximum number of partitions in one decision, so that later decisions do not wait long."""

LOGGED_MAX = 100
"""The maximum number of unclean elections in one decision that get separate log lines. The others share one line."""

RequestReport = Callable[[BrokerRegistration, Sequence[Replica] | None], Awaitable[BrokerReport | None]]
"""Requests a broker's report of the given logs, or of all its logs. Returns None if the broker does not respond."""


class UncleanRecovery:
    """Elects leaders for partitions that need a recovery, while this broker is the controller."""

    def __init__(self, metadata: Metadata, request: RequestReport, rules: RulesOf) -> None:
        self.metrics = ElectionMetrics()
        """Metrics of the recoveries by this broker since it started."""
        self._metadata = metadata
        self.request = request
        self._rules = rules
        self._leaderless: set[TopicPartition] | None = None  # None means that the whole image must be searched
        self._quorums: dict[Replica, Quorum] = {}  # of partitions without a leader, during this broker's term
        self._wakeup = asyncio.Event()
        self._leaderless_log = self._new_log()

    def accept_quorums(self, quorums: Mapping[Replica, Quorum]) -> None:
        """Elect the leaders of these partitions as soon as a quorum of sound replicas has reported. The quorums are
        valid until the partitions have leaders, or the term ends."""
        self._quorums = dict(quorums)
        self._wakeup.set()

    def apply(self, delta: Delta, image: MetadataImage) -> None:
        """Record partitions that lost their leader, and wake the recovery after a change that may help.

        The broker's metadata calls this for every change.
        """
        for change in delta.changes:
            match change:
                case PartitionChanged(topic, index, state):
                    if state.leader != NO_LEADER:
                        if self._quorums and topic in image.topics:
                            self._quorums.pop((image.topics[topic].topic_id, index), None)
                    elif self._leaderless is not None:
                        self._leaderless.add((topic, index))
                        self._wakeup.set()
                case BrokerRegistered() | ConfigReplaced():
                    self._wakeup.set()
                case ControllerElected():
                    self._leaderless = None
                    self._quorums = {}
                    self._wakeup.set()
                case _:
                    pass

    async def run(self, controller: Controller) -> None:
        """Recover partitions until cancelled. Raises NOT_CONTROLLER when the term ends."""
        self._leaderless = None
        self._leaderless_log = self._new_log()
        await race(self._recover(controller), self._leaderless_log.run())

    def _new_log(self) -> LeaderlessLog:
        return LeaderlessLog(self._metadata, lambda: asyncio.get_running_loop().time())

    async def _recover(self, controller: Controller) -> None:
        while True:
            self._wakeup.clear()
            pause_s = await self._recover_all(controller)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wakeup.wait()
            except TimeoutError:
                pass

    async def elect(self, controller: Controller, wanted: Sequence[TopicPartition]) -> list[ElectionOutcome]:
        """Elect leaders of these partitions, as an operator has requested, even if records are lost.

        Returns one outcome for each partition. Raises the errors of ``Controller.submit``.
        """
        reports = await self._ask(wanted)
        decide = partial(elect_unclean_leaders, wanted=wanted, reports=reports, rules=self._rules)
        outcomes, recoveries = await controller.submit(decide)
        self.note(recoveries)
        return outcomes

    async def _recover_all(self, controller: Controller) -> float | None:
        """Elect the leaders that can be elected now. Return the pause before the next attempt, or None if the next
        attempt waits for a change."""
        wanted, waits = self._recoverable()
        is_incomplete = is_early = False
        for begin in range(0, len(wanted), PARTITIONS_MAX):
            part = wanted[begin : begin + PARTITIONS_MAX]
            reports = await self._ask(part)
            decide = partial(
                recover_leaders, wanted=part, reports=reports, rules=self._rules, quorums=dict(self._quorums)
            )
            outcomes: list[Recovery] = await controller.submit(decide, waits_for_store=True)
            self.note(outcomes)
            for outcome in outcomes:
                if outcome.choice.leader == NO_LEADER:
                    waits[outcome.topic, outcome.partition] = Wait(outcome.choice.awaited, is_ordinary=outcome.is_early)
                    is_early = is_early or outcome.is_early
            is_incomplete = is_incomplete or None in reports.values()
        self._leaderless_log.note(waits)
        if is_early:
            return EARLY_S
        return RETRY_S if is_incomplete else None

    def _recoverable(self) -> tuple[list[TopicPartition], dict[TopicPartition, Wait]]:
        """Return the partitions that can be recovered, because all awaited brokers or a quorum are alive, and the
        reasons why the other partitions wait."""
        image = self._metadata.image
        live = image.live_broker_ids()
        if self._leaderless is None:
            self._leaderless = {(t, i) for t, i, state in image.partitions() if state.leader == NO_LEADER}
        wanted: list[TopicPartition] = []
        waits: dict[TopicPartition, Wait] = {}
        strategies: dict[str, RecoveryStrategy] = {}
        for key in sorted(self._leaderless):
            state = image.partition(*key)
            if state is None or state.leader != NO_LEADER:
                self._leaderless.discard(key)
                continue
            if key[0] not in strategies:
                strategies[key[0]] = self._rules(image, key[0]).recovery
            quorum = self._quorums.get((image.topics[key[0]].topic_id, key[1]))
            wait = wait_of(state, strategies[key[0]], live, quorum)
            if wait is None:
                wanted.append(key)
            else:
                waits[key] = wait
        return wanted, waits

    async def _ask(self, partitions: Iterable[TopicPartition]) -> dict[int, BrokerReport | None]:
        """Return the reports of the live brokers that host these partitions; None for a broker that does
        not respond."""
        image = self._metadata.image
        replicas: defaultdict[int, list[Replica]] = defaultdict(list)
        for topic, index in partitions:
            state = image.partition(topic, index)
            for broker in () if state is None else state.replicas:
                if broker in image.brokers and not image.brokers[broker].fenced:
                    replicas[broker].append((image.topics[topic].topic_id, index))
        found = await asyncio.gather(*(self.request(image.brokers[b], wanted) for b, wanted in replicas.items()))
        return dict(zip(replicas, found, strict=True))

    # --- Log lines ---

    def note(self, recoveries: Iterable[Recovery]) -> None:
        """Count and log the leaders that recoveries have elected."""
        elected = [recovery for recovery in recoveries if recovery.choice.leader != NO_LEADER]
        unclean = [recovery for recovery in elected if recovery.choice.is_unclean]
        cut = sum(recovery.choice.is_after_power_cut for recovery in elected)
        whole = len(elected) - len(unclean) - cut
        self.metrics.recovered += len(elected)
        self.metrics.unclean += len(unclean)
        for recovery in unclean[:LOGGED_MAX]:
            _log.error("a leader was elected that may lack acknowledged records", extra=_facts(recovery))
        if len(unclean) > LOGGED_MAX:
            _log.error(
                "more leaders were elected that may lack acknowledged records",
                extra={"partitions": len(unclean) - LOGGED_MAX},
            )
        if cut:
            _log.error(
                "leaders were elected after a power cut of all eligible replicas: acknowledged records that had not "
                "been synced may be missing",
                extra={"partitions": cut},
            )
        if whole:
            _log.warning(
                "leaders were elected from the reports of enough replicas, after an unclean stop or a store that was "
                "rolled back: by these reports, none lacks committed records",
                extra={"partitions": whole},
            )


def wait_of(
    state: PartitionState, strategy: RecoveryStrategy, live: Set[int], quorum: Quorum | None = None
) -> Wait | None:
    """Return the reason why a partition without a leader must wait, or None if its brokers can report now."""
    if not needs_recovery(state, strategy):
        return Wait(state.elr, is_ordinary=True)  # these brokers are all dead; if the ELR is empty, an operator decides
    dead = tuple(broker for broker in awaited_at_least(state, strategy) if broker not in live)
    if dead and not (quorum is not None and quorum.is_reached(state, live)):
        return Wait(dead)
    return Wait(state.replicas, is_ordinary=True) if live.isdisjoint(state.replicas) else None


def _facts(recovery: Recovery) -> dict[str, object]:
    reports = recovery.reports
    return {
        "topic": recovery.topic,
        "partition": recovery.partition,
        "leader": recovery.choice.leader,
        "missing_records": recovery.choice.missing_records or "unknown",
        "reports": "; ".join(f"broker {broker}: {_text(report)}" for broker, report in sorted(reports.items())),
    }


def _text(report: ReplicaReport) -> str:
    is_missing = report.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if is_missing and report.log_end_offset <= 0:
        return "no log"
    if not report.is_conclusive:
        return f"unreadable ({report.error.name})"
    fault = ", new since its log was lost" if is_missing else ", damaged" if report.error else ""
    return (
        f"leader epoch {report.leader_epoch}, log end {report.log_end_offset}, "
        f"high watermark {report.high_watermark}{fault}"
    )
