"""The duty that recovers partitions without eligible replicas: whom it queries, when it retries, what it logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest

from parley.broker.controller.broker_reports import OFFLINE, BrokerReport, Replica, ReplicaReport
from parley.broker.controller.brokers import fence_broker, register_broker
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections import leaderless_log, unclean_recovery
from parley.broker.controller.elections.election_rules import RecoveryStrategy
from parley.broker.controller.elections.leaderless_log import Wait
from parley.broker.controller.elections.unclean_leader_choice import Quorum
from parley.broker.controller.elections.unclean_recovery import UncleanRecovery, wait_of
from parley.broker.metadata.changes import PartitionChanged
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import NO_LEADER, BrokerRegistration, PartitionState
from tests.broker.controller.clusters import TOPIC, TOPIC_ID, DirectController, balanced, image_with

AGGRESSIVE, BALANCED, NONE = RecoveryStrategy.AGGRESSIVE, RecoveryStrategy.BALANCED, RecoveryStrategy.NONE
STATE = PartitionState((1, 2, 3), (), NO_LEADER, 5, 7, last_known_elr=(1, 3))
INTACT = ReplicaReport(4, 9, 9)


class Bench:
    """A controller, the duty, and brokers that report what the test specifies."""

    def __init__(self, image: MetadataImage) -> None:
        self.controller = DirectController(image)
        self.logs: dict[int, ReplicaReport] = {}
        """The report of each broker for all its logs. A broker that is not listed does not respond."""
        self.asked: list[tuple[int, int]] = []
        """Each request: the broker, and the number of logs."""
        self.recovery = UncleanRecovery(self.controller.metadata, self.request, balanced)
        self.controller.metadata.subscribe(self.recovery.apply)
        self.changed = asyncio.Event()
        self.controller.metadata.subscribe(lambda delta, image: self.changed.set())

    async def request(self, broker: BrokerRegistration, wanted: Sequence[Replica] | None) -> BrokerReport | None:
        assert wanted is not None
        self.asked.append((broker.broker_id, len(wanted)))
        self.changed.set()
        if broker.broker_id not in self.logs:
            return None
        return BrokerReport(broker.incarnation_id, dict.fromkeys(wanted, self.logs[broker.broker_id]))

    def leaders(self) -> list[int]:
        return [state.leader for _, _, state in self.controller.metadata.image.partitions()]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for requests and changes of the metadata until a condition holds."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def until_led(self) -> None:
        """Wait until every partition has a leader."""
        await self.until(lambda: NO_LEADER not in self.leaders())


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    duty = asyncio.ensure_future(bench.recovery.run(bench.controller))  # type: ignore[arg-type]
    try:
        yield
    finally:
        duty.cancel()


async def settled() -> None:
    """Let the duty do everything that it can do now."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_new_controller_recovers_leaderless_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unclean_recovery, "PARTITIONS_MAX", 2)
    led = PartitionState((1, 2), (1,), 1)
    bench = Bench(image_with(STATE, led, STATE, STATE))
    bench.logs = dict.fromkeys((1, 2, 3), INTACT)
    async with running(bench):
        await bench.until_led()
    assert bench.leaders() == [1, 1, 1, 1]
    assert sorted(bench.asked) == [(broker, count) for broker in (1, 2, 3) for count in (1, 2)]
    assert (bench.recovery.metrics.recovered, bench.recovery.metrics.unclean) == (3, 0)
    said = [(line.message.partition(",")[0], line.__dict__["partitions"]) for line in caplog.records]
    clean = "leaders were elected from the reports of enough replicas"
    assert said == [(clean, 2), (clean, 1)], "none is unclean"


async def test_a_recovery_asks_nobody_until_the_last_known_replicas_are_alive(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leaderless_log, "RESTART_S", 0)
    image = image_with(PartitionState((1, 2, 3), (), NO_LEADER, 5, 7, last_known_elr=(1, 3)), fenced=[3])
    bench = Bench(image)
    bench.logs = dict.fromkeys((1, 3), INTACT)
    async with running(bench):
        await settled()
        assert bench.asked == []
        waiting = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert [record.__dict__["brokers"] for record in waiting] == [[3]]
        back = replace(image.brokers[3], epoch=99)
        await bench.controller.submit(lambda image: register_broker(image, back, None, balanced))
        await bench.until_led()
    assert bench.leaders() == [1]


async def test_a_dead_broker_is_not_awaited_if_the_others_are_a_quorum() -> None:
    """The quorum holds until the partition has a leader."""
    awaiting = replace(STATE, last_known_elr=(1, 2, 3))
    bench = Bench(image_with(awaiting, awaiting, fenced=[1]))
    bench.logs = dict.fromkeys((2, 3), INTACT)
    async with running(bench):
        await settled()
        assert bench.asked == []
        bench.recovery.accept_quorums({(TOPIC_ID, 0): Quorum(frozenset((1, 2, 3)), frozenset((1, 2)), 2)})
        await bench.until(lambda: bench.leaders() == [2, NO_LEADER])
        before = len(bench.asked)
        await bench.controller.submit(lambda image: Decision((PartitionChanged(TOPIC, 0, awaiting),), None))
        await settled()
        assert (bench.leaders(), len(bench.asked)) == ([NO_LEADER] * 2, before)


