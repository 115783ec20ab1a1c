"""The coordination store is rolled back to an older state than the brokers have seen."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from random import Random

import pytest

from parley import Cluster
from parley.broker.coordinators.producer_ids import BLOCK
from parley.broker.metadata.types import PartitionState
from parley.consensus.backend import Backend, Delete, Entry, Put
from parley.consensus.registry import create_backend
from parley.consensus.store_move.store_copy import everything
from parley.consensus.store_move.store_record import ROLLED_BACK_KEY
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.elections import AlterPartitionReassignmentsRequest
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.messages.produce import ProduceRequest
from parley.protocol.messages.producers import InitProducerIdRequest
from parley.protocol.messages.topics import CreateTopicsRequest
from parley.protocol.records.batch import build
from parley.protocol.records.record import Record
from tests.support.stores.running import STORES, below

pytestmark = pytest.mark.slow

_names = count()
SETTINGS = {"coordination.session.timeout.ms": "20000", "replica.lag.time.max.ms": "2000"}
PATIENCE_S = 60
PAUSE_S = 0.05
LOSS = "a leader was elected that may lack acknowledged records"
RETRIED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


@pytest.fixture(params=["memory", "local"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store."""
    return {"memory": f"memory://restored-{next(_names)}", "local": f"local://{tmp_path}/store"}[request.param]


@pytest.fixture
async def store(url: str) -> AsyncIterator[Backend]:
    async with create_backend(url) as backend:
        yield backend


async def backup(store: Backend) -> list[Entry]:
    """Everything that lasts in the store, as a snapshot of the store's server has it."""
    return [entry for entry in await everything(store) if entry.session is None]


async def roll_back(store: Backend, old: list[Entry], *, is_marked: bool = False) -> None:
    """Put the store back to the state of the backup, without its sessions. A restored dump also leaves a mark."""
    had = {entry.key for entry in old}
    deletions = [Delete(entry.key) for entry in await everything(store) if entry.key not in had]
    mark = [Put(ROLLED_BACK_KEY, b"restored")] if is_marked else []
    for part in store.capabilities.parts([*deletions, *(Put(entry.key, entry.value) for entry in old), *mark]):
        await store.txn((), part)


async def kill_all(cluster: Cluster) -> None:
    for broker_id in cluster.brokers:
        await cluster.kill(broker_id)


async def start(cluster: Cluster, *broker_ids: int) -> None:
    """Start the brokers at the same time, and wait until each of them is in the cluster."""
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(cluster.restart(broker_id) for broker_id in broker_ids))


def running(cluster: Cluster) -> list[int]:
    return [broker_id for broker_id, broker in cluster.brokers.items() if broker.is_running]


async def next_controller(cluster: Cluster, epoch: int) -> int:
    """Wait until every running broker knows a controller above this epoch. Returns its epoch."""
    for broker_id in running(cluster):
        metadata = cluster.brokers[broker_id].server.metadata
        assert await metadata.until(
            lambda image: image.controller_epoch > epoch and image.controller_id > 0, PATIENCE_S
        )
    return max(cluster.brokers[each].server.metadata.image.controller_epoch for each in running(cluster))


def controller_of(cluster: Cluster, broker_id: int) -> int:
    """Return the controller that this broker knows."""
    return cluster.brokers[broker_id].server.metadata.image.controller_id


async def producer_id(cluster: Cluster, broker_id: int) -> int:
    async with Client(cluster.brokers[broker_id].bootstrap_servers) as client:
        answer = await client.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0))
    assert answer.error_code == 0
    return int(answer.producer_id)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


