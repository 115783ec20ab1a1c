"""A cluster moves to another store while it runs: which store is in charge, and what happens if the controller dies.

To kill the controller at an exact step, it is first disconnected from both stores, and then its process ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import isawaitable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import parley.broker.store_move.driver as moving
import parley.broker.store_move.participant as participant
from parley import Cluster
from parley.broker.controller import controller
from parley.broker.membership.broker_state import BrokerState
from parley.broker.membership.known_stores import STORE_FILE
from parley.broker.membership.lifecycle import BrokerLifecycle
from parley.broker.metadata.image import MetadataImage
from parley.broker.runtime.states import IllegalStep
from parley.broker.store_move.participant import MoveEvent, StoreMoveParticipant
from parley.consensus.backend import Backend, Check, Op, TxnResult
from parley.consensus.errors import Moved, Unavailable
from parley.consensus.memory import MemoryBackend, MemoryStore
from parley.consensus.store_move.migration import REPORTED_STEPS, Migration, Step
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_record import READY_FOLDER
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.coordination import ABORT, START, STATUS, MigrateCoordinationRequest
from parley.protocol.messages.metadata import MetadataRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from tests.broker.memory_store import memory_backend

_names = itertools.count()
PATIENCE_S = 240
QUICK: dict[str, Any] = {"coordination_session_timeout_ms": 6000, "offsets_topic_num_partitions": 1}
"""The session timeout is short enough for tests that wait for it, and long enough for a loaded machine."""


@pytest.fixture
def target() -> str:
    """Return the address of an empty store in memory, which exists until the test ends."""
    return another()


_kept: list[MemoryStore] = []


def another() -> str:
    name = f"moving-{next(_names)}"
    _kept.append(MemoryStore().known_as(name))
    return f"memory://{name}"


@asynccontextmanager
async def running(brokers: int = 3, **settings: Any) -> AsyncIterator[tuple[Cluster, Client]]:
    async with Cluster(brokers=brokers, **QUICK, **settings) as cluster, Client(cluster.bootstrap_servers) as client:
        yield cluster, client


async def until(holds: Callable[[], Any]) -> None:
    """Wait until ``holds()`` is true; its result may be awaitable."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = holds()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(0.005)