async def test_a_broker_that_does_not_respond_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unclean_recovery, "RETRY_S", 0.001)
    bench = Bench(image_with(STATE))
    bench.logs = {1: INTACT, 2: INTACT}
    async with running(bench):
        await bench.until(lambda: len(bench.asked) >= 6)
        assert bench.leaders() == [NO_LEADER]
        bench.logs[3] = replace(INTACT, log_end_offset=10)
        await bench.until_led()
    assert bench.leaders() == [3]


async def test_a_broker_that_does_not_know_yet_that_it_no_longer_leads_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(image_with(STATE))
    bench.logs = dict.fromkeys((1, 2, 3), replace(INTACT, current_leader_epoch=STATE.leader_epoch, partition_epoch=7))
    bench.logs[3] = replace(INTACT, current_leader_epoch=STATE.leader_epoch - 1, partition_epoch=6)
    async with running(bench):
        await bench.until(lambda: len(bench.asked) >= 6)
        assert bench.leaders() == [NO_LEADER]
        bench.logs[3] = replace(bench.logs[1], log_end_offset=10)
        await bench.until_led()
    assert bench.leaders() == [3]
    assert "start these brokers" not in caplog.text


async def test_a_broker_whose_disk_is_offline_is_not_asked_again() -> None:
    bench = Bench(image_with(STATE))
    bench.logs = {1: INTACT, 2: INTACT, 3: OFFLINE}
    async with running(bench):
        await settled()
        assert sorted(bench.asked) == [(1, 1), (2, 1), (3, 1)]
    assert bench.leaders() == [NO_LEADER]


async def test_a_partition_that_loses_its_last_eligible_replica_is_recovered() -> None:
    """Broker 1 restarts uncleanly; its replica was the last one in the ISR."""
    image = image_with(PartitionState((1, 2), (1,), 1, 5, 7))
    disk = TOPIC_ID
    known = replace(image.brokers[1], log_dirs=(disk,))
    bench = Bench(replace(image, brokers={**image.brokers, 1: known}))
    bench.logs = dict.fromkeys((1, 2), replace(INTACT, directory=disk))
    report = BrokerReport(TOPIC_ID, {(TOPIC_ID, 0): replace(INTACT, directory=disk)})
    async with running(bench):
        await settled()
        killed = replace(known, epoch=99, incarnation_id=TOPIC_ID)
        await bench.controller.submit(lambda image: register_broker(image, killed, report, balanced))
        await bench.until_led()
    state = bench.controller.metadata.image.partition(TOPIC, 0)
    assert state is not None
    assert (state.leader, state.isr, state.unclean_epoch) == (1, (1,), -1)


def test_a_single_replica_needs_no_duty() -> None:
    """The registration of its broker has all that the recovery needs."""
    image = image_with(PartitionState((1,), (1,), 1, 5, 7))
    known = replace(image.brokers[1], log_dirs=(TOPIC_ID,))
    image = replace(image, brokers={**image.brokers, 1: known})
    killed = replace(known, epoch=99, incarnation_id=TOPIC_ID)
    report = BrokerReport(TOPIC_ID, {(TOPIC_ID, 0): replace(INTACT, directory=TOPIC_ID)})
    decision = register_broker(image, killed, report, balanced)
    state = image.with_changes(decision.changes).partition(TOPIC, 0)
    assert state is not None
    assert (state.leader, state.isr, state.unclean_epoch) == (1, (1,), -1)
    assert state.leader_epoch > 5
    assert [recovery.choice.is_unclean for recovery in decision.result] == [False]
    emptied = register_broker(image, killed, BrokerReport(TOPIC_ID, {}), balanced)
    state = image.with_changes(emptied.changes).partition(TOPIC, 0)
    assert state is not None
    assert (state.leader, state.unclean_epoch) == (1, state.leader_epoch)
    assert [recovery.choice.is_unclean for recovery in emptied.result] == [True]


def killed_without_report(*states: PartitionState) -> tuple[Bench, BrokerRegistration]:
    """Broker 1 restarts uncleanly with its directory, and its registration is to come without a report."""
    image = image_with(*states)
    known = replace(image.brokers[1], log_dirs=(TOPIC_ID,))
    bench = Bench(replace(image, brokers={**image.brokers, 1: known}))
    return bench, replace(known, epoch=99, incarnation_id=TOPIC_ID)