class Topic:
    """A topic with one partition and three replicas, and the values that were acknowledged by all that are in sync."""

    def __init__(self, cluster: Cluster, name: str = "t") -> None:
        self.name = name
        self.acknowledged: list[bytes] = []
        self._cluster = cluster

    async def create(self, *replicas: int) -> None:
        """Create the topic, on these brokers if any are given."""
        config = CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")
        assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        topic = CreateTopicsRequest.CreatableTopic(
            name=self.name,
            num_partitions=-1 if replicas else 1,
            replication_factor=-1 if replicas else 3,
            assignments=[assignment] if replicas else [],
            configs=[config],
        )
        async with Client(self._cluster.brokers[1].bootstrap_servers) as client:
            answer = await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        assert answer.topics[0].error_code == ErrorCode.NONE

    @property
    def state(self) -> PartitionState | None:
        """The state of the partition, as the running broker knows it that has the latest one."""
        images = [self._cluster.brokers[broker_id].server.metadata.image for broker_id in running(self._cluster)]
        latest = max(images, key=lambda image: (image.controller_epoch, image.version))
        return latest.partition(self.name, 0)

    async def leader(self) -> int:
        """Wait until a running broker leads, and return it."""
        await until(lambda: self.state is not None and self.state.leader in running(self._cluster))
        assert self.state is not None
        return self.state.leader

    async def is_whole(self) -> None:
        """Wait until all three replicas are in sync."""
        await until(lambda: self.state is not None and len(self.state.isr) == 3)

    async def move(self, *replicas: int) -> None:
        """Move the partition to these brokers, and wait until the others have left."""
        moving = AlterPartitionReassignmentsRequest.ReassignableTopic(
            name=self.name,
            partitions=[
                AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=list(replicas))
            ],
        )
        async with Client(self._cluster.brokers[1].bootstrap_servers) as client:
            answer = await client.send(AlterPartitionReassignmentsRequest(topics=[moving], timeout_ms=5000))
        assert answer.error_code == ErrorCode.NONE
        await until(lambda: self.state is not None and set(self.state.isr) == set(self.state.replicas) == {*replicas})

    async def produce(self, count: int = 3) -> None:
        """Have new values acknowledged; each is sent until then."""
        for _ in range(count):
            value = b"value-%d" % len(self.acknowledged)
            async with asyncio.timeout(PATIENCE_S):
                while not await self._sent(value):  # noqa: ASYNC110
                    await asyncio.sleep(PAUSE_S)
            self.acknowledged.append(value)

    async def _sent(self, value: bytes) -> bool:
        records = build([Record(0, 1, None, value, ())])
        partition = ProduceRequest.PartitionProduceData(index=0, records=records)
        data = ProduceRequest.TopicProduceData(name=self.name, partition_data=[partition])
        broker = self._cluster.brokers[await self.leader()]
        try:
            async with Client(broker.bootstrap_servers) as client:
                answer = await client.send(ProduceRequest(acks=-1, timeout_ms=2000, topic_data=[data]), version=9)
        except (KafkaError, OSError):
            return False  # the broker is going down, or has just been killed
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        assert code in {ErrorCode.NONE, *RETRIED}
        return code is ErrorCode.NONE

    async def missing(self) -> list[bytes]:
        """Return the acknowledged values that the leader does not have."""
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic=self.name, partitions=[partition])
        async with Client(self._cluster.brokers[await self.leader()].bootstrap_servers) as client:
            answer = await client.send(FetchRequest(max_wait_ms=100, min_bytes=1, topics=[topic]), version=11)
        found = bytes(answer.responses[0].partitions[0].records or b"")
        return [value for value in self.acknowledged if value not in found]


@pytest.mark.slow
async def test_epochs_and_ids_go_on_above_all_that_the_brokers_have_seen(url: str, store: Backend) -> None:
    async with Cluster(SETTINGS, brokers=3, coordination_url=url) as cluster:
        given = [await producer_id(cluster, broker_id) for broker_id in (1, 2, 3)]
        old = await backup(store)
        epoch = await next_controller(cluster, 0)
        for _ in range(3):
            controller = controller_of(cluster, running(cluster)[0])
            await cluster.kill(controller)
            epoch = await next_controller(cluster, epoch)
            await start(cluster, controller)
            given.append(await producer_id(cluster, controller))
        before = dict(cluster.brokers[1].server.metadata.image.brokers)
        await kill_all(cluster)
        await roll_back(store, old)
        await start(cluster, 1, 2, 3)
        assert await next_controller(cluster, epoch) > epoch
        after = cluster.brokers[1].server.metadata.image.brokers
        assert all(after[broker_id].epoch > before[broker_id].epoch for broker_id in (1, 2, 3))
        again = [await producer_id(cluster, broker_id) for broker_id in (1, 2, 3)]
        assert min(again) >= max(given) // BLOCK * BLOCK + BLOCK, "above every block that was taken before"


@pytest.mark.slow
async def test_a_controller_that_missed_the_latest_terms_takes_an_epoch_above_them(url: str, store: Backend) -> None:
    """The first broker that starts was down since before the backup. It takes office, and learns of the terms later."""
    async with Cluster(SETTINGS, brokers=3, coordination_url=url) as cluster:
        epoch, controller = await next_controller(cluster, 0), controller_of(cluster, 1)
        stale, *others = sorted(cluster.brokers, key=lambda broker_id: broker_id == controller)
        await cluster.kill(stale)
        old = await backup(store)
        for _ in range(2):
            controller = controller_of(cluster, others[0])
            await cluster.kill(controller)
            epoch = await next_controller(cluster, epoch)
            await start(cluster, controller)
        await kill_all(cluster)
        await roll_back(store, old)
        await start(cluster, stale)
        assert cluster.brokers[stale].server.metadata.image.controller_epoch <= epoch
        await start(cluster, *others)
        assert await next_controller(cluster, epoch) > epoch


