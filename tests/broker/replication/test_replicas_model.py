"""Three replicas of one partition under random failures: no acknowledged record is lost, no read record changes.

The state machine is the network, the controller and the time. It decides when brokers learn of a new state. Replaced
leaders continue to lead until they learn of it, followers stop and start, and the ends of logs that were not flushed
are lost. Leaders and followers run the broker's own code, on real logs. At the end all replicas agree. At any time, a
recovery that knows only the logs would elect a replica that has all acknowledged records.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch.sessions import FetchSessions
from parley.broker.metadata.changes import BrokerRegistered, Change, Delta, PartitionChanged, TopicCreated
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, Endpoint, PartitionState, TopicImage
from parley.broker.metrics.registry import Metrics
from parley.broker.replication import isr_decisions as in_sync
from parley.broker.replication.follower_fetch_session import position_of
from parley.broker.replication.hosted_partitions import HostedPartitions
from parley.broker.replication.isr_decisions import LeaderSnapshot
from parley.broker.replication.partition import Partition, Purgatories
from parley.broker.replication.truncation_decisions import (
    Append,
    AskForRange,
    Truncate,
    TruncateFully,
    step_for,
    step_for_range,
)
from parley.broker.runtime.purgatory import Purgatory
from parley.broker.runtime.tasks import TaskSet
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from parley.protocol.uuids import UUID
from parley.storage.log import Log
from parley.storage.log_config import LogConfig
from tests.broker.api.bench import Logs, context
from tests.broker.replication.bench import batch, values_of
from tests.support.proportion import examples

C = TypeVar("C")
TOPIC, TOPIC_ID = "t", UUID(int=7)
BROKERS = (1, 2, 3)
LAG_MAX_S = 10.0
NOW_MS = 1_700_000_000_000
picks = st.integers(0, 2)


class Answer(Enum):
    """What happens to the controller's response to a leader."""

    ARRIVES = "the leader hears it"
    LOST = "the controller has decided, but the response is lost"
    LATER = "the controller has not been reached yet"


def one_of(choices: list[C], pick: int) -> C | None:
    """One of those that there are just now."""
    return choices[pick % len(choices)] if choices else None


def registration(broker_id: int, epoch: int, *, fenced: bool = False) -> BrokerRegistration:
    endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092)
    return BrokerRegistration(broker_id, epoch, UUID(int=epoch), (endpoint,), fenced=fenced)


def epochs(log: Log) -> list[int | None]:
    """Return the leader epoch of every record."""
    return [log.leader_epochs.epoch_at(offset) for offset in range(log.log_end_offset)]


class Replica:
    """One broker with its replica. ``sync`` is the offset up to which a crash of the machine loses nothing."""

    def __init__(self, broker_id: int, directory: Path) -> None:
        self.id = broker_id
        self.directory = directory
        self.epoch = 0
        self.sync = 0
        self.is_up = False
        directory.mkdir()

    async def start(self, image: MetadataImage) -> None:
        self.epoch += 1
        self.is_up = True
        self.metadata = Metadata(MetadataImage("cluster"))
        self.purgatories = Purgatories(produce=Purgatory(), fetch=Purgatory())
        self.tasks = TaskSet()
        self.partitions = HostedPartitions(
            self.id,
            Logs(self.directory),  # type: ignore[arg-type]
            lambda image, topic: LogConfig(segment_bytes=600),
            self.purgatories,
            self.tasks,
            Metrics(),
        )
        self.metadata.subscribe(self.partitions.apply)
        sessions = FetchSessions(10, random.Random(0), lambda: 0.0)
        self.api = FetchApi(
            self.partitions, self.metadata, sessions, self.purgatories.fetch, self.tasks, max_bytes=1 << 20
        )
        self.hear(image)
        await self.partitions.until_opened()

    def hear(self, image: MetadataImage) -> None:
        changes = image.changes_since(self.metadata.image)
        self.metadata.replace(image, Delta(image.controller_epoch, image.version, changes))

    @property
    def partition(self) -> Partition:
        return self.partitions.find(TOPIC, 0)

    @property
    def log(self) -> Log:
        return self.partition.log

    def stop(self) -> None:
        self.is_up = False
        self.log.release()