async def test_a_single_replica_whose_broker_sent_no_report_waits_for_it_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unclean_recovery, "RETRY_S", 0.001)
    monkeypatch.setattr(leaderless_log, "RESTART_S", 0)
    bench, killed = killed_without_report(PartitionState((1,), (1,), 1, 5, 7))
    async with running(bench):
        await bench.controller.submit(lambda image: register_broker(image, killed, None, balanced))
        await bench.until(lambda: len(bench.asked) >= 3)
        assert bench.leaders() == [NO_LEADER]
        assert [line.__dict__["brokers"] for line in caplog.records] == [[1]]
        bench.logs[1] = replace(INTACT, directory=TOPIC_ID)
        await bench.until_led()
    assert (bench.recovery.metrics.recovered, bench.recovery.metrics.unclean) == (1, 0)


async def test_no_other_replica_is_elected_before_a_silent_broker_has_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only broker 1 has the last acknowledged record, but it was too busy to report when it registered."""
    monkeypatch.setattr(unclean_recovery, "RETRY_S", 0.001)
    state = PartitionState((1, 2), (), NO_LEADER, 5, 7, elr=(1,), last_known_elr=(2,))
    bench, killed = killed_without_report(state)
    bench.logs = {2: INTACT}
    async with running(bench):
        await bench.controller.submit(lambda image: register_broker(image, killed, None, balanced))
        await bench.until(lambda: len(bench.asked) >= 4)
        assert bench.leaders() == [NO_LEADER]
        bench.logs[1] = replace(INTACT, log_end_offset=10)
        await bench.until_led()
    assert bench.leaders() == [1]
    assert (bench.recovery.metrics.recovered, bench.recovery.metrics.unclean) == (1, 0)


async def test_after_brokers_stopped_in_turn_the_one_that_stopped_last_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only broker 3 has the last records, and only broker 1 is started again."""
    monkeypatch.setattr(leaderless_log, "CHECK_S", 0.001)
    monkeypatch.setattr(leaderless_log, "RESTART_S", 0.01)
    logged = asyncio.Event()
    monkeypatch.setattr(leaderless_log._log, "filters", [lambda record: logged.set() or True])
    bench = Bench(image_with(PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 7)))
    async with running(bench):
        for broker_id in (1, 2, 3):
            await bench.controller.submit(partial(fence_broker, broker_id=broker_id, rules=balanced))
        back = replace(bench.controller.metadata.image.brokers[1], epoch=99)
        await bench.controller.submit(lambda image: register_broker(image, back, None, balanced))
        await logged.wait()
        assert bench.leaders() == [NO_LEADER]
        assert [(line.__dict__["brokers"], line.__dict__["topics"]) for line in caplog.records] == [([3], TOPIC)]


LIVE = {1, 2}


@pytest.mark.parametrize(
    ("state", "strategy", "wait"),
    [
        (replace(STATE, elr=(3,)), BALANCED, Wait((3,), is_ordinary=True)),
        (replace(STATE, elr=(3,)), NONE, Wait((3,), is_ordinary=True)),
        (STATE, NONE, Wait((), is_ordinary=True)),
        (STATE, BALANCED, Wait((3,))),
        (replace(STATE, last_known_elr=(1, 2)), BALANCED, None),
        (replace(STATE, last_known_elr=()), BALANCED, Wait((3,))),
        (replace(STATE, elr=(3,)), AGGRESSIVE, None),
        (PartitionState((3, 4), (), NO_LEADER, elr=(3,)), AGGRESSIVE, Wait((3, 4), is_ordinary=True)),
    ],
)
def test_a_partition_without_a_leader_waits_for_the_right_replicas(
    state: PartitionState, strategy: RecoveryStrategy, wait: Wait | None
) -> None:
    assert wait_of(state, strategy, LIVE) == wait


async def test_an_unclean_recovery_is_one_error_that_names_the_reports(caplog: pytest.LogCaptureFixture) -> None:
    image = image_with(PartitionState((1, 2, 3), (), NO_LEADER, 5, 7))
    bench = Bench(image)
    bench.logs = {1: replace(INTACT, log_end_offset=3), 2: OFFLINE, 3: replace(INTACT, log_end_offset=5)}
    (outcome,) = await bench.recovery.elect(bench.controller, [(TOPIC, 0)])  # type: ignore[arg-type]
    assert outcome.error is None
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.message == "a leader was elected that may lack acknowledged records"
    facts = {name: line.__dict__[name] for name in ("topic", "partition", "leader", "missing_records", "reports")}
    assert facts == {
        "topic": TOPIC,
        "partition": 0,
        "leader": 3,
        "missing_records": 4,
        "reports": "broker 1: leader epoch 4, log end 3, high watermark 9; broker 2: unreadable (KAFKA_STORAGE_ERROR); "
        "broker 3: leader epoch 4, log end 5, high watermark 9",
    }
    assert (bench.recovery.metrics.recovered, bench.recovery.metrics.unclean) == (1, 1)