async def fault(cluster: Cluster, topic: Topic, rng: Random) -> None:
    """Kill a broker, mostly the leader, produce without it, and start it again."""
    victim = await topic.leader() if rng.random() < 0.7 else rng.choice(running(cluster))
    await cluster.kill(victim)
    await topic.produce()
    await start(cluster, victim)
    await topic.is_whole()
    await topic.produce(1)


async def restart_one_before_the_others(cluster: Cluster, rng: Random) -> None:
    first, *others = rng.sample(list(cluster.brokers), len(cluster.brokers))
    await start(cluster, first)
    await start(cluster, *others)


async def restore_every_backup_of_a_day(store: Backend, url: str, folder: Path, *, is_marked: bool) -> None:
    """Take a backup after each fault of a day, and restore all of them, the oldest first, under the running cluster."""
    rng = Random(7 + is_marked)
    async with Cluster(SETTINGS, brokers=3, data_dir=folder, coordination_url=url) as cluster:
        topic = Topic(cluster)
        await topic.create()
        await topic.produce()
        backups = [await backup(store)]
        for _ in range(2):
            await fault(cluster, topic, rng)
            backups.append(await backup(store))
        await fault(cluster, topic, rng)
        for old in backups:  # each one is older than all that the brokers know
            await kill_all(cluster)
            await roll_back(store, old, is_marked=is_marked)
            await restart_one_before_the_others(cluster, rng)
            await topic.is_whole()
            await topic.produce()
            assert await topic.missing() == []
            assert await store.get(ROLLED_BACK_KEY) is None
            parts = [broker.server.parts for broker in cluster.brokers.values()]
            assert sum(each.recovery.metrics.set_backs for each in parts) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("is_marked", [True, False], ids=["dump restored", "server restored"])
async def test_backups_of_every_age_are_restored_and_nothing_acknowledged_is_lost(
    url: str, store: Backend, tmp_path: Path, is_marked: bool
) -> None:
    await restore_every_backup_of_a_day(store, url, tmp_path, is_marked=is_marked)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("name", STORES)
async def test_backups_of_every_age_are_restored_on_every_store(tmp_path: Path, name: str) -> None:
    with STORES[name]() as server:
        async with create_backend(below(server, "restored")) as store:
            await restore_every_backup_of_a_day(store, below(server, "restored"), tmp_path, is_marked=False)


@pytest.mark.slow
async def test_a_store_is_rolled_back_under_running_brokers(url: str, store: Backend, tmp_path: Path) -> None:
    """As when a snapshot is restored in Consul: all sessions are over, and each process joins again."""
    rng = Random(3)
    async with Cluster(SETTINGS, brokers=3, data_dir=tmp_path, coordination_url=url) as cluster:
        topic, later = Topic(cluster), Topic(cluster, "later")
        await topic.create()
        await topic.produce()
        old = await backup(store)
        await fault(cluster, topic, rng)
        await later.create()
        await later.produce()
        epoch = cluster.brokers[1].server.metadata.image.controller_epoch
        await roll_back(store, old)
        assert await next_controller(cluster, epoch) > epoch
        await topic.is_whole()
        await topic.produce()
        assert await topic.missing() == []
        assert later.state is None
    strays = await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.glob("*/later-0.*-stray/*.log")])
    assert [b"value-2" in records for records in strays] == [True] * 3, "the store does not know them: they are kept"


@pytest.mark.slow
@pytest.mark.parametrize("is_in_isr", [True, False], ids=["in the ISR", "out of the ISR"])
@pytest.mark.parametrize("is_controller_dead", [True, False], ids=["controller dead", "controller alive"])
async def test_the_embedded_store_is_rolled_back_while_one_broker_is_dead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_controller_dead: bool, is_in_isr: bool
) -> None:
    """The partitions do not wait for the dead broker: it had left the ISR, or it cannot have acknowledged records
    without one of the brokers that run."""
    database = tmp_path / "coordination" / "store.db"
    async with Cluster(SETTINGS, brokers=3, data_dir=tmp_path) as cluster:
        topic = Topic(cluster)
        await topic.create()
        await topic.is_whole()
        await topic.produce()
        with closing(sqlite3.connect(database)) as live, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            live.backup(copy)
            await fault(cluster, topic, Random(5))
            controller = controller_of(cluster, 1)
            dead = controller if is_controller_dead else next(each for each in cluster.brokers if each != controller)
            if not is_in_isr:
                await cluster.kill(dead)
                await topic.produce()  # also waits until the dead broker has left the ISR
            epoch = max(cluster.brokers[each].server.metadata.image.controller_epoch for each in running(cluster))
            copy.backup(live)
            if is_in_isr:
                await cluster.kill(dead)
        await next_controller(cluster, epoch)
        await topic.produce()
        assert await topic.missing() == []
        await start(cluster, dead)
        await topic.is_whole()
        await topic.produce()
        assert await topic.missing() == []
    events = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert any("the coordination store was rolled back to an older state" in event for event in events)
    assert LOSS not in events


