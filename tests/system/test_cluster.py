"""Three brokers in separate processes: no acknowledged record is lost when a broker fails.

The tests use the embedded store; ``--store`` names another store, or all of them.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import PartitionMetadata

from parley.protocol.client import Client
from parley.protocol.messages.elections import AlterPartitionReassignmentsRequest
from parley.tools.checker import Guarantees, History, check, payload
from parley.tools.checker.trial import _read
from tests.support.kafka import KAFKA_4, java_command
from tests.support.stores.running import STORES, below
from tests.system.clusters import (
    IMPATIENT,
    POLL_S,
    ClusterOfProcesses,
    losing_nothing,
    second_of_same_id,
    until_served,
)
from tests.system.conftest import watched
from tests.system.disk_faults import Hurt
from tests.system.test_restart import _refusal

WAIT_SECONDS = 60
JAVA_PROGRAM = str(Path(__file__).with_name("JavaFailover.java"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--store")
        stores = ["local", *STORES] if asked == "all" else [asked]
        marked = [pytest.param(each, marks=pytest.mark.xdist_group(f"cluster on {each}")) for each in stores]
        metafunc.parametrize("store", marked, indirect=True, scope="module")


@pytest.fixture(scope="module")
def store(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Yield the settings with which brokers use the store."""
    if request.param == "local":
        yield {}
    else:
        with STORES[request.param]() as url:
            yield {"coordination.url": below(url, "cluster")}


@pytest.fixture(scope="module")
def processes(store: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfProcesses]:
    cluster = ClusterOfProcesses(tmp_path_factory.mktemp("cluster"), overrides=store, proxied=True)
    with cluster.running(), watched(*cluster.brokers.values()):
        yield cluster


@pytest.fixture
def cluster(processes: ClusterOfProcesses) -> ClusterOfProcesses:
    """Return the cluster, with all brokers running at the beginning of each test."""
    processes.heal()
    return processes


def kill_leader(cluster: ClusterOfProcesses, topic: str) -> int:
    leader = cluster.leader(topic)
    cluster.brokers[leader].kill()
    return leader


def kill_controller(cluster: ClusterOfProcesses, topic: str) -> int:
    controller = cluster.controller()
    cluster.brokers[controller].kill()
    return controller


def stop_leader(cluster: ClusterOfProcesses, topic: str) -> int:
    leader = cluster.leader(topic)
    assert cluster.brokers[leader].stop() == 0
    return leader


def freeze_leader(cluster: ClusterOfProcesses, topic: str) -> int:
    leader = cluster.leader(topic)
    cluster.brokers[leader].freeze()
    return leader


def freeze_controller(cluster: ClusterOfProcesses, topic: str) -> int:
    controller = cluster.controller()
    cluster.brokers[controller].freeze()
    return controller


def cut_leader(cluster: ClusterOfProcesses, topic: str) -> int:
    leader = cluster.leader(topic)
    cluster.links[leader].break_all()
    return leader


def cut_off_leader(cluster: ClusterOfProcesses, topic: str) -> int:
    """Cut the leader off from clients and other brokers, but not from the store."""
    leader = cluster.leader(topic)
    cluster.cut_off(leader)
    return leader


def cut_off_controller(cluster: ClusterOfProcesses, topic: str) -> int:
    controller = cluster.controller()
    cluster.cut_off(controller)
    return controller


def others_take_over(cluster: ClusterOfProcesses, topic: str, hurt: Hurt) -> int:
    """Inject a fault, and heal it once each partition has had another leader. Returns the affected broker."""
    with losing_nothing(cluster, topic, client=IMPATIENT) as running:
        running.wait_for_acknowledged(60)
        number = hurt(cluster, running.topic)
        running.wait_for_acknowledged(200)
        cluster.heal()
        running.wait_for_acknowledged(60)
    return number


KILLS: list[Hurt] = [kill_leader, kill_controller, stop_leader]
FREEZES: list[Hurt] = [freeze_leader, freeze_controller]


@pytest.mark.parametrize(
    ("hurt", "idempotent"),
    [*((hurt, True) for hurt in (*KILLS, cut_leader)), pytest.param(kill_leader, False, marks=pytest.mark.soak)],
)
def test_nothing_is_lost(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], hurt: Hurt, idempotent: bool
) -> None:
    with losing_nothing(cluster, new_name(), idempotent=idempotent) as running:
        running.wait_for_acknowledged(60)
        hurt(cluster, running.topic)
        running.wait_for_acknowledged(60)
        cluster.start_all()
        running.wait_for_acknowledged(60)