class Replicas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp(prefix="replicas-"))
        self.replicas = {i: Replica(i, self.folder / str(i)) for i in BROKERS}
        self.image = MetadataImage("cluster")
        self.now_s = 0.0
        self.written = 0
        self.acknowledged: dict[int, bytes] = {}
        self.waiting: list[tuple[int, int, int, bytes]] = []  # (leader, epoch, offset, value)
        self.seen: dict[int, bytes] = {}

    def teardown(self) -> None:
        async def close() -> None:
            for replica in self.replicas.values():
                if replica.is_up:
                    await replica.tasks.close()
                    replica.stop()

        if any(replica.is_up for replica in self.replicas.values()):
            self.runner.run(close())
        self.runner.close()
        shutil.rmtree(self.folder)

    # The controller.

    def change(self, *changes: Change) -> None:
        self.image = self.image.with_changes(changes)

    @property
    def state(self) -> PartitionState:
        return self.image.topics[TOPIC].partitions[0]

    def decide(self, isr: tuple[int, ...], leader: int) -> None:
        before = self.state
        epoch = before.leader_epoch + (leader != before.leader)
        new = replace(before, isr=isr, leader=leader, leader_epoch=epoch, partition_epoch=before.partition_epoch + 1)
        self.change(PartitionChanged(TOPIC, 0, new))

    def lives(self, broker_id: int) -> bool:
        return not self.image.brokers[broker_id].fenced

    @initialize()
    def begin(self) -> None:
        async def start() -> None:
            for replica in self.replicas.values():
                self.change(BrokerRegistered(registration(replica.id, 1)))
            self.change(TopicCreated(TopicImage(TOPIC, TOPIC_ID, (PartitionState(BROKERS, BROKERS, 1),))))
            for replica in self.replicas.values():
                await replica.start(self.image)

        self.runner.run(start())

    @rule(pick=picks)
    def a_broker_is_fenced(self, pick: int) -> None:
        """The broker may still be alive. It then continues as before."""
        self.fence(one_of([each for each in BROKERS if self.lives(each)], pick))

    def fence(self, broker: int | None) -> None:
        if broker is None or not self.lives(broker):
            return
        self.change(BrokerRegistered(replace(self.image.brokers[broker], fenced=True)))
        left = tuple(each for each in self.state.isr if each != broker)
        if self.state.leader == broker:
            alive = [each for each in left if self.lives(each)]
            self.decide(left or self.state.isr, alive[0] if alive else NO_LEADER)
        elif left and broker in self.state.isr:
            self.decide(left, self.state.leader)

    @rule(pick=picks)
    def a_broker_joins(self, pick: int) -> None:
        broker = one_of([each for each in BROKERS if not self.lives(each)], pick)
        if broker is None:
            return
        replica = self.replicas[broker]
        if replica.is_up:
            replica.epoch += 1
        else:
            self.runner.run(replica.start(self.image))
        self.change(BrokerRegistered(registration(broker, replica.epoch)))
        if self.state.leader == NO_LEADER and broker in self.state.isr:
            self.decide(self.state.isr, broker)
        replica.hear(self.image)

    @rule(pick=picks, machine=st.booleans())
    def a_broker_dies(self, pick: int, machine: bool) -> None:
        """A broker dies, and the controller learns of it. If its ``machine`` dies, unflushed records are lost.

        The machine of the last member of the ISR does not die, since that could lose acknowledged records.
        """
        broker = one_of([replica.id for replica in self.replicas.values() if replica.is_up], pick)
        if broker is None:
            return
        replica = self.replicas[broker]
        replica.stop()
        self.waiting = [each for each in self.waiting if each[0] != broker]
        others = [each for each in self.state.isr if each != broker]
        if machine and others and replica.sync < replica.log.log_end_offset:
            self.runner.run(self.lose_end(replica))
        self.fence(broker)

    async def lose_end(self, replica: Replica) -> None:
        log = await Logs(replica.directory).get_or_create(TOPIC, 0, topic_id=TOPIC_ID, config=LogConfig())
        log.truncate_to(replica.sync)
        log.close()

    @rule(pick=picks)
    def a_broker_hears(self, pick: int) -> None:
        behind = [each for each in self.replicas.values() if each.is_up and each.metadata.image is not self.image]
        replica = one_of(behind, pick)
        if replica is not None:
            replica.hear(self.image)

    # Leaders.

    @property
    def leaders(self) -> list[Replica]:
        """The brokers that believe that they lead."""
        return [replica for replica in self.replicas.values() if replica.is_up and replica.partition.is_leader]

    @rule(pick=picks, count=st.integers(1, 4))
    def a_leader_writes(self, pick: int, count: int) -> None:
        replica = one_of(self.leaders, pick)
        if replica is None:
            return
        values = [b"%d-%d" % (self.written, i) for i in range(count)]
        self.written += 1
        info = replica.partition.append(batch(*values, timestamp=NOW_MS), acks=-1, now_ms=NOW_MS)
        epoch = replica.partition.leader_epoch
        self.waiting += [(replica.id, epoch, info.first_offset + i, value) for i, value in enumerate(values)]

    @rule(pick=picks, seconds=st.sampled_from([0.0, 30.0]), answer=st.sampled_from(Answer))
    def a_leader_looks_at_its_followers(self, pick: int, seconds: float, answer: Answer) -> None:
        self.now_s += seconds
        replica = one_of(self.leaders, pick)
        if replica is None:
            return
        partition = replica.partition
        if not partition.followers.has_proposed_isr:
            view = LeaderSnapshot(
                replica.id,
                partition.state,
                partition.followers.progress,
                partition.log.log_end_offset,
                partition.high_watermark,
                partition.epoch_start_offset,
            )
            isr = in_sync.wanted_isr(view, replica.metadata.image.brokers, self.now_s, LAG_MAX_S)
            if isr is not partition.state.isr:
                partition.followers.propose_isr(isr)
        if partition.followers.has_proposed_isr and answer is not Answer.LATER:
            self.answer(replica, answer)

    def answer(self, replica: Replica, answer: Answer) -> None:
        """Grant or refuse an ISR that is proposed for the newest state. The response may be lost."""
        partition, state = replica.partition, self.state
        known = (partition.state.leader_epoch, partition.state.partition_epoch)
        if known != (state.leader_epoch, state.partition_epoch):
            return  # the metadata will tell
        asked = partition.followers._proposed_isr
        epochs = {each: progress.broker_epoch for each, progress in partition.followers.progress.items()}
        if all(self.lives(each) and epochs.get(each, -1) in (-1, self.image.brokers[each].epoch) for each in asked):
            self.decide(asked, state.leader)
            if answer is Answer.ARRIVES:
                replica.hear(self.image)
        elif answer is Answer.ARRIVES:
            partition.withdraw_isr()

    # Followers.

    @rule(pick=picks, limit=st.sampled_from([1, 1 << 20]), times=st.sampled_from([1, 3]), is_synced=st.booleans())
    def a_follower_fetches(self, pick: int, limit: int, times: int, is_synced: bool) -> None:
        """The broker that the follower takes for the leader."""
        follower = one_of([each for each in self.replicas.values() if self.leader_of(each) is not None], pick)
        if follower is None:
            return
        leader = self.leader_of(follower)
        assert leader is not None
        for _ in range(times):
            self.runner.run(self.fetch(follower, leader, limit))
        end = follower.log.log_end_offset
        follower.sync = end if is_synced else min(follower.sync, end)

    def leader_of(self, replica: Replica) -> Replica | None:
        """Return the leader that a follower would fetch from, if it runs."""
        if not replica.is_up or replica.partition.is_leader:
            return None
        leader = self.replicas.get(replica.partition.state.leader)
        return leader if leader is not None and leader.is_up else None

    async def fetch(self, follower: Replica, leader: Replica, limit: int) -> bool:
        """Fetch once. Returns True if that changed anything."""
        log = follower.log
        at = position_of(log, follower.partition.leader_epoch)
        asked = FetchRequest.FetchPartition(
            partition=0,
            current_leader_epoch=at.leader_epoch,
            fetch_offset=at.offset,
            last_fetched_epoch=at.last_fetched_epoch,
            log_start_offset=at.log_start_offset,
            partition_max_bytes=limit,
            stored_epoch=at.stored_epoch,
        )
        request = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=follower.id, replica_epoch=follower.epoch),
            max_wait_ms=0,
            min_bytes=1,
            topics=[FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[asked])],
            stores_epochs=True,
        )
        self.now_s += 0.001
        asker = context(18)
        asker.received_at = self.now_s
        try:
            answer: Any = leader.api.fetch(asker, request)
        except KafkaError:
            return False
        if not isinstance(answer, FetchResponse):
            answer = await answer
        return self.take(follower, leader, answer.responses[0].partitions[0])

    def take(self, follower: Replica, leader: Replica, data: FetchResponse.PartitionData) -> bool:
        partition, log = follower.partition, follower.log
        step = step_for(log, data)
        if isinstance(step, AskForRange):
            found = step_for_range(log.log_end_offset, leader.log.log_start_offset, leader.log.log_end_offset)
            assert found is None or isinstance(found, Truncate | TruncateFully)
            step = found or Append()
            data.records = b""
        match step:
            case Append():
                if data.error_code:
                    return False
                before = log.log_end_offset, log.high_watermark, log.stored_epoch
                partition.append_fetched(
                    bytes(data.records or b""),  # type: ignore[arg-type]
                    high_watermark=data.high_watermark,
                    log_start_offset=data.log_start_offset,
                )
                if data.must_store_epoch:
                    log.store_epoch(partition.leader_epoch)
                return before != (log.log_end_offset, log.high_watermark, log.stored_epoch)
            case Truncate(offset):
                log.truncate_to(offset)
                return True
            case TruncateFully(offset):
                log.truncate_fully_and_start_at(offset)
                return True
        return False

    # What must hold.

    @invariant()
    def what_is_acknowledged_is_noted(self) -> None:
        still = []
        for each in self.waiting:
            broker, epoch, offset, value = each
            partition = self.replicas[broker].partition
            code = partition.append_outcome(offset)
            if code is None and partition.leader_epoch == epoch:
                still.append(each)
            elif code == ErrorCode.NONE and partition.leader_epoch == epoch:
                assert self.acknowledged.setdefault(offset, value) == value
        self.waiting = still

    @invariant()
    def what_clients_have_seen_does_not_change(self) -> None:
        for replica in self.replicas.values():
            if replica.is_up:
                values = values_of(replica.log)[: replica.log.high_watermark]
                for offset, value in enumerate(values):
                    assert self.seen.setdefault(offset, value) == value

    @invariant()
    def the_leader_has_what_was_acknowledged(self) -> None:
        if not self.image.topics or self.state.leader == NO_LEADER:
            return
        leader = self.replicas[self.state.leader]
        if leader.is_up:
            values = values_of(leader.log)
            for offset, value in self.acknowledged.items():
                assert offset < len(values), f"{offset} of {self.acknowledged} is lost"
                assert values[offset] == value

    @invariant()
    def a_recovery_finds_what_was_acknowledged(self) -> None:
        up = [replica.log for replica in self.replicas.values() if replica.is_up]
        if len(up) < len(BROKERS):
            return
        best = max(up, key=lambda log: (log.stored_epoch, log.log_end_offset))
        values = values_of(best)
        assert {offset: values[offset] for offset in self.acknowledged if offset < len(values)} == self.acknowledged

    @precondition(lambda self: self.image.topics)
    @rule()
    def all_is_well_again(self) -> None:
        """All brokers are back, get the newest state and fetch: at the end all replicas must agree."""
        for _ in BROKERS:
            self.a_broker_joins(0)
        for replica in self.replicas.values():
            if not replica.is_up:
                self.runner.run(replica.start(self.image))
            replica.hear(self.image)
        assert self.state.leader != NO_LEADER
        leader = self.replicas[self.state.leader]
        for replica in self.replicas.values():
            while replica is not leader and self.runner.run(self.fetch(replica, leader, 1 << 20)):
                pass
        assert len({tuple(values_of(replica.log)) for replica in self.replicas.values()}) == 1
        assert len({tuple(epochs(replica.log)) for replica in self.replicas.values()}) == 1


TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
