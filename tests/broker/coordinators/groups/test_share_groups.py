"""Share groups at their coordinator: what is stored of their partitions, regardless of the order of slow calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from parley.broker.coordinators.decision import Decision
from parley.broker.coordinators.groups.coordinator import ShareGroupsNeed
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.share.initialization import is_assignment_pending
from parley.broker.coordinators.groups.share.share_group import ShareGroup, ShareMember, Stored, TopicPartitions
from parley.broker.coordinators.groups.share.share_records import current_record, stored_record
from parley.broker.coordinators.share_state.persister import NO_CHECK
from parley.broker.metadata.changes import TopicCreated
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import PartitionState, TopicImage
from parley.broker.network.request_context import ConnectedClient, RequestContext
from parley.broker.security.session import anonymous
from parley.protocol.codec import decode_stored
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.share_groups import ShareGroupHeartbeatRequest
from parley.protocol.messages.stored_share_groups import ShareGroupCurrentMemberAssignmentValue
from parley.protocol.uuids import UUID
from tests.broker.coordinators.groups.grouped import Coordinated, Unreachable
from tests.support.virtual_time import run

T = UUID(int=1)
IMAGE = MetadataImage("c").with_changes([TopicCreated(TopicImage("t", T, (PartitionState((1,), (1,), 1),)))])
INITIALIZED = Stored(initialized={T: TopicPartitions("t", frozenset({0}))})
WITH_DELETED = Stored(initialized={**INITIALIZED.initialized, UUID(int=2): TopicPartitions("t", frozenset({0}))})
JOIN, LEAVE = 0, -1


def test_a_member_is_stored_in_the_state_that_kafka_calls_stable() -> None:
    _, value = current_record("g", ShareMember("m", epoch=2))
    assert value is not None
    assert decode_stored(ShareGroupCurrentMemberAssignmentValue, value)[0].state == 0


class Slow(Unreachable):
    """A persister whose calls can be held up: each acts at its end, as if it had been tried again."""

    def __init__(self) -> None:
        self.held: dict[str, asyncio.Event] = {}
        self.epochs: dict[UUID, int] = {}
        self.initialized = 0

    @contextmanager
    def held_up(self, call: str) -> Iterator[None]:
        self.held[call] = asyncio.Event()
        yield
        self.held.pop(call).set()

    async def _wait(self, call: str) -> None:
        if call in self.held:
            await self.held[call].wait()

    async def initialize(self, *args: object) -> None:
        await self._wait("initialize")
        self.initialized += 1
        topic_id, epoch = args[1], args[3]
        assert isinstance(topic_id, UUID)
        assert isinstance(epoch, int)
        self._check(topic_id, epoch)
        self.epochs[topic_id] = epoch

    async def delete(self, *args: object) -> None:
        await self._wait("delete")
        topic_id, epoch = args[1], args[3]
        assert isinstance(topic_id, UUID)
        assert isinstance(epoch, int)
        if epoch != NO_CHECK:
            self._check(topic_id, epoch)
        self.epochs.pop(topic_id, None)

    def _check(self, topic_id: UUID, epoch: int) -> None:
        if self.epochs.get(topic_id, 0) > epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)


class Bench:
    """A coordinator of share groups in a cluster with the topic ``t`` of one partition."""

    def __init__(self) -> None:
        self.persister = Slow()
        self.coordinated = Coordinated(image=IMAGE, share_need=ShareGroupsNeed(self.persister, _no_offset))

    async def begin(self) -> GroupShard:
        return await self.coordinated.begin()

    async def heartbeat(self, epoch: int, member: str = "one") -> int:
        """Send a heartbeat of a member that subscribes to ``t``. Returns the epoch of the member."""
        context = RequestContext(76, 1, 1, "test", ConnectedClient(anonymous("127.0.0.1", "PLAINTEXT"), 1), 0.0)
        request = ShareGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=epoch, subscribed_topic_names=["t"] if epoch == JOIN else None
        )
        response = self.coordinated.groups.share.heartbeat(context, request)
        found = await response if isinstance(response, asyncio.Future) else response
        await asyncio.sleep(0.1)
        return found.member_epoch


async def _no_offset(topic: str, partition: int) -> int:
    raise NotImplementedError


def test_a_slow_deletion_spares_state_that_is_initialized_later() -> None:
    async def scenario() -> None:
        bench = Bench()
        shard = await bench.begin()
        await bench.heartbeat(JOIN)
        await bench.heartbeat(LEAVE)
        with bench.persister.held_up("delete"):
            deleting = asyncio.ensure_future(bench.coordinated.groups.share.delete_offsets("g", ["t"]))
            await asyncio.sleep(1)
            await bench.heartbeat(JOIN)
        assert await deleting == {"t": None}
        await asyncio.sleep(1)
        group = shard.share_group("g")
        assert group is not None
        assert group.stored == INITIALIZED
        assert T in bench.persister.epochs

    run(scenario())


def test_a_superseded_coordinator_spares_state_that_its_successor_initializes() -> None:
    async def initialized_by_a_successor(begin: Callable[[Bench], Awaitable[object]]) -> bool:
        bench = Bench()
        await bench.begin()
        await bench.heartbeat(JOIN)
        await bench.heartbeat(LEAVE)
        share, runtime = bench.coordinated.groups.share, bench.coordinated.groups.runtime
        with bench.persister.held_up("delete"):
            deleting = asyncio.ensure_future(share.delete_offsets("g", ["t"]))
            await asyncio.sleep(1)
            runtime.on_resigned(0)
            runtime.on_elected(0, 2)
            await runtime.until_loaded(1)
            share._turns.clear()  # the successor is another broker
            await begin(bench)
            await asyncio.sleep(1)
        await deleting
        return T in bench.persister.epochs

    async def scenario() -> None:
        assert await initialized_by_a_successor(lambda bench: bench.heartbeat(JOIN))
        alter = {"t": {0: 5}}
        assert await initialized_by_a_successor(lambda bench: bench.coordinated.groups.share.alter_offsets("g", alter))

    run(scenario())


def test_state_that_a_deleted_group_has_left_is_removed() -> None:
    async def scenario() -> None:
        bench = Bench()
        shard = await bench.begin()
        bench.persister.epochs[T] = 7
        epoch = await bench.heartbeat(JOIN)
        assert bench.persister.epochs == {}
        await bench.heartbeat(epoch)
        group = shard.share_group("g")
        assert group is not None
        assert group.stored == INITIALIZED

    run(scenario())


def test_a_second_initialization_does_not_replace_the_first() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.begin()
        with bench.persister.held_up("initialize"):
            await bench.heartbeat(JOIN)
            await asyncio.sleep(31)
            await bench.heartbeat(JOIN, "two")
        await asyncio.sleep(1)
        assert bench.persister.initialized == 1

    run(scenario())


def test_a_topic_deleted_without_a_coordinator_is_forgotten() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.begin()
        runtime = bench.coordinated.groups.runtime
        await runtime.submit("g", lambda shard, now_ms: Decision(None, [stored_record("g", WITH_DELETED)]))
        runtime.on_resigned(0)
        runtime.on_elected(0, 2)
        await runtime.until_loaded(1)
        await asyncio.sleep(1)
        group = runtime.state_of(0).share_group("g")
        assert group is not None
        assert group.stored == INITIALIZED

    run(scenario())


def test_a_loaded_group_checks_its_topics_and_keeps_its_epoch_if_they_are_the_same() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.begin()
        epoch = JOIN
        for _ in range(3):  # the partition is initialized by the first, and assigned by the second
            epoch = await bench.heartbeat(epoch)
            await asyncio.sleep(2)  # longer than group.share.assignment.interval.ms
        runtime = bench.coordinated.groups.runtime
        runtime.on_resigned(0)
        runtime.on_elected(0, 2)
        await runtime.until_loaded(1)
        group = runtime.state_of(0).share_group("g")
        assert group is not None
        assert not group.metadata_checked
        assert await bench.heartbeat(epoch) == epoch
        assert group.metadata_checked
        assert group.epoch == epoch
        assert group.target_epoch == epoch

    run(scenario())


def test_a_deleted_topic_does_not_wait_for_a_member() -> None:
    group = ShareGroup("g", stored=WITH_DELETED, targets={"one": {T: frozenset({0})}})
    group.put_member("one", None, "", "", ("t",))
    assert not is_assignment_pending(group, IMAGE)
    group.targets = {}
    assert is_assignment_pending(group, IMAGE)


def test_altering_partitions_that_do_not_exist_makes_an_empty_group() -> None:
    """As in Kafka."""

    async def scenario() -> None:
        bench = Bench()
        shard = await bench.begin()
        altered = await bench.coordinated.groups.share.alter_offsets("g", {"t": {1: 5}})
        assert altered == {"t": {1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}}
        group = shard.share_group("g")
        assert group is not None
        assert not group.stored.initializing

    run(scenario())


def test_altering_no_topics_makes_no_group() -> None:
    """As in Kafka: a client without a right to any of the topics creates no group."""

    async def scenario() -> None:
        bench = Bench()
        shard = await bench.begin()
        assert await bench.coordinated.groups.share.alter_offsets("g", {}) == {}
        assert shard.share_group("g") is None

    run(scenario())