@pytest.mark.parametrize("hurt", [pytest.param(freeze_leader, marks=pytest.mark.soak), freeze_controller])
def test_who_was_frozen_harms_nothing_when_it_returns(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], hurt: Hurt
) -> None:
    with losing_nothing(cluster, new_name(), client=IMPATIENT) as running:
        running.wait_for_acknowledged(60)
        frozen = hurt(cluster, running.topic)
        running.wait_for_acknowledged(200)
        cluster.brokers[frozen].resume()
        running.wait_for_acknowledged(200)


def test_a_controller_that_reaches_nothing_but_the_store_takes_nothing_with_it(
    cluster: ClusterOfProcesses, new_name: Callable[..., str]
) -> None:
    others_take_over(cluster, new_name(), cut_off_controller)


@pytest.mark.parametrize("order", [(3, 1, 2), pytest.param((1, 2, 3), marks=pytest.mark.soak)])
def test_all_may_go_and_come_in_any_order(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], order: tuple[int, ...]
) -> None:
    with losing_nothing(cluster, new_name()) as running:
        running.wait_for_acknowledged(100)
        for number in reversed(order):
            cluster.brokers[number].kill()
        cluster.start_all(order)
        running.wait_for_acknowledged(100)


@pytest.mark.parametrize(
    "moves", [([1, 2], [3, 1, 2]), pytest.param(([1, 2], [3, 1, 2], [2, 3], [1, 2, 3]), marks=pytest.mark.soak)]
)
def test_replicas_move_while_their_leader_goes(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], moves: tuple[list[int], ...]
) -> None:
    with losing_nothing(cluster, new_name()) as running:
        running.wait_for_acknowledged(60)
        for wanted in moves:
            asyncio.run(reassign(cluster, running.topic, wanted))
            kill_leader(cluster, running.topic)
            cluster.start_all()
            while any(each.replicas != wanted for each in partitions(cluster, running.topic)):
                running.wait_for_acknowledged(1)
            running.wait_for_acknowledged(60)


async def reassign(cluster: ClusterOfProcesses, topic: str, replicas: list[int]) -> None:
    """Reassign all partitions of a topic to these replicas, and wait for completion."""
    moves = [
        AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
        for index in range(len(partitions(cluster, topic)))
    ]
    asked = AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=moves)
    async with Client(cluster.bootstrap_servers) as client:
        answer = await client.send(AlterPartitionReassignmentsRequest(topics=[asked]))
    assert [each.error_code for each in answer.responses[0].partitions] == [0] * len(moves), answer


def partitions(cluster: ClusterOfProcesses, topic: str) -> list[PartitionMetadata]:
    """Return the topic's partitions from a broker that knows the topic."""
    while not (found := list(cluster.metadata(topic).topics[topic].partitions.values())):
        time.sleep(POLL_S)
    return found


@pytest.mark.parametrize("order", [(3, 1, 2), pytest.param((1, 2, 3), marks=pytest.mark.soak)])
def test_one_may_come_long_after_the_other(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], order: tuple[int, ...]
) -> None:
    """The brokers that ended first lack records that the last ones acknowledged, so they wait for these."""
    with losing_nothing(cluster, new_name()) as running:
        running.wait_for_acknowledged(60)
        cluster.brokers[order[0]].kill()
        running.wait_for_acknowledged(60)
        for number in order[1:]:
            cluster.brokers[number].kill()
        for number in order:
            cluster.brokers[number].start()
        running.wait_for_acknowledged(60)


@pytest.mark.soak
@pytest.mark.parametrize("hurts", [(kill_leader,), (kill_controller, stop_leader)])
def test_clocks_may_differ_by_minutes(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], hurts: tuple[Hurt, ...]
) -> None:
    for number, ahead_s in ((1, -420), (2, 0), (3, 600)):
        cluster.brokers[number].program = ["tests.system.skewed", str(ahead_s)]
    try:
        with losing_nothing(cluster, new_name()) as running:
            for number in cluster.brokers:
                assert cluster.brokers[number].stop() == 0
                running.wait_for_acknowledged(20)
                cluster.start_all()
                cluster.wait_until_in_sync()
            for hurt in hurts:
                hurt(cluster, running.topic)
                running.wait_for_acknowledged(60)
                cluster.heal()
    finally:
        for broker in cluster.brokers.values():
            broker.stop()
            broker.program = ["parley"]
        cluster.start_all()