async def ask(client: Client, action: int, url: str | None = None) -> Any:
    """Send the request until a controller responds to it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(KafkaError):
                answer = await client.send(MigrateCoordinationRequest(action=action, url=url))
                if answer.error_code != ErrorCode.NOT_CONTROLLER:
                    return answer
            await asyncio.sleep(0.02)


async def move(client: Client, url: str) -> Any:
    """Move, and wait until the move ends."""
    begun = await ask(client, START, url)
    assert begun.error_code == 0, begun
    return await ended(client, begun.move)


async def ended(client: Client, move: str) -> Any:
    """Wait until this move ends; return its last status."""

    async def has_ended() -> bool:
        answers.append(await ask(client, STATUS))
        return bool(answers[-1].state != "under way" or answers[-1].move != move)

    answers: list[Any] = []
    await until(has_ended)
    return answers[-1]


async def create(client: Client, name: str) -> None:
    """Create a topic, as a client that repeats the request after retriable errors."""
    wanted = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=2, replication_factor=-1, assignments=[], configs=[]
    )
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(KafkaError):
                answer = await client.send(CreateTopicsRequest(topics=[wanted]))
                code = ErrorCode(answer.topics[0].error_code)
                if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return
                assert code.retriable, answer
            await asyncio.sleep(0.02)


async def producer_id(client: Client, node: int) -> int:
    answer = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), node=node)
    assert answer.error_code == 0
    return int(answer.producer_id)


def brokers(cluster: Cluster) -> Collection[Any]:
    return cluster.brokers.values()


async def all_at(cluster: Cluster, url: str) -> None:
    """Wait until every running broker is registered in the store at this address, and all know the same controller.

    A new controller begins with the registrations of the old store, which end when the brokers join again.
    """

    def settled() -> bool:
        servers = [each.server for each in cluster.brokers.values() if each.is_running]
        images = [each.metadata.image for each in servers]
        return (
            all(each.parts.store_move.store.url == url for each in servers)
            and len({(image.controller_id, image.controller_epoch) for image in images}) == 1
            and any(each.parts.lifecycle.controller.is_active for each in servers)
            and all(each.parts.lifecycle.state is BrokerState.ACTIVE for each in servers)
            and all(shows(image, each) for image in images for each in servers)
        )

    def shows(image: MetadataImage, server: Any) -> bool:
        known = image.brokers[server.identity.broker_id]
        return known.epoch == server.parts.lifecycle.broker_epoch and not known.fenced

    await until(settled)


def epochs(cluster: Cluster) -> tuple[int, dict[int, int]]:
    image = next(each.server.metadata.image for each in cluster.brokers.values() if each.is_running)
    return image.controller_epoch, {each.broker_id: each.epoch for each in image.brokers.values()}


@pytest.mark.slow
async def test_the_cluster_continues_in_the_new_store_with_all_its_state(target: str) -> None:
    async with running() as (cluster, client):
        await create(client, "before")
        leaders = {p.partition_index: p.leader_id for p in (await client.metadata(["before"])).topics[0].partitions}
        ids = [await producer_id(client, 2)]
        term, incarnations = epochs(cluster)
        assert (await move(client, target)).state == "done"
        await all_at(cluster, target)
        after_term, after = epochs(cluster)
        assert after_term > term
        assert all(after[each] > incarnations[each] for each in incarnations)
        (topic,) = (await client.metadata(["before"])).topics
        assert {p.partition_index: p.leader_id for p in topic.partitions} == leaders, "leaders stay where they are"
        assert all(p.leader_epoch == 0 and len(p.isr_nodes) == 3 for p in topic.partitions)
        await create(client, "after")
        ids += [await producer_id(client, node) for node in (1, 2, 3)]
        assert len(set(ids)) == 4
        assert (await move(client, another())).state == "done"


@pytest.mark.slow
async def test_requests_for_the_controller_wait_for_the_one_in_the_new_store(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = 0
    until_settled = StoreMoveParticipant.until_settled

    async def counted(self: StoreMoveParticipant) -> None:
        nonlocal waiting
        waiting += not self.is_settled
        await until_settled(self)

    class Held(Migration):
        """The store stays frozen until every broker has a request that waits."""

        async def _copy(self, step: Step) -> None:
            await super()._copy(step)
            if step is Step.COPY_REST:
                await until(lambda: not any(each.server.parts.store_move.is_settled for each in brokers(cluster)))
                created.extend(asyncio.ensure_future(create_at(each)) for each in (1, 2, 3))
                await until(lambda: waiting == len(created))

    async def create_at(broker_id: int) -> int:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=f"by-{broker_id}", num_partitions=1, replication_factor=3, assignments=[], configs=[]
        )
        answer = await client.send(CreateTopicsRequest(topics=[wanted]), node=broker_id)
        return int(answer.topics[0].error_code)

    created: list[asyncio.Future[int]] = []
    monkeypatch.setattr(StoreMoveParticipant, "until_settled", counted)
    monkeypatch.setattr(moving, "Migration", Held)
    async with running() as (cluster, client):
        await client.metadata([])
        for each in (1, 2, 3):
            await client.send(MetadataRequest(topics=[]), node=each)  # connect before the freeze
        assert (await move(client, target)).state == "done"
        assert await asyncio.gather(*created) == [0, 0, 0]
        await all_at(cluster, target)
        await until(lambda: all(each.server.parts.store_move.is_settled for each in brokers(cluster)))


@pytest.mark.slow
async def test_a_frozen_store_is_not_one_that_does_not_respond(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that reached the controller before the freeze waits however long the freeze lasts."""

    class Long(Migration):
        async def _copy(self, step: Step) -> None:
            await super()._copy(step)
            if step is Step.COPY_REST:
                await until(lambda: not any(each.server.parts.store_move.is_settled for each in brokers(cluster)))
                with monkeypatch.context() as impatient:
                    impatient.setattr(controller, "STORE_PATIENCE_S", 0.2)
                    created.append(asyncio.ensure_future(create_once()))
                    await asyncio.sleep(1.0)
                assert not created[0].done()

    async def create_once() -> int:
        wanted = CreateTopicsRequest.CreatableTopic(
            name="meanwhile", num_partitions=1, replication_factor=3, assignments=[], configs=[]
        )
        answer = await client.send(CreateTopicsRequest(topics=[wanted]), node=await client.controller())
        return int(answer.topics[0].error_code)

    async def at_once(self: StoreMoveParticipant) -> None:
        """As if the broker had learned of the freeze after the request."""

    created: list[asyncio.Future[int]] = []
    monkeypatch.setattr(StoreMoveParticipant, "until_settled", at_once)
    monkeypatch.setattr(moving, "Migration", Long)
    async with running() as (cluster, client):
        assert (await move(client, target)).state == "done"
        assert await created[0] == 0