@pytest.mark.slow
@pytest.mark.parametrize("is_marked", [True, False], ids=["dump restored", "server restored"])
async def test_a_move_is_undone_under_running_brokers_and_the_loss_is_logged(
    url: str, store: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_marked: bool
) -> None:
    """The former replicas have deleted their logs, and create empty ones. The records are in stray folders."""
    async with Cluster(SETTINGS, brokers=6, data_dir=tmp_path, coordination_url=url) as cluster:
        topic, whole = Topic(cluster), Topic(cluster, "whole")
        await topic.create(1, 2, 3)
        await whole.create(1, 2, 3)
        await topic.produce()
        await whole.produce()
        old = await backup(store)
        await topic.move(4, 5, 6)
        epoch = cluster.brokers[1].server.metadata.image.controller_epoch
        await roll_back(store, old, is_marked=is_marked)
        assert await next_controller(cluster, epoch) > epoch
        await topic.is_whole()
        await whole.is_whole()
        assert await whole.missing() == []
        await until(lambda: len([*tmp_path.glob("*/t-0.*-stray/*.log")]) == 3)
        strays = await asyncio.to_thread(lambda: [path.read_bytes() for path in tmp_path.glob("*/t-0.*-stray/*.log")])
    assert [b"value-2" in records for records in strays] == [True] * 3
    alarms = [record for record in caplog.records if record.message == LOSS]
    assert [(record.__dict__["topic"], record.__dict__["partition"]) for record in alarms] == [("t", 0)]


@pytest.mark.slow
async def test_a_replica_that_left_the_isr_after_the_backup_is_not_elected(
    url: str, store: Backend, tmp_path: Path
) -> None:
    """The backup names it in the ISR, and the leader epoch has not changed since. It starts first."""
    async with Cluster(SETTINGS, brokers=3, data_dir=tmp_path, coordination_url=url) as cluster:
        topic = Topic(cluster)
        await topic.create()
        await topic.is_whole()
        await topic.produce()
        old, leader = await backup(store), await topic.leader()
        stale = next(broker_id for broker_id in cluster.brokers if broker_id != leader)
        await cluster.stop(stale)  # cleanly, so the restored store has no reason to doubt it
        await topic.produce()
        await kill_all(cluster)
        await roll_back(store, old)
        await start(cluster, stale)
        await start(cluster, *(broker_id for broker_id in cluster.brokers if broker_id != stale))
        await topic.is_whole()
        assert await topic.missing() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["older copy", "WAL deleted"])
async def test_the_embedded_store_loses_its_latest_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    rng, database = Random(11), tmp_path / "coordination" / "store.db"
    async with Cluster(SETTINGS, brokers=3, data_dir=tmp_path) as cluster:
        topic = Topic(cluster)
        await topic.create()
        await topic.produce()
        await asyncio.to_thread(copy_database, database, tmp_path / "copy", with_wal=how == "older copy")
        for _ in range(2):
            await fault(cluster, topic, rng)
        await kill_all(cluster)
        await asyncio.to_thread(replace_database, database, tmp_path / "copy")
        await restart_one_before_the_others(cluster, rng)
        await topic.is_whole()
        await topic.produce()
        assert await topic.missing() == []
    events = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert sum("the coordination store has lost its latest changes" in event for event in events) == 1
    assert any("the coordination store was rolled back to an older state" in event for event in events)


def copy_database(database: Path, copy: Path, *, with_wal: bool) -> None:
    """Copy the database while brokers use it: as a backup, or as the file that is left without the WAL."""
    with closing(sqlite3.connect(database)) as connection, closing(sqlite3.connect(copy)) as backup:
        if with_wal:
            connection.backup(backup)
            return
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(database, copy)


def replace_database(database: Path, copy: Path) -> None:
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    shutil.copy(copy, database)
