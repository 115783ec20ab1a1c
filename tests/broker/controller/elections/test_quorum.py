"""After a store was rolled back: any quorum of sound replicas elects a leader that has every acknowledged record."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.distrusted_partitions import distrust_all
from parley.broker.controller.elections.election_rules import ElectionRules
from parley.broker.controller.elections.unclean_leader_choice import recover_leaders
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, PartitionState
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, image_with

REPLICAS = (1, 2, 3, 4)


@dataclass
class Partition:
    """A partition with a leader, and the log of each replica: the epoch and the number of each record.

    A leader appends nothing when it is elected. ``stored`` contains the epoch that a replica has stored without a
    record, and where it begins. ``stores_epochs=False`` is the broker before there were stored epochs.
    """

    min_insync: int
    stores_epochs: bool = True
    leader: int = 1
    epoch: int = 0
    required: int = -1
    isr: set[int] = field(default_factory=lambda: {*REPLICAS})
    logs: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {each: [] for each in REPLICAS})
    stored: dict[int, tuple[int, int]] = field(default_factory=lambda: dict.fromkeys(REPLICAS, (-1, 0)))
    known: dict[int, int] = field(default_factory=lambda: dict.fromkeys(REPLICAS, 0))
    """The high watermark that each replica knows."""
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    appended: int = 0

    def act(self, action: str, replica: int, count: int) -> None:
        log, own = self.logs[self.leader], self.logs[replica]
        if action == "append":
            for _ in range(count):
                self._append()
        elif action == "fetch" and replica != self.leader:
            self._fetch(replica, count)
        elif action == "shrink" and replica != self.leader:
            self.isr.discard(replica)
        elif action == "expand" and own == log and self._counts(replica):
            self.isr.add(replica)
        elif action == "elect" and replica in self.isr:
            self.elect(replica)
        self._commit()

    def elect(self, replica: int) -> None:
        self.leader, self.epoch = replica, self.epoch + 1
        may_commit_older = self.known[replica] < len(self.logs[replica])
        self.required = self.epoch if may_commit_older else self.newest_epoch(replica)

    def newest_epoch(self, replica: int) -> int:
        log = self.logs[replica]
        return max(log[-1][0] if log else -1, self.stored[replica][0])

    def _counts(self, replica: int) -> bool:
        return not self.stores_epochs or self.newest_epoch(replica) >= self.required

    def _append(self) -> None:
        self.appended += 1
        self._extend(self.leader, [(self.epoch, self.appended)])

    def _extend(self, replica: int, records: list[tuple[int, int]]) -> None:
        self.logs[replica] += records
        if records:
            self.stored[replica] = (-1, 0)

    def _fetch(self, replica: int, count: int) -> None:
        log, own = self.logs[self.leader], self.logs[replica]
        same = next((i for i, (a, b) in enumerate(zip(log, own, strict=False)) if a != b), min(len(log), len(own)))
        del own[same:]
        if self.stored[replica][1] > same:
            self.stored[replica] = (-1, 0)
        if self.stores_epochs and len(own) == len(log) and not self._counts(replica):
            self.stored[replica] = (self.epoch, len(own))
        self._extend(replica, log[len(own) : len(own) + count])
        self.known[replica] = max(min(self.known[replica], len(own)), min(len(own), self.known[self.leader]))

    def _commit(self) -> None:
        log = self.logs[self.leader]
        ends = [
            len(self.logs[each])
            for each in self.isr
            if each == self.leader or (self.logs[each] == log[: len(self.logs[each])] and self._counts(each))
        ]
        if len(ends) == len(self.isr) >= self.min_insync:
            if self.stores_epochs and self.newest_epoch(self.leader) < self.required:
                self.stored[self.leader] = (self.epoch, len(log))
            self.known[self.leader] = max(self.known[self.leader], min(ends))
            self.acknowledged = max(self.acknowledged, log[: min(ends)], key=len)

    def report(self, replica: int, epoch: int) -> ReplicaReport:
        newest = self.newest_epoch(replica)
        return ReplicaReport(newest, len(self.logs[replica]), self.known[replica], current_leader_epoch=epoch)


ACTIONS = ("append", "fetch", "fetch", "fetch", "shrink", "expand", "elect")
HISTORIES = 300
STEPS = 60
RECOVERIES = 3
"""The number of times that the store is rolled back in one history."""
FIGURE_8 = 1690
"""A history in which a leader commits records of earlier epochs without a record of its own."""


def test_no_acknowledged_record_is_lost_if_fewer_brokers_are_dead_than_acknowledge() -> None:
    for seed in range(HISTORIES):
        assert not loses_records(seed), seed


def test_a_leader_that_counts_followers_without_its_epoch_loses_records() -> None:
    """Raft describes such a history, too (figure 8)."""
    assert loses_records(FIGURE_8, stores_epochs=False)
    assert not loses_records(FIGURE_8)


def loses_records(seed: int, *, stores_epochs: bool = True) -> bool:
    """Return True if a recovery in this random history elects a leader that lacks acknowledged records."""
    rng = Random(seed)
    partition = Partition(rng.randint(2, 4), stores_epochs)
    for _ in range(RECOVERIES):
        for _ in range(rng.randint(1, STEPS)):
            partition.act(rng.choice(ACTIONS), rng.choice(REPLICAS), rng.randint(1, 3))
        dead = rng.sample(REPLICAS, rng.randint(0, partition.min_insync - 1))
        isr = tuple(rng.sample(REPLICAS, rng.randint(1, 4)))
        leader = recovered_leader(partition, dead, isr)
        assert leader not in dead, seed
        if leader == NO_LEADER:
            assert set(isr) <= set(dead), seed
            break
        if partition.logs[leader][: len(partition.acknowledged)] != partition.acknowledged:
            return True
        partition.elect(leader)
        partition.isr = {leader}
    return False


def recovered_leader(partition: Partition, dead: Collection[int], isr: tuple[int, ...]) -> int:
    """Return the leader that a recovery elects while these brokers are dead. The controller knows the ISR of some
    earlier moment."""

    def rules(image: MetadataImage, topic: str) -> ElectionRules:
        return ElectionRules(partition.min_insync)

    image = image_with(PartitionState(REPLICAS, REPLICAS, 1), fenced=dead)
    missing = image_with(PartitionState(REPLICAS, isr, isr[0]))
    decision = distrust_all(image, (), missing=missing, rules=rules)
    waiting = image.with_changes(decision.changes)
    epoch = waiting.topics[TOPIC].partitions[0].leader_epoch
    reports = {
        each: BrokerReport(waiting.brokers[each].incarnation_id, {(TOPIC_ID, 0): partition.report(each, epoch)})
        for each in REPLICAS
        if each not in dead
    }
    found = recover_leaders(waiting, [(TOPIC, 0)], reports, rules, quorums=decision.result.quorums)
    return waiting.with_changes(found.changes).topics[TOPIC].partitions[0].leader