@pytest.mark.parametrize(
    "protocol",
    [{"group.protocol": "classic", "session.timeout.ms": 10_000}, {"group.protocol": "consumer"}],
    ids=["classic", "consumer"],
)
def test_groups_go_on_where_they_were(
    cluster: ClusterOfProcesses, new_name: Callable[..., str], protocol: dict[str, str | int]
) -> None:
    topic, group = cluster.create_topic(new_name(), 2), new_name("g")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "log_level": 0})
    reader = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
            **protocol,
        }
    )
    reader.subscribe([topic])
    found: list[bytes] = []
    for step in range(3):
        for number in range(50):
            producer.produce(topic, b"%d" % (step * 50 + number), partition=number % 2)
        assert producer.flush(WAIT_SECONDS) == 0
        while len(found) < (step + 1) * 50:
            message = reader.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
        until_served(partial(reader.commit, asynchronous=False))
        coordinator = until_served(partial(coordinator_of, cluster, group))
        cluster.brokers[coordinator].kill()
        assert committed_offsets(reader, [TopicPartition(topic, number) for number in (0, 1)]) == [(step + 1) * 25] * 2
        cluster.start_all()
        cluster.wait_until_in_sync()
    reader.close()
    assert sorted(map(int, found)) == list(range(150)), "nothing twice, as everything was committed"


def coordinator_of(cluster: ClusterOfProcesses, group: str) -> int:
    admin = cluster.admin  # which must live until its answer has come
    (description,) = admin.describe_consumer_groups([group]).values()
    found: int = description.result(WAIT_SECONDS).coordinator.id
    return found


def committed_offsets(reader: Consumer, partitions: list[TopicPartition]) -> list[int]:
    """Return the committed offsets, from the group's new coordinator."""
    found = until_served(partial(reader.committed, partitions, timeout=WAIT_SECONDS))
    return [each.offset for each in found]


async def test_aiokafka_goes_on(cluster: ClusterOfProcesses, new_name: Callable[..., str]) -> None:
    topic = cluster.create_topic(new_name(), 1, min_insync_replicas="2")
    history = History()
    history.producer("a", Guarantees())
    loop = asyncio.get_running_loop()
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, enable_idempotence=True) as producer:
        for step in range(4):
            if step == 2:
                await asyncio.to_thread(kill_leader, cluster, topic)
            for _ in range(50):
                number = history.sent("a", 0)
                answer = await producer.send_and_wait(topic, payload("a", number), partition=0)
                history.acknowledged("a", number, 0, answer.offset, at=loop.time())
    history.final(0, *await asyncio.to_thread(_read, client(cluster), topic, 0, 200))
    verdict = check(history)
    assert verdict.ok, verdict


def client(cluster: ClusterOfProcesses) -> dict[str, object]:
    return {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}


def test_the_java_client_goes_on(cluster: ClusterOfProcesses, new_name: Callable[..., str]) -> None:
    topic = cluster.create_topic(new_name(), 1, min_insync_replicas="2")
    history = History()
    history.producer("j", Guarantees())
    command = java_command(JAVA_PROGRAM, cluster.bootstrap_servers, topic, "3000", version=KAFKA_4)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        watchdog = threading.Timer(120, program.kill)
        watchdog.start()
        assert program.stdout is not None
        for acknowledged, line in enumerate(program.stdout):
            number, offset = map(int, line.split())
            while len(history.producers["j"].offsets) <= number:
                history.sent("j", 0)
            history.acknowledged("j", number, 0, offset, at=float(acknowledged))
            if acknowledged == 1000:
                kill_leader(cluster, topic)
        watchdog.cancel()
        assert program.wait() == 0, program.stderr.read() if program.stderr else ""
    assert history.counts()["acknowledged"] == 3000
    history.final(0, *_read(client(cluster), topic, 0, 3000))
    verdict = check(history)
    assert verdict.ok, verdict


def test_an_id_has_one_broker(cluster: ClusterOfProcesses, tmp_path: Path) -> None:
    other = second_of_same_id(cluster, 2, tmp_path / "other")
    other.launch()
    try:
        while "another broker with this id is a member" not in other.log():
            assert other.alive
            time.sleep(POLL_S)
        assert cluster.leader(cluster.create_topic(tmp_path.name)) > 0
        assert cluster.brokers[2].alive
    finally:
        other.kill()


def test_a_broker_of_another_cluster_is_refused(cluster: ClusterOfProcesses, tmp_path: Path) -> None:
    stranger = ClusterOfProcesses(tmp_path / "other", 1).brokers[1]
    stranger.start()
    stranger.stop()
    stranger.overrides["coordination.url"] = cluster.brokers[1].overrides["coordination.url"]
    stranger.overrides["broker.id"] = "9"
    assert "belongs to another coordination store" in _refusal(stranger)
