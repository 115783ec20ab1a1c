"""WriteTxnMarkers: what is written, what is rejected, and when the response is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.broker.api.transactional.markers import Marker, TransactionMarkers
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.transactions import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from parley.protocol.records.batch_header import headers
from parley.protocol.records.control_batch import ControlMarker, ControlType, read_marker
from parley.storage.log_config import LogConfig
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, at, context

Codes = list[tuple[int, dict[tuple[str, int], ErrorCode]]]


class MarkersBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.verifications = Verifications()
        self.looks = 0
        self.offsets: list[tuple[int, int, bool]] = []
        self.offsets_fail: KafkaError | None = None
        self.api = TransactionMarkers(
            self.partitions,
            self.purgatories.produce,
            self.verifications,
            self._append_to_offsets,
            wall_ms=lambda: NOW_MS,
            monotonic=self._monotonic,
            timeout_s=60,
        )

    def _monotonic(self) -> float:
        """Return a time that advances 4 ms with each call, as if each append took so long."""
        self.looks += 1
        return self.looks * 0.004

    def _append_to_offsets(self, partition: int, marker: Marker) -> asyncio.Future[None]:
        self.offsets.append((partition, marker.producer_id, marker.transaction_result))
        done = asyncio.get_running_loop().create_future()
        if self.offsets_fail is None:
            done.set_result(None)
        else:
            done.set_exception(self.offsets_fail)
        return done

    async def end(self, *markers: Marker, version: int = 2) -> Codes:
        request = WriteTxnMarkersRequest(markers=list(markers))
        return codes(await self.api.write_markers(context(version, api_key=27), request))

    def markers(self, name: str, index: int = 0) -> list[tuple[int, int, ControlMarker | None]]:
        """Return offset, producer and marker of each control batch in a log."""
        log = self.partition(name, index).log
        data = log.read(log.log_start_offset, 1 << 30, up_to=log.log_end_offset).read()
        return [(h.base_offset, h.producer_id, read_marker(data, p)) for p, h in headers(data) if h.is_control]


def codes(response: WriteTxnMarkersResponse) -> Codes:
    return [
        (
            marker.producer_id,
            {
                (topic.name, each.partition_index): ErrorCode(each.error_code)
                for topic in marker.topics
                for each in topic.partitions
            },
        )
        for marker in response.markers
    ]


def marker(
    *partitions: tuple[str, int],
    producer: int = 7,
    epoch: int = 0,
    committed: bool = True,
    coordinator_epoch: int = 0,
    transaction_version: int = 0,
) -> Marker:
    return Marker(
        producer_id=producer,
        producer_epoch=epoch,
        transaction_result=committed,
        coordinator_epoch=coordinator_epoch,
        transaction_version=transaction_version,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=[index])
            for name, index in partitions
        ],
    )


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[MarkersBench]:
    bench = MarkersBench(tmp_path)
    yield bench
    await bench.tasks.close()
    assert bench.purgatories.produce.waiting == 0


async def test_markers_are_written_and_end_the_transactions(bench: MarkersBench) -> None:
    await bench.create("t", 2)
    bench.write_in_transaction("t", 7)
    bench.write_in_transaction("t", 8)
    answer = await bench.end(
        marker(("t", 0), ("t", 1), coordinator_epoch=3), marker(("t", 0), producer=8, committed=False)
    )
    assert answer == [
        (7, {("t", 0): ErrorCode.NONE, ("t", 1): ErrorCode.NONE}),
        (8, {("t", 0): ErrorCode.NONE}),
    ]
    assert bench.markers("t") == [
        (2, 7, ControlMarker(ControlType.COMMIT, 3)),
        (3, 8, ControlMarker(ControlType.ABORT, 0)),
    ]
    assert bench.markers("t", 1) == [(0, 7, ControlMarker(ControlType.COMMIT, 3))], "even without a transaction there"
    assert bench.partition("t").log.last_stable_offset == 4


async def test_other_clients_are_served_while_slow_appends_go_on(
    bench: MarkersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each append takes 4 ms: no more than three are made in one turn."""
    await bench.create("t", 10)
    turns = []

    async def next_turn() -> None:
        turns.append(sum(bench.partition("t", index).log.log_end_offset for index in range(10)))

    monkeypatch.setattr("parley.broker.api.transactional.markers.next_turn", next_turn)
    ((_, answer),) = await bench.end(marker(*(("t", index) for index in range(10))))
    assert set(answer.values()) == {ErrorCode.NONE}
    assert turns == [3, 6, 9]


