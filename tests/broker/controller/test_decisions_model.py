"""The controller's decisions in any order: what must hold for the metadata whatever happens to a cluster.

Every step also goes through the coordination store's form of the metadata, as a controller that takes over reads it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.broker.controller.broker_reports import BrokerReport, ReplicaReport
from parley.broker.controller.brokers import (
    fence_broker,
    hand_over_leadership,
    register_broker,
    take_replicas_offline,
    unregister_broker,
)
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import ElectionRules, RecoveryStrategy
from parley.broker.controller.elections.leader_reconciliation import reconcile_leaders
from parley.broker.controller.elections.preferred_elections import elect_preferred_leaders, rebalance_to_preferred
from parley.broker.controller.elections.requested_elections import ElectionType, needing_election
from parley.broker.controller.elections.unclean_leader_choice import recover_leaders
from parley.broker.controller.isr_changes import IsrChange, alter_partitions
from parley.broker.controller.reassignment import Reassignment, alter_reassignments, list_reassignments
from parley.broker.controller.stored_metadata import read_image, writes_for
from parley.broker.controller.topics import (
    NewPartitions,
    NewTopic,
    TopicDefaults,
    add_partitions,
    create_topics,
    delete_topics,
)
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, ConfigResource, PartitionState, ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID
from tests.support.proportion import examples

T = TypeVar("T")

IDS = range(1, 6)
brokers = st.sampled_from(IDS)
names = st.sampled_from(["a", "b"])
indexes = st.integers(0, 3)
goals = st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)


def rules(image: MetadataImage, topic: str) -> ElectionRules:
    """Return the rules: topic "a" needs one replica in sync and allows unclean elections; "b" needs two."""
    return ElectionRules(1, RecoveryStrategy.AGGRESSIVE) if topic == "a" else ElectionRules(2)


Writes = list[tuple[str, bytes | None]]


def write(stored: dict[str, bytes], writes: Writes) -> None:
    """Apply writes as the store does."""
    for key, value in writes:
        if value is None:
            stored.pop(key, None)
        else:
            stored[key] = value


def check_sound(image: MetadataImage) -> None:
    """Check the invariants of every partition."""
    live = {broker.broker_id for broker in image.live_brokers()}
    for _, _, state in image.partitions():
        assert not set(state.isr) & set(state.elr)
        assert {*state.elr, *state.last_known_elr} <= set(state.replicas)
        assert not {*state.isr, *state.elr} & set(state.last_known_elr)
        assert len(set(state.isr)) == len(state.isr)
        assert len(set(state.replicas)) == len(state.replicas)
        assert set(state.isr) <= set(state.replicas)
        assert {*state.adding, *state.removing} <= set(state.replicas)
        assert not set(state.adding) & set(state.removing)
        if state.leader == NO_LEADER:
            assert not state.isr
            assert not live & set(state.elr)
        else:
            assert not state.last_known_elr
            assert state.leader in live
            assert set(state.isr) <= live


class Controlling(RuleBasedStateMachine):
    """An image that all decisions change, and its copy in the store."""

    def __init__(self) -> None:
        super().__init__()
        self.image = MetadataImage("c")
        self.stored: dict[str, bytes] = {}
        self.epoch = 0
        self.rng = Random(0)

    def decide(self, decision: Decision[T]) -> T:
        before, after = self.image, self.image.with_changes(decision.changes)
        writes = list(writes_for(decision.changes, after, before).items())
        if len(writes) > 1:
            self.check_torn(writes[: self.rng.randrange(1, len(writes))])
        write(self.stored, writes)
        self.check_step(before, after)
        self.image = after
        return decision.result

    @initialize(ids=st.sets(brokers, min_size=2))
    def begin(self, ids: set[int]) -> None:
        for broker_id in ids:
            self.join(broker_id, False)
        self.create("a", 2, 2)

    # What happens.

    @rule(broker_id=brokers, same_process=st.booleans())
    def join(self, broker_id: int, same_process: bool) -> None:
        self.epoch += 1
        known = self.image.brokers.get(broker_id)
        process = known.incarnation_id if known is not None and same_process else UUID(int=self.epoch)
        self.decide(register_broker(self.image, BrokerRegistration(broker_id, self.epoch, process, ()), None, rules))

    @rule(broker_id=brokers, back=st.integers(0, 2))
    def join_late(self, broker_id: int, back: int) -> None:
        """Register a broker with an epoch that is out of date."""
        known = self.image.brokers.get(broker_id)
        if known is not None:
            late = replace(known, epoch=known.epoch - back, fenced=False)
            assert register_broker(self.image, late, None, rules).changes == ()

    @rule(broker_id=brokers)
    def lose(self, broker_id: int) -> None:
        self.decide(fence_broker(self.image, broker_id, rules))

    @rule(broker_id=brokers, late=st.booleans())
    def leave(self, broker_id: int, late: bool) -> None:
        known = self.image.brokers.get(broker_id)
        if known is None or late:
            with pytest.raises(KafkaError) as refused:
                hand_over_leadership(self.image, broker_id, self.epoch + 1, rules)
            unknown, stale = ErrorCode.BROKER_ID_NOT_REGISTERED, ErrorCode.STALE_BROKER_EPOCH
            assert refused.value.code is (unknown if known is None else stale)
            return
        for topic, index in self.decide(hand_over_leadership(self.image, broker_id, known.epoch, rules)):
            state = self.image.partition(topic, index)
            assert state is not None
            assert state.leader == NO_LEADER

    @rule(broker_id=brokers)
    def unregister(self, broker_id: int) -> None:
        known = self.image.brokers.get(broker_id)
        if known is not None and known.fenced:
            self.decide(unregister_broker(self.image, broker_id))

    @rule(topic=names, partitions=st.integers(1, 4), factor=st.integers(1, 4))
    def create(self, topic: str, partitions: int, factor: int) -> None:
        wanted = NewTopic(topic, partitions, factor, configs={"retention.ms": "1"} if factor == 1 else {})
        self.decide(
            create_topics(
                self.image,
                [wanted],
                defaults=TopicDefaults(1, 1),
                new_id=lambda: UUID(int=self.rng.getrandbits(128)),
                rng=self.rng,
            )
        )

    @rule(topic=names, total=st.integers(1, 5))
    def grow(self, topic: str, total: int) -> None:
        self.decide(add_partitions(self.image, [NewPartitions(topic, total)], rng=self.rng))

    @rule(topic=names, again=st.booleans())
    def delete(self, topic: str, again: bool) -> None:
        self.decide(delete_topics(self.image, [topic], {}))
        if again:
            self.create(topic, 3, 2)
        assert ConfigResource(ResourceType.TOPIC, topic) not in self.image.configs

    @rule(named=st.none() | st.sets(st.tuples(names, indexes)))
    def elect(self, named: set[tuple[str, int]] | None) -> None:
        wanted = needing_election(self.image, ElectionType.PREFERRED) if named is None else named
        self.decide(elect_preferred_leaders(self.image, wanted, rules))

    @rule(requested=st.booleans(), reporting=st.dictionaries(brokers, st.integers(-1, 3)))
    def recover(self, requested: bool, reporting: dict[int, int]) -> None:
        """Brokers report logs of several lengths, -1 for none; perhaps an operator has requested the election."""
        keys = {(topic, index): self.image.topics[topic].topic_id for topic, index, _ in self.image.partitions()}
        reports = {
            broker_id: BrokerReport(
                self.image.brokers[broker_id].incarnation_id,
                {(topic_id, index): ReplicaReport(1, end, 0) for (_, index), topic_id in keys.items() if end >= 0},
            )
            for broker_id, end in reporting.items()
            if broker_id in self.image.brokers
        }
        before = self.image
        for outcome in self.decide(recover_leaders(self.image, keys, reports, rules, requested=requested)):
            known = before.partition(outcome.topic, outcome.partition)
            after = self.image.partition(outcome.topic, outcome.partition)
            assert known is not None
            assert known.leader == NO_LEADER
            assert after is not None
            assert after.leader == outcome.choice.leader
            if after.leader == NO_LEADER:
                assert after is known
            elif not requested and outcome.topic == "b":
                assert not known.elr
                assert set(known.last_known_elr) <= reports.keys()

    @rule(broker_id=brokers, topic=names, index=indexes)
    def lose_disk(self, broker_id: int, topic: str, index: int) -> None:
        known = self.image.brokers.get(broker_id)
        if known is not None and topic in self.image.topics:
            replicas = [(self.image.topics[topic].topic_id, index)]
            self.decide(take_replicas_offline(self.image, broker_id, known.epoch, replicas, rules))

    @rule()
    def elect_what_is_allowed(self) -> None:
        self.decide(reconcile_leaders(self.image, rules))

    @rule(percentage=st.sampled_from([0, 50]), limit=st.integers(1, 3))
    def balance(self, percentage: int, limit: int) -> None:
        self.decide(rebalance_to_preferred(self.image, percentage, limit, rules))

    @rule(topic=names, index=indexes, goal=goals, may_change=st.booleans())
    def move_anywhere(self, topic: str, index: int, goal: tuple[int, ...], may_change: bool) -> None:
        self.move(Reassignment(topic, index, goal), may_change)

    @precondition(lambda self: self.image.topics)
    @rule(data=st.data(), order=st.permutations(IDS), count=st.integers(1, 3))
    def move_to_brokers(self, data: st.DataObject, order: list[int], count: int) -> None:
        """Reassign an existing partition to registered brokers."""
        topic, index, _ = data.draw(st.sampled_from(list(self.image.partitions())))
        self.move(Reassignment(topic, index, tuple(i for i in order if i in self.image.brokers)[:count]), True)

    @precondition(lambda self: bool(list_reassignments(self.image, None)))
    @rule(data=st.data())
    def stop_moving(self, data: st.DataObject) -> None:
        topic, index, _ = data.draw(st.sampled_from(list_reassignments(self.image, None)))
        self.move(Reassignment(topic, index, None), False)

    def move(self, move: Reassignment, may_change: bool) -> None:
        (outcome,) = self.decide(alter_reassignments(self.image, [move], rules, factor_may_change=may_change))
        moving = {(topic, index) for topic, index, _ in list_reassignments(self.image, None)}
        if outcome.error is None and move.replicas is None:
            assert (move.topic, move.partition) not in moving

    @rule(
        topic=names,
        index=indexes,
        sender=brokers,
        isr=st.lists(brokers, max_size=5),
        late=st.tuples(st.integers(-1, 1), st.integers(-1, 1), st.integers(-1, 1)),
    )
    def alter(self, topic: str, index: int, sender: int, isr: list[int], late: tuple[int, int, int]) -> None:
        """A broker proposes an arbitrary ISR, with current or outdated epochs."""
        state = self.image.partition(topic, index)
        if sender not in self.image.brokers or state is None:
            return
        members = tuple((i, self.image.brokers[i].epoch + late[2]) for i in isr if i in self.image.brokers)
        topic_id = self.image.topics[topic].topic_id
        change = IsrChange(topic_id, index, state.leader_epoch + late[0], state.partition_epoch + late[1], members)
        (outcome,) = self.decide(
            alter_partitions(self.image, sender, self.image.brokers[sender].epoch, [change], rules)
        )
        if any(late[:2]) or sender != state.leader or (late[2] and members):
            assert outcome.error is not ErrorCode.NONE

    @precondition(lambda self: self.image.topics)
    @rule(data=st.data(), count=st.integers(1, 5))
    def agree(self, data: st.DataObject, count: int) -> None:
        """A leader proposes a valid ISR: itself, and live followers."""
        live = {broker.broker_id for broker in self.image.live_brokers()}
        led = [each for each in self.image.partitions() if each[2].leader != NO_LEADER]
        if led:
            topic, index, state = data.draw(st.sampled_from(led))
            followers = [i for i in state.replicas if i in live and i != state.leader]
            self.caught_up(topic, index, state, [state.leader, *followers[:count]])

    def caught_up(self, topic: str, index: int, state: PartitionState, isr: list[int]) -> None:
        change = IsrChange(
            self.image.topics[topic].topic_id,
            index,
            state.leader_epoch,
            state.partition_epoch,
            tuple((i, self.image.brokers[i].epoch) for i in isr),
        )
        epoch = self.image.brokers[state.leader].epoch
        (outcome,) = self.decide(alter_partitions(self.image, state.leader, epoch, [change], rules))
        assert outcome.error in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED)
        assert outcome.state == self.image.partition(topic, index)

    @rule()
    def all_return_and_catch_up(self) -> None:
        """Once all brokers are back and in sync, every reassignment is complete."""
        for broker_id in sorted({i for _, _, state in self.image.partitions() for i in state.replicas}):
            self.join(broker_id, True)
        logs = {
            (topic.topic_id, index): ReplicaReport(1, 1, 1)
            for topic in self.image.topics.values()
            for index in range(len(topic.partitions))
        }
        reports = {i: BrokerReport(broker.incarnation_id, logs) for i, broker in self.image.brokers.items()}
        keys = [(topic, index) for topic, index, _ in self.image.partitions()]
        self.decide(recover_leaders(self.image, keys, reports, rules))
        for topic, index, state in list(self.image.partitions()):
            assert state.leader != NO_LEADER
            self.caught_up(topic, index, state, [state.leader, *(i for i in state.replicas if i != state.leader)])
        assert all(not state.adding and not state.removing for _, _, state in self.image.partitions())

    # What must hold.

    def check_torn(self, begun: Writes) -> None:
        """Check that if a controller dies in the middle of its writes, the next one can read and repair the state."""
        stored = dict(self.stored)
        write(stored, begun)
        torn = read_image("c", stored)
        check_sound(torn.with_changes(reconcile_leaders(torn, rules).changes))

    def check_step(self, before: MetadataImage, after: MetadataImage) -> None:
        for topic, index, new in after.partitions():
            known = before.topics.get(topic)
            if known is None or known.topic_id != after.topics[topic].topic_id or index >= len(known.partitions):
                continue
            old = known.partitions[index]
            assert new.leader_epoch >= old.leader_epoch
            assert (new.partition_epoch > old.partition_epoch) == (new != old)
            if new.leader != old.leader:
                assert new.leader_epoch > old.leader_epoch

    @invariant()
    def each_partition_is_sound(self) -> None:
        check_sound(self.image)
        assert reconcile_leaders(self.image, rules).changes == ()

    @invariant()
    def a_successor_reads_the_same(self) -> None:
        read = read_image("c", self.stored)
        shown: Any = (self.image.brokers, self.image.topics, self.image.topic_names, self.image.configs)
        assert (read.brokers, read.topics, read.topic_names, read.configs) == shown


TestControlling = Controlling.TestCase
TestControlling.settings = settings(max_examples=examples(120), stateful_step_count=50, deadline=None)