async def test_a_broker_that_knows_the_new_controller_before_the_new_store_holds_no_requests(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows the old controller, which is elected in the new store, too: so its metadata is ahead of the store."""
    live, late = BrokerLifecycle._live_in_one_session, set[int]()

    async def notice_late(self: BrokerLifecycle) -> None:
        try:
            await live(self)
        except Moved:
            metadata, own_id = self._metadata, self._broker.broker_id
            if metadata.image.controller_id != own_id:
                await until(lambda: metadata.image.controller_epoch > term)
                late.add(own_id)
            raise

    monkeypatch.setattr(BrokerLifecycle, "_live_in_one_session", notice_late)
    async with running() as (cluster, client):
        await create(client, "before")
        term, _ = epochs(cluster)
        assert (await move(client, target)).state == "done"
        await all_at(cluster, target)
        assert len(late) == 2
        await until(lambda: all(each.server.parts.store_move.is_settled for each in brokers(cluster)))


async def test_requests_stop_waiting_when_the_freeze_ends(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Migration):
        async def _copy(self, step: Step) -> None:
            if step is Step.COPY_REST:
                await until(
                    lambda: not any(each.server.parts.store_move.is_settled for each in cluster.brokers.values())
                )
                raise ConnectionError("the new store burns")
            await super()._copy(step)

    monkeypatch.setattr(moving, "Migration", Failing)
    async with running() as (cluster, client):
        origin = cluster.brokers[1].server.parts.store_move.store.url
        assert (await move(client, target)).detail == "the new store burns"
        await until(lambda: all(each.server.parts.store_move.is_settled for each in brokers(cluster)))
        await create(client, "after")
        await all_at(cluster, origin)


@pytest.mark.slow
@pytest.mark.parametrize("step", list(REPORTED_STEPS))
async def test_a_controller_that_dies_during_a_move_is_replaced(
    target: str, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as (cluster, client):
        await create(client, "before")
        origin = cluster.brokers[1].server.parts.store_move.store.url
        deaths: list[asyncio.Future[None]] = []
        monkeypatch.setattr(moving, "Migration", _dying_at(step, _death_in(cluster, deaths)))
        await ask(client, START, target)
        await until(lambda: deaths)
        await deaths[0]
        await create(client, "after")
        here, there = (target, origin) if step in (Step.TAKE, Step.DONE) else (origin, target)
        await all_at(cluster, here)
        monkeypatch.setattr(moving, "Migration", Migration)
        (dead,) = [each.id for each in cluster.brokers.values() if not each.is_running]
        await cluster.restart(dead)
        await all_at(cluster, here)
        assert (await move(client, there)).state == "done", "what was left of it is no hindrance"
        await all_at(cluster, there)
        assert {each.name for each in (await client.metadata()).topics} >= {"before", "after"}


@pytest.mark.slow
async def test_a_failed_move_back_is_not_reported_as_done(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as (cluster, client):
        origin = cluster.brokers[1].server.parts.store_move.store.url
        assert (await move(client, target)).state == "done"
        await all_at(cluster, target)
        deaths: list[asyncio.Future[None]] = []
        monkeypatch.setattr(moving, "Migration", _dying_at(Step.COPY, _death_in(cluster, deaths)))
        begun = await ask(client, START, origin)
        await until(lambda: deaths)
        await deaths[0]
        answer = await ended(client, begun.move)
        assert (answer.move, answer.state, answer.store) == (begun.move, "failed", target)
        assert answer.detail == "abandoned: another broker became the controller; start the move again"
        monkeypatch.setattr(moving, "Migration", Migration)
        assert (await move(client, origin)).state == "done"


def _death_in(cluster: Cluster, deaths: list[asyncio.Future[None]]) -> Callable[[Any, Any], None]:
    """Return a function that kills, once, the broker that owns these clients of the two stores."""

    def kill_controller(source: Backend, other: Backend) -> None:
        if not deaths:
            memory_backend(source).disconnect()
            memory_backend(other).disconnect()
            (dying,) = [
                each
                for each in cluster.brokers.values()
                if each.is_running and each.server.parts.store_move.store.backend is source
            ]
            deaths.append(asyncio.ensure_future(cluster.kill(dying.id)))

    return kill_controller


def _dying_at(step: Step, kill: Callable[[Any, Any], None]) -> type[Migration]:
    class Dying(Migration):
        def __init__(self, *args: Any, **options: Any) -> None:
            told = options.pop("on_step")

            def on_step(now: Step, detail: str) -> None:
                told(now, detail)
                if now is step:
                    kill(self._source.backend, self._target)

            super().__init__(*args, on_step=on_step, **options)

    return Dying


@pytest.mark.slow
async def test_a_broker_that_is_down_during_a_move_follows_with_its_old_configuration(tmp_path: Path) -> None:
    async with running(data_dir=tmp_path) as (cluster, client):
        await create(client, "before")
        await cluster.stop(3)
        other = f"local://{tmp_path}/other"
        assert (await move(client, other)).state == "done"
        await cluster.restart(3)
        await all_at(cluster, other)
        known = (tmp_path / "broker-3" / STORE_FILE).read_text().split()
        assert (known[0], len(known)) == (cluster.brokers[1].server.parts.store_move.store.identity, 2)
        await cluster.stop(2)
        cluster.brokers[2]._settings["coordination.url"] = other  # the one changed line
        await cluster.restart(2)
        await all_at(cluster, other)


@pytest.mark.slow
async def test_all_brokers_start_after_a_move_with_either_address(tmp_path: Path) -> None:
    cluster = Cluster(brokers=3, data_dir=tmp_path, **QUICK)
    async with cluster, Client(cluster.bootstrap_servers) as client:
        await create(client, "before")
        assert (await move(client, f"local://{tmp_path}/other")).state == "done"
        await all_at(cluster, f"local://{tmp_path}/other")
    async with cluster, Client(cluster.bootstrap_servers) as client:
        await all_at(cluster, f"local://{tmp_path}/other")
        assert "before" in {each.name for each in (await client.metadata()).topics}
        assert (await move(client, f"local://{tmp_path}/coordination")).state == "done", "back where it was"
        await all_at(cluster, f"local://{tmp_path}/coordination")


async def test_the_cluster_does_not_move_to_a_store_that_one_broker_cannot_use(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running() as (cluster, client):
        lonely = cluster.brokers[2].server.parts.store_move
        opened = lonely._backend_at
        other = MemoryStore().known_as(f"moving-{next(_names)}")

        async def elsewhere(url: str) -> Any:
            return MemoryBackend(other) if url == target else await opened(url)

        monkeypatch.setattr(lonely, "_backend_at", elsewhere)
        origin = lonely.store.url
        answer = await move(client, target)
        assert answer.state == "failed"
        assert "2 cannot use the new store" in answer.detail or "expected the store" in answer.detail
        await all_at(cluster, origin)
        await create(client, "after")


async def test_a_short_outage_of_the_store_while_brokers_report_does_not_end_the_move(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed, refused = MemoryBackend.txn, set[str]()

    async def txn(self: MemoryBackend, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        said = {op.key for op in ops if op.key.startswith(READY_FOLDER)} - refused
        if said:
            refused.update(said)
            raise Unavailable("the store is away")
        return await committed(self, checks, ops)

    monkeypatch.setattr(MemoryBackend, "txn", txn)
    async with running() as (cluster, client):
        assert (await move(client, target)).state == "done"
        await all_at(cluster, target)
    assert len(refused) == 3


async def test_a_move_is_given_up_on_request(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Waiting(Migration):
        async def _missing(self, view: Any) -> list[str]:
            return ["one that never comes"]

    monkeypatch.setattr(moving, "Migration", Waiting)
    async with running() as (cluster, client):
        origin = cluster.brokers[1].server.parts.store_move.store.url
        refused = await ask(client, ABORT)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        begun = await ask(client, START, target)
        again = await ask(client, START, target)
        assert (again.error_code, again.error_message) == (
            ErrorCode.INVALID_REQUEST,
            "A move to another store is already under way.",
        )

        async def is_waiting() -> bool:
            return "one that never comes" in (await ask(client, STATUS)).detail

        await until(is_waiting)
        await ask(client, ABORT)
        answer = await ended(client, begun.move)
        assert (answer.state, answer.detail) == ("failed", "abandoned")
        await create(client, "after")
        await all_at(cluster, origin)


async def test_invalid_requests_are_rejected() -> None:
    async with running(1) as (_, client):
        for action, url in ((START, "nowhere://x"), (START, None), (9, None)):
            assert (await ask(client, action, url)).error_code == ErrorCode.INVALID_REQUEST


async def test_requests_wait_from_the_freeze_until_the_new_store_has_a_controller() -> None:
    nothing: Any = None
    participant = StoreMoveParticipant(nothing, nothing, nothing, Random(1))
    participant._left_epoch = 7
    settled = []
    for event in (MoveEvent.STORE_FROZEN, MoveEvent.STORE_MOVED, MoveEvent.STORE_FOUND, MoveEvent.STORE_WRITABLE):
        participant._on(event)
        settled.append(participant.is_settled)
    participant.controller_elected(7)
    settled.append(participant.is_settled)
    participant.controller_elected(8)
    assert settled == [False] * 5
    assert participant.is_settled
    participant.controller_elected(9)
    with pytest.raises(IllegalStep, match="CONTROLLER_ELECTED is not legal in the state SETTLED"):
        participant._on(MoveEvent.CONTROLLER_ELECTED)


async def test_a_store_that_was_rolled_back_is_opened_again_and_each_failure_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a broker whose store does not come back would wait silently."""
    monkeypatch.setattr(participant, "RETRY_S", 0.001)
    store, told = MemoryStore(), list[str]()
    opened = StoreInCharge(MemoryBackend(store), "memory://set-back")
    await opened.open()
    again = MemoryBackend(store)
    attempts = iter([Unavailable("connection refused"), Unavailable("no route"), None])

    async def open_store(*, expect_identity: str | None) -> None:
        assert expect_identity == opened.identity
        if (error := next(attempts)) is not None:
            raise error
        await MemoryBackend.open(again, expect_identity=expect_identity)

    async def at(url: str) -> Backend:
        assert url == "memory://set-back"
        return again

    async def remember(identity: str) -> None:
        raise AssertionError("it is the same store")

    monkeypatch.setattr(again, "open", open_store)
    participating = StoreMoveParticipant(opened, at, remember, Random(1))
    await participating.open_again(told.append)
    assert told == ["connection refused", "no route"]
    assert participating.store.backend is again
    await participating.store.close()