async def test_each_partition_fails_alone(bench: MarkersBench) -> None:
    await bench.create("t")
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    await bench.create("follows", replicas=(BROKER, OTHER), leader=OTHER)
    await bench.create("few", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=2))
    bench.alter("few", isr=(BROKER,))
    names = ("t", "unknown", "elsewhere", "follows", "few", TRANSACTIONS_TOPIC)
    ((_, answer),) = await bench.end(marker(*((name, 0) for name in names), ("t", 5)))
    assert answer == {
        ("t", 0): ErrorCode.NONE,
        ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("unknown", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("elsewhere", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ("follows", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ("few", 0): ErrorCode.NOT_ENOUGH_REPLICAS,
        (TRANSACTIONS_TOPIC, 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    nobody = await bench.end(marker(("t", 0), producer=-1))
    assert nobody == [(-1, {("t", 0): ErrorCode.UNKNOWN_SERVER_ERROR})], "a marker needs a producer"
    no_epoch = await bench.end(marker(("t", 0), (OFFSETS_TOPIC, 0), epoch=-1))
    assert set(no_epoch[0][1].values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}, "and an epoch"


async def test_old_epochs_are_fenced(bench: MarkersBench) -> None:
    await bench.create("t")
    bench.write_in_transaction("t", epoch=2)

    async def outcome(**fields: int) -> ErrorCode:
        ((_, answer),) = await bench.end(marker(("t", 0), **fields))  # type: ignore[arg-type]
        return answer["t", 0]

    assert await outcome(epoch=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert await outcome(epoch=2, transaction_version=2) is ErrorCode.INVALID_PRODUCER_EPOCH, "late"
    assert await outcome(epoch=2, coordinator_epoch=5) is ErrorCode.NONE
    assert await outcome(epoch=2, coordinator_epoch=4) is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert await outcome(epoch=3, coordinator_epoch=5, transaction_version=2) is ErrorCode.NONE
    assert await outcome(epoch=3, coordinator_epoch=5, transaction_version=2) is ErrorCode.NONE, "repeated"
    assert await outcome(epoch=2, coordinator_epoch=6) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(bench.markers("t")) == 3


async def test_the_response_waits_for_the_replicas(bench: MarkersBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    await bench.create("u", replicas=(BROKER, OTHER))
    writing = asyncio.ensure_future(
        bench.end(marker(("t", 0), ("u", 0)), marker(("t", 0), producer=8), marker(("t", 0), producer=9))
    )
    while not bench.purgatories.produce.waiting:
        await bench.idle()
    bench.partition("t").follower_fetched(OTHER, 2, 0, at(1.0))
    bench.partition("u").follower_fetched(OTHER, 1, 0, at(1.0))
    await bench.idle()
    assert not writing.done()
    bench.partition("t").follower_fetched(OTHER, 3, 0, at(2.0))
    assert {code for _, answer in await writing for code in answer.values()} == {ErrorCode.NONE}


async def test_a_marker_whose_replicas_are_late_or_whose_leader_changes_is_repeated(bench: MarkersBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    await bench.create("u", replicas=(BROKER, OTHER))
    writing = asyncio.ensure_future(bench.end(marker(("t", 0), ("u", 0))))
    while not bench.purgatories.produce.waiting:
        await bench.idle()
    bench.alter("u", leader=OTHER)
    bench.purgatories.produce.expire_all()
    ((_, answer),) = await writing
    assert answer == {("t", 0): ErrorCode.REQUEST_TIMED_OUT, ("u", 0): ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_markers_of_offset_commits_go_through_the_coordinator_of_the_groups(bench: MarkersBench) -> None:
    await bench.create(OFFSETS_TOPIC, 2)
    verification = bench.verifications.begin(bench.partition(OFFSETS_TOPIC, 1), 7, 0, adds=False)
    assert verification is not None
    bench.verifications.finished(verification)
    ((_, answer),) = await bench.end(marker((OFFSETS_TOPIC, 1), committed=False))
    assert answer == {(OFFSETS_TOPIC, 1): ErrorCode.NONE}
    assert bench.offsets == [(1, 7, False)]
    assert bench.markers(OFFSETS_TOPIC, 1) == []
    assert len(bench.verifications) == 0
    bench.offsets_fail = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    ((_, answer),) = await bench.end(marker((OFFSETS_TOPIC, 0)))
    assert answer == {(OFFSETS_TOPIC, 0): ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


async def test_a_marker_is_flushed_if_the_topic_flushes_each_message(bench: MarkersBench) -> None:
    await bench.create("t", config=LogConfig(flush_messages=1))
    await bench.end(marker(("t", 0)))
    assert bench.partition("t").log.recovery_point == 1


async def test_many_partitions_do_not_hold_up_the_loop(bench: MarkersBench) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = bench.tasks.start(count(), name="count")
    ((_, answer),) = await bench.end(marker(*(("unknown", index) for index in range(30)), ("unknown", 3)))
    counting.cancel()
    assert set(answer.values()) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(answer) == 30, "each partition once"
    assert turns >= 10
