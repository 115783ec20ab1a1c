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

    A leader appends a record as soon as it is elected. Without one, no log shows that it led, and a replica with
    unacknowledged records of the leader before it would look better.
    """

    min_insync: int
    leader: int = 1
    epoch: int = 0
    isr: set[int] = field(default_factory=lambda: {*REPLICAS})
    logs: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {each: [] for each in REPLICAS})
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
            same = next((i for i, (a, b) in enumerate(zip(log, own, strict=False)) if a != b), min(len(log), len(own)))
            own[same:] = log[same : max(same, len(own)) + count]
            self.known[replica] = min(len(own), self.known[self.leader])
        elif action == "shrink" and replica != self.leader:
            self.isr.discard(replica)
        elif action == "expand" and own == log:
            self.isr.add(replica)
        elif action == "elect" and replica in self.isr:
            self.leader, self.epoch = replica, self.epoch + 1
            self._append()
        self._commit()

    def _append(self) -> None:
        self.appended += 1
        self.logs[self.leader].append((self.epoch, self.appended))

    def _commit(self) -> None:
        log = self.logs[self.leader]
        ends = [len(self.logs[each]) for each in self.isr if self.logs[each] == log[: len(self.logs[each])]]
        if len(ends) == len(self.isr) >= self.min_insync:
            self.known[self.leader] = max(self.known[self.leader], min(ends))
            self.acknowledged = max(self.acknowledged, log[: min(ends)], key=len)

    def report(self, replica: int, epoch: int) -> ReplicaReport:
        log = self.logs[replica]
        return ReplicaReport(log[-1][0] if log else -1, len(log), self.known[replica], current_leader_epoch=epoch)


ACTIONS = ("append", "fetch", "fetch", "fetch", "shrink", "expand", "elect")
HISTORIES = 300
STEPS = 60


def test_no_acknowledged_record_is_lost_if_fewer_brokers_are_dead_than_acknowledge() -> None:
    for seed in range(HISTORIES):
        rng = Random(seed)
        partition = Partition(rng.randint(2, 4))
        for _ in range(rng.randint(1, STEPS)):
            partition.act(rng.choice(ACTIONS), rng.choice(REPLICAS), rng.randint(1, 3))
        dead = rng.sample(REPLICAS, rng.randint(0, partition.min_insync - 1))
        isr = tuple(rng.sample(REPLICAS, rng.randint(1, 4)))
        leader = recovered_leader(partition, dead, isr)
        assert leader not in dead, seed
        if leader == NO_LEADER:
            assert set(isr) <= set(dead), seed
            continue
        assert partition.logs[leader][: len(partition.acknowledged)] == partition.acknowledged, seed


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
