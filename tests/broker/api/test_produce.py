"""Produce: appends, errors, and when the response is sent."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest

from parley.broker.api.produce import ProduceApi
from parley.broker.api.produce_preparation import THREADS_OF_A_CLIENT
from parley.broker.api.transactional.coordinator_requests import CoordinatorRequests, Errors
from parley.broker.api.transactional.producing import ProducerTransactions
from parley.broker.api.transactional.verifications import Verifications
from parley.broker.api.transactional.verifying import Verifying
from parley.broker.config import BrokerConfig
from parley.broker.network.request_context import Disconnect, RequestContext
from parley.broker.security.session import anonymous
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.produce import ProduceRequest, ProduceResponse
from parley.protocol.records import legacy
from parley.protocol.records.batch import build, records
from parley.protocol.records.batch_header import headers, is_compressed, read_header
from parley.protocol.records.compression import Compression
from parley.protocol.records.record import Record
from parley.protocol.uuids import UUID
from parley.storage.log_config import LogConfig
from parley.storage.resource_exhaustion import MEMORY
from tests.broker.api.bench import BROKER, NOW_MS, OTHER, Bench, at, batch, context
from tests.broker.network.harness import eventually
from tests.support.uuids import new_uuid

Outcome = ProduceResponse.PartitionProduceResponse
LARGE = bytes(build([Record(0, NOW_MS, None, bytes(3 << 20))], compression=Compression.GZIP))
"""Decompressed, more than the event loop prepares."""


class ProduceBench(Bench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.may_be_superseded = False
        self.monotonic: Callable[[], float] = lambda: 0.0
        self.verifications = Verifications()
        self.verification_enabled = True
        self.asks_again_ms = 60_000
        self.asked: list[tuple[str, int, int, list[tuple[str, int]], bool]] = []
        self.coordinates = False
        """True if this broker's own coordinator verifies immediately."""
        self.refusals: list[Errors] = []
        """The errors of the transaction coordinator, request by request; then it accepts."""
        self.api = ProduceApi(
            self.partitions,
            self.metadata,
            self.purgatories.produce,
            ProducerTransactions(Verifying(self.verifications, cast("CoordinatorRequests", self), self.config)),
            wall_ms=lambda: NOW_MS,
            monotonic=lambda: self.monotonic(),
            may_be_superseded=lambda: self.may_be_superseded,
        )

    def config(self) -> BrokerConfig:
        return BrokerConfig.from_properties(
            {
                "transaction.partition.verification.enable": str(self.verification_enabled).lower(),
                "add.partitions.to.txn.retry.backoff.max.ms": str(self.asks_again_ms),
            }
        )

    async def ask(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[tuple[str, int]], *, adds: bool
    ) -> Errors:
        """Respond like the transaction coordinator."""
        self.asked.append((transactional_id, producer_id, epoch, list(partitions), adds))
        await self.idle()
        return self.refusals.pop(0) if self.refusals else {}

    def verify_at_once(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[tuple[str, int]]
    ) -> Errors | None:
        """Respond like a transaction coordinator on this broker. Returns None if it would have to wait."""
        if not self.coordinates:
            return None
        self.asked.append((transactional_id, producer_id, epoch, list(partitions), False))
        return self.refusals.pop(0) if self.refusals else {}

    async def produce(self, *sent: Any, **options: Any) -> list[Outcome]:
        answer = self.begin(*sent, **options)
        while answer is not None and not isinstance(answer, ProduceResponse):
            answer = await answer
        return [] if answer is None else outcomes(answer)

    def begin(
        self,
        *sent: Any,
        acks: int = 1,
        timeout_ms: int = 60_000,
        version: int = 9,
        client_id: str = "test",
        transactional_id: str | None = None,
        host: str = "127.0.0.1",
        has_disconnected: bool = False,
    ) -> Any:
        topics = []
        for topic, index, data in sent:
            partition = ProduceRequest.PartitionProduceData(index=index, records=data)
            name = {"topic_id": topic} if isinstance(topic, UUID) else {"name": topic}
            topics.append(ProduceRequest.TopicProduceData(partition_data=[partition], **name))
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics, transactional_id=transactional_id)
        asked = context(version, client_id=client_id, api_key=0)
        asked.client.session = anonymous(host, "PLAINTEXT")
        asked.client.has_disconnected = has_disconnected
        asked.size_bytes = sum(len(data or b"") for _, _, data in sent)
        return self.api.produce(asked, request)

    def stored(self, name: str, index: int = 0) -> list[Record]:
        log = self.partition(name, index).log
        data = log.read(log.log_start_offset, 1 << 30, up_to=log.log_end_offset).read()
        return [record for position, _ in headers(data) for record in records(data, position)]


def outcomes(answer: ProduceResponse) -> list[Outcome]:
    return [outcome for topic in answer.responses for outcome in topic.partition_responses]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ProduceBench]:
    bench = ProduceBench(tmp_path)
    yield bench
    await bench.tasks.close()
    assert bench.purgatories.produce.waiting == 0


async def test_appends_and_says_where(bench: ProduceBench) -> None:
    await bench.create("a")
    await bench.create("b", 2)
    first = await bench.produce(("a", 0, batch(3)), ("b", 1, batch(2)))
    assert [(o.index, o.error_code, o.base_offset) for o in first] == [(0, 0, 0), (1, 0, 0)]
    (second,) = await bench.produce(("a", 0, batch(1)))
    assert (second.base_offset, second.log_start_offset, second.log_append_time_ms) == (3, 0, -1)
    assert [record.offset for record in bench.stored("a")] == [0, 1, 2, 3]
    assert len(bench.stored("b", 1)) == 2
    assert bench.metrics.topic("a").records_in == 4
    assert bench.metrics.topic("b").produce_requests == 1


async def test_a_refused_batch_has_its_error_and_the_other_partitions_are_appended(bench: ProduceBench) -> None:
    await bench.create("t", config=LogConfig(max_message_bytes=1000))
    await bench.create("elsewhere", replicas=(OTHER,), leader=OTHER)
    await bench.create("__consumer_offsets")
    await bench.create("fine")
    broken = batch(1)
    broken[-1] ^= 1
    cases = [
        ("nothing", 0, batch(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 5, batch(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", -1, batch(), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("elsewhere", 0, batch(), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ("__consumer_offsets", 0, batch(), ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("t", 0, broken, ErrorCode.CORRUPT_MESSAGE),
        ("t", 0, b"", ErrorCode.INVALID_RECORD),
        ("t", 0, None, ErrorCode.INVALID_RECORD),
        ("t", 0, b"\xff" * 100, ErrorCode.CORRUPT_MESSAGE),
        ("t", 0, batch(2, size=600), ErrorCode.MESSAGE_TOO_LARGE),
        ("t", 0, batch(), ErrorCode.NONE),
    ]
    for topic, index, data, error in cases:
        first, second = await bench.produce((topic, index, data), ("fine", 0, batch()))
        assert (first.error_code, second.error_code) == (error, ErrorCode.NONE)
        assert (first.base_offset == -1) is bool(first.error_message) is bool(error)
    assert len(bench.stored("t")) == 1
    (allowed,) = await bench.produce(("__consumer_offsets", 0, batch()), client_id="__admin_client")
    assert allowed.error_code == ErrorCode.NONE


async def test_a_wrong_number_of_acks(bench: ProduceBench) -> None:
    await bench.create("t")
    for acks in (2, -2, 32767):
        (outcome,) = await bench.produce(("t", 0, batch()), acks=acks)
        assert outcome.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert not bench.stored("t")


async def test_topics_by_id(bench: ProduceBench) -> None:
    topic_id = await bench.create("t")
    good, bad = await bench.produce((topic_id, 0, batch()), (new_uuid(), 0, batch()), version=13)
    assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_a_response_to_a_producer_at_the_wrong_broker_names_the_leader(bench: ProduceBench) -> None:
    topic_id = await bench.create("t", replicas=(OTHER,), leader=OTHER)
    answer = bench.begin((topic_id, 0, batch()), version=13)
    (outcome,) = outcomes(answer)
    assert (outcome.current_leader.leader_id, outcome.current_leader.leader_epoch) == (OTHER, 0)
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(OTHER, "host2", 9092)]


async def test_acks_0_is_not_answered_and_an_error_disconnects(bench: ProduceBench) -> None:
    await bench.create("t")
    assert bench.begin(("t", 0, batch()), acks=0) is None
    assert len(bench.stored("t")) == 1
    with pytest.raises(Disconnect, match="UNKNOWN_TOPIC_OR_PARTITION"):
        bench.begin(("nothing", 0, batch()), acks=0)


# Waiting for replicas.


async def test_acks_all_waits_for_the_whole_isr(bench: ProduceBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    assert (await bench.produce(("t", 0, batch())))[0].base_offset == 0
    first, second = (bench.begin(("t", 0, batch()), acks=-1) for _ in range(2))
    assert not first.done()
    partition = bench.partition("t")
    partition.follower_fetched(OTHER, 2, 0, at(0.0))
    assert first.done()
    assert not second.done()
    partition.follower_fetched(OTHER, 3, 0, at(0.0))
    assert [outcomes(await answer)[0].base_offset for answer in (first, second)] == [1, 2]


async def test_acks_all_ends_with_the_time_or_the_leadership(bench: ProduceBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    (late,) = await bench.produce(("t", 0, batch()), acks=-1, timeout_ms=10)
    assert (late.error_code, late.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    waiting = bench.begin(("t", 0, batch()), acks=-1)
    bench.alter("t", leader=OTHER)
    assert outcomes(await waiting)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_min_insync_replicas(bench: ProduceBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=2))
    waiting = bench.begin(("t", 0, batch()), acks=-1)
    bench.alter("t", isr=(BROKER,))
    assert outcomes(await waiting)[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    (refused,) = await bench.produce(("t", 0, batch()), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    (accepted,) = await bench.produce(("t", 0, batch()), acks=1)
    assert accepted.base_offset == 1, "only acks=all asks for replicas"


async def test_a_producer_that_waits_learns_of_the_new_leader(bench: ProduceBench) -> None:
    topic_id = await bench.create("t", replicas=(BROKER, OTHER))
    waiting = bench.begin((topic_id, 0, batch()), acks=-1, version=13)
    bench.alter("t", leader=OTHER)
    response = await waiting
    (outcome,) = outcomes(response)
    assert (outcome.error_code, outcome.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert (outcome.current_leader.leader_id, outcome.current_leader.leader_epoch) == (OTHER, 1)
    assert [node.node_id for node in response.node_endpoints] == [OTHER]


async def test_several_partitions_are_answered_together(bench: ProduceBench) -> None:
    await bench.create("alone")
    await bench.create("t", 2, replicas=(BROKER, OTHER))
    waiting = bench.begin(("alone", 0, batch()), ("t", 0, batch()), ("t", 1, batch()), acks=-1)
    bench.partition("t", 1).follower_fetched(OTHER, 1, 0, at(0.0))
    assert not waiting.done()
    bench.partition("t", 0).follower_fetched(OTHER, 1, 0, at(0.0))
    assert [o.error_code for o in outcomes(await waiting)] == [0, 0, 0]


# Idempotence.


def sequenced(sequence: int, epoch: int = 0) -> bytearray:
    """Return two records of a producer."""
    return build(
        [Record(i, NOW_MS, None, b"v", ()) for i in range(2)],
        producer_id=7,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


async def test_a_retry_is_answered_as_the_first_time(bench: ProduceBench) -> None:
    await bench.create("t")
    sent = [sequenced(0), sequenced(2), sequenced(2), sequenced(6), sequenced(4), sequenced(0, 1), sequenced(6)]
    answered = [(await bench.produce(("t", 0, data), acks=-1))[0] for data in sent]
    assert [(ErrorCode(o.error_code), o.base_offset) for o in answered] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 2),
        (ErrorCode.NONE, 2),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
        (ErrorCode.NONE, 4),
        (ErrorCode.NONE, 6),
        (ErrorCode.INVALID_PRODUCER_EPOCH, -1),
    ]


async def test_a_possibly_superseded_leader_withholds_out_of_order_sequence_number(bench: ProduceBench) -> None:
    await bench.create("t")
    await bench.produce(("t", 0, sequenced(0)), acks=-1)
    bench.may_be_superseded = True
    for expected in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE):
        (outcome,) = await bench.produce(("t", 0, sequenced(2 if expected == ErrorCode.NONE else 4)), acks=-1)
        assert outcome.error_code == expected
    bench.may_be_superseded = False
    (outcome,) = await bench.produce(("t", 0, sequenced(8)), acks=-1)
    assert outcome.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# What topics demand.


async def test_compacted_topics_want_keys(bench: ProduceBench) -> None:
    await bench.create("t", config=LogConfig(cleanup_policy=frozenset({"compact"})))
    mixed = build([Record(0, NOW_MS, b"k", b"v", ()), Record(1, NOW_MS, None, b"v", ())])
    (outcome,) = await bench.produce(("t", 0, mixed))
    assert outcome.error_code == ErrorCode.INVALID_RECORD
    assert [error.batch_index for error in outcome.record_errors] == [1]


async def test_timestamps_are_bounded_or_the_brokers_own(bench: ProduceBench) -> None:
    await bench.create("bounded", config=LogConfig(message_timestamp_after_max_ms=1000))
    (outcome,) = await bench.produce(("bounded", 0, batch(timestamp=NOW_MS + 2000)))
    assert outcome.error_code == ErrorCode.INVALID_TIMESTAMP
    assert len(outcome.record_errors) == 1
    await bench.create("own", config=LogConfig(message_timestamp_type="LogAppendTime"))
    (outcome,) = await bench.produce(("own", 0, batch(timestamp=5)))
    assert outcome.log_append_time_ms == NOW_MS
    assert bench.stored("own")[0].timestamp == NOW_MS


@pytest.mark.parametrize("size", [100, 400_000])
async def test_topics_may_choose_the_compression(bench: ProduceBench, size: int) -> None:
    await bench.create("t", config=LogConfig(compression_type="gzip"))
    (outcome,) = await bench.produce(("t", 0, batch(2, size=size)))
    assert outcome.error_code == ErrorCode.NONE
    log = bench.partition("t").log
    assert read_header(log.read(0, 1 << 20, up_to=1 << 40).read()).compression is Compression.GZIP
    assert len(bench.stored("t")) == 2


async def test_a_changed_configuration_counts_at_once(bench: ProduceBench) -> None:
    await bench.create("t")
    await bench.produce(("t", 0, batch()))
    bench.partition("t").log.config = LogConfig(max_message_bytes=10)
    (outcome,) = await bench.produce(("t", 0, batch()))
    assert outcome.error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.slow
async def test_small_records_that_become_large_are_prepared_off_the_loop(bench: ProduceBench) -> None:
    await bench.create("t", 2)
    bomb = build([Record(0, NOW_MS, None, bytes(50_000_000), ())], compression=Compression.ZSTD)
    assert len(bomb) < 20_000
    modest = build([Record(0, NOW_MS, None, bytes(1_000_000), ())], compression=Compression.ZSTD)
    answer = bench.begin(("t", 0, modest), ("t", 1, bomb))
    assert asyncio.iscoroutine(answer)
    assert not bench.stored("t"), "nothing is appended before all of it is prepared"
    assert [outcome.error_code for outcome in outcomes(await answer)] == [0, 0]
    assert not asyncio.iscoroutine(bench.begin(("t", 0, modest)))
    assert [len(record.value or b"") for record in bench.stored("t")] == [1_000_000, 1_000_000]
    assert [len(record.value or b"") for record in bench.stored("t", 1)] == [50_000_000]


async def test_a_partition_named_twice_is_refused(bench: ProduceBench) -> None:
    await bench.create("t", 2)
    sent = batch(1)
    found = await bench.produce(("t", 0, sent), ("t", 1, batch(1)), ("t", 0, batch(1)))
    assert [o.error_code for o in found] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert not bench.stored("t")
    assert len(bench.stored("t", 1)) == 1


@pytest.mark.parametrize("compression", list(Compression))
async def test_large_compressed_batches_are_prepared_off_the_loop(
    bench: ProduceBench, compression: Compression
) -> None:
    await bench.create("t")
    rng = random.Random(1)
    big = [Record(i, NOW_MS, None, rng.randbytes(1000), ()) for i in range(500)]
    data = build(big, compression=compression)
    answer = bench.begin(("t", 0, data), ("nothing", 0, data))
    assert asyncio.iscoroutine(answer) is (compression is not Compression.NONE)
    answer = await answer if asyncio.iscoroutine(answer) else answer
    assert [o.error_code for o in outcomes(answer)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [record.value for record in bench.stored("t")] == [record.value for record in big]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
async def test_records_without_memory_to_check_them_may_be_sent_again(
    bench: ProduceBench, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    await bench.create("t")
    rng = random.Random(1)
    data = build([Record(i, NOW_MS, None, rng.randbytes(1000), ()) for i in range(500)], compression=compression)

    def failing(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("parley.protocol.records.crc.crc32c", failing)
        (outcome,) = await bench.produce(("t", 0, data))
    assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "which producers repeat"
    assert MEMORY.lost_work is None
    (outcome,) = await bench.produce(("t", 0, data))
    assert outcome.error_code == ErrorCode.NONE


async def test_memory_that_runs_out_during_an_append_is_noted(
    bench: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MEMORY, "lost_work", None)
    await bench.create("t")

    def failing(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("parley.storage.segments.Segments.appended", failing)
    for _ in range(2):  # the log takes no more
        (outcome,) = await bench.produce(("t", 0, batch(1)))
        assert outcome.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert isinstance(MEMORY.lost_work, MemoryError)


async def test_a_topic_that_wants_every_record_on_disk(bench: ProduceBench) -> None:
    await bench.create("t", config=LogConfig(flush_messages=1))
    (outcome,) = await bench.produce(("t", 0, batch(3)))
    assert outcome.base_offset == 0
    assert bench.partition("t").log.recovery_point == 3


@pytest.mark.parametrize("version", range(14))
async def test_every_version_appends(bench: ProduceBench, version: int) -> None:
    topic_id = await bench.create("t")
    data: Any = batch(2)
    if version < 3:
        magic = 1 if version == 2 else 0
        data = legacy.build([Record(i, NOW_MS, b"k", b"v", ()) for i in range(2)], magic)
    (outcome,) = await bench.produce((topic_id if version >= 13 else "t", 0, data), version=version)
    assert outcome.error_code == ErrorCode.NONE
    assert [record.offset for record in bench.stored("t")] == [0, 1]


def test_only_the_header_decides_whether_a_batch_is_compressed() -> None:
    assert not is_compressed(None)
    assert not is_compressed(b"\xff" * 20)
    assert is_compressed(build([Record(0, 0, None, b"v", ())], compression=Compression.LZ4))


# Transactions


def in_transaction(sequence: int = 0, *, producer: int = 7, epoch: int = 0) -> bytearray:
    return batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True)


async def test_the_first_batch_of_a_transaction_in_each_partition_is_verified(bench: ProduceBench) -> None:
    topic_id = await bench.create("t", 3)
    sent = [("t", 0, in_transaction()), ("t", 1, in_transaction()), ("t", 2, batch())]
    assert [each.error_code for each in await bench.produce(*sent, transactional_id="x")] == [0, 0, 0]
    assert bench.asked == [("x", 7, 0, [("t", 0), ("t", 1)], False)]
    assert (await bench.produce(("t", 0, in_transaction(1)), transactional_id="x"))[0].error_code == ErrorCode.NONE
    assert len(bench.asked) == 1, "the log knows the transaction"
    (again,) = await bench.produce(("t", 0, in_transaction(1)), transactional_id="x")
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 1), "sent again"
    bench.end_transaction("t")
    (outcome,) = await bench.produce((topic_id, 0, in_transaction(2)), transactional_id="x", version=13)
    assert outcome.error_code == ErrorCode.NONE
    assert bench.asked[1:] == [("x", 7, 0, [("t", 0)], True)], "this version lets the broker add the partition"
    assert len(bench.verifications) == 0


@pytest.mark.parametrize(
    ("version", "refusal", "error"),
    [
        (9, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (9, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (9, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (12, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (9, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_a_partition_that_the_coordinator_refuses(
    bench: ProduceBench, version: int, refusal: ErrorCode, error: ErrorCode
) -> None:
    await bench.create("t", 2)
    bench.refusals = [{("t", 0): refusal}]
    sent = [("t", 0, in_transaction()), ("t", 1, in_transaction())]
    first, second = await bench.produce(*sent, transactional_id="x", version=version)
    assert (first.error_code, second.error_code) == (error, ErrorCode.NONE)
    assert bench.partition("t").log.log_end_offset == 0


async def test_the_broker_asks_again_while_the_previous_transaction_ends(bench: ProduceBench) -> None:
    await bench.create("t")
    bench.refusals = [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}] * 2
    (outcome,) = await bench.produce(("t", 0, in_transaction()), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.NONE
    assert len(bench.asked) == 3


async def test_the_broker_asks_again_for_a_bounded_time(bench: ProduceBench) -> None:
    await bench.create("t")
    bench.asks_again_ms = 100
    bench.refusals = [{("t", 0): ErrorCode.CONCURRENT_TRANSACTIONS}] * 10_000
    (outcome,) = await bench.produce(("t", 0, in_transaction()), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    (outcome,) = await bench.produce(("t", 0, in_transaction(1)), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.CONCURRENT_TRANSACTIONS, "it continues the rejected one"


async def marker_during_verification(bench: ProduceBench, version: int) -> Outcome:
    task = asyncio.ensure_future(bench.begin(("t", 0, in_transaction()), transactional_id="x", version=version))
    while not bench.asked:
        await bench.idle()
    bench.end_transaction("t", committed=False)
    bench.verifications.settle(bench.partition("t"), 7)
    (outcome,) = outcomes(await task)
    return outcome


async def test_a_transaction_that_ends_during_the_verification_is_not_begun_again(bench: ProduceBench) -> None:
    """The coordinator had confirmed it, and is asked again because of the marker."""
    await bench.create("t")
    bench.refusals = [{}, {("t", 0): ErrorCode.TRANSACTION_ABORTABLE}]
    assert (await marker_during_verification(bench, 9)).error_code == ErrorCode.INVALID_TXN_STATE
    assert bench.partition("t").log.last_stable_offset == 1


async def test_a_coordinator_here_verifies_while_the_request_is_handled(bench: ProduceBench) -> None:
    await bench.create("t", 2)
    bench.coordinates = True
    response = bench.begin(("t", 0, in_transaction()), acks=1, transactional_id="x")
    assert isinstance(response, ProduceResponse)
    assert [outcome.error_code for outcome in outcomes(response)] == [ErrorCode.NONE]
    assert bench.asked == [("x", 7, 0, [("t", 0)], False)]
    bench.refusals = [{("t", 1): ErrorCode.TRANSACTION_ABORTABLE}]
    refused = bench.begin(("t", 1, in_transaction()), acks=1, transactional_id="x")
    assert [outcome.error_code for outcome in outcomes(refused)] == [ErrorCode.INVALID_TXN_STATE]
    assert not bench.stored("t", 1)
    assert bench.verifications.metrics.failures == 1
    added = bench.begin(("t", 1, in_transaction()), acks=1, transactional_id="x", version=12)
    assert not isinstance(added, ProduceResponse), "adding stores a record first"
    assert [outcome.error_code for outcome in outcomes(await added)] == [ErrorCode.NONE]


async def test_the_marker_of_the_transaction_before_does_not_disturb_the_next_one(bench: ProduceBench) -> None:
    await bench.create("t")
    assert (await marker_during_verification(bench, 12)).error_code == ErrorCode.NONE
    assert len(bench.asked) == 2


async def test_a_producer_whose_verifications_never_count_retries(bench: ProduceBench) -> None:
    """Each time, the coordinator has confirmed its transaction: a final error would be wrong."""
    await bench.create("t")
    ask = bench.ask

    async def ask_and_end(*args: Any, **options: Any) -> Errors:
        errors = await ask(*args, **options)
        bench.verifications.settle(bench.partition("t"), 7)
        return errors

    bench.ask = ask_and_end  # type: ignore[method-assign]
    (outcome,) = await bench.produce(("t", 0, in_transaction()), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert len(bench.asked) == 4
    bench.ask = ask  # type: ignore[method-assign]
    (outcome,) = await bench.produce(("t", 0, in_transaction()), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.NONE


async def test_verification_can_be_switched_off_for_clients_that_add_partitions_themselves(bench: ProduceBench) -> None:
    await bench.create("t", 2)
    bench.verification_enabled = False
    (outcome,) = await bench.produce(("t", 0, in_transaction()), transactional_id="x")
    assert (outcome.error_code, bench.asked) == (ErrorCode.NONE, [])
    (outcome,) = await bench.produce(("t", 1, in_transaction()), transactional_id="x", version=12)
    assert outcome.error_code == ErrorCode.NONE
    assert bench.asked == [("x", 7, 0, [("t", 1)], True)]


async def test_forged_transactional_requests(bench: ProduceBench) -> None:
    await bench.create("t", 2)
    (outcome,) = await bench.produce(("t", 0, in_transaction()))
    assert outcome.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "without a transactional id"
    sent = [("t", 0, in_transaction()), ("t", 1, in_transaction(producer=8))]
    both = await bench.produce(*sent, transactional_id="x")
    assert {each.error_code for each in both} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    malformed = in_transaction()
    malformed[-1] ^= 1
    (outcome,) = await bench.produce(("t", 0, malformed), transactional_id="x")
    assert outcome.error_code == ErrorCode.CORRUPT_MESSAGE
    (outcome,) = await bench.produce(("nothing", 0, in_transaction()), transactional_id="x")
    assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (outcome,) = await bench.produce(("t", 0, b"\x00" * 70), transactional_id="x")
    assert outcome.error_code == ErrorCode.CORRUPT_MESSAGE
    twice = await bench.produce(("t", 0, in_transaction()), ("t", 0, in_transaction(1)), transactional_id="x")
    assert {each.error_code for each in twice} == {ErrorCode.INVALID_REQUEST}
    assert bench.partition("t").log.log_end_offset == 0


async def test_a_fenced_producer_is_refused_by_the_log(bench: ProduceBench) -> None:
    await bench.create("t")
    bench.end_transaction("t", epoch=3)
    (outcome,) = await bench.produce(("t", 0, in_transaction(epoch=2)), transactional_id="x")
    assert outcome.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_large_batches_of_a_transaction_are_prepared_in_a_thread(bench: ProduceBench) -> None:
    await bench.create("t")
    data = batch(
        300,
        size=2000,
        compression=Compression.GZIP,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    (outcome,) = await bench.produce(("t", 0, data), transactional_id="x")
    assert outcome.error_code == ErrorCode.NONE
    assert bench.partition("t").log.log_end_offset == 300


def ends(bench: ProduceBench, name: str, partitions: int) -> list[int]:
    return [bench.partition(name, index).log.log_end_offset for index in range(partitions)]


async def test_a_request_for_many_partitions_is_appended_in_turns(bench: ProduceBench) -> None:
    await bench.create("t", 5)
    bench.monotonic = count(0, 0.006).__next__  # a turn is over after two appends
    answer = bench.begin(*(("t", index, batch(1)) for index in range(5)))
    assert asyncio.iscoroutine(answer)
    assert ends(bench, "t", 5) == [1, 1, 0, 0, 0], "the other appends wait until the loop has served other clients"
    response = await answer
    assert [(o.index, o.error_code, o.base_offset) for o in outcomes(response)] == [(i, 0, 0) for i in range(5)]
    assert ends(bench, "t", 5) == [1, 1, 1, 1, 1]


async def test_a_request_for_many_partitions_is_decompressed_in_a_thread(
    bench: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create("t", 5)
    in_thread: list[int] = []
    prepare = ProduceApi._prepare

    def noted(api: ProduceApi, context: Any, partition: Any, data: Any) -> Any:
        in_thread.append(data.index)
        return prepare(api, context, partition, data)

    monkeypatch.setattr(ProduceApi, "_prepare", noted)
    bench.monotonic = count(0, 0.006).__next__  # the request's time on the loop is over after one batch
    found = await bench.produce(*(("t", index, batch(9, compression=Compression.GZIP)) for index in range(5)))
    assert [o.error_code for o in found] == [0] * 5
    assert in_thread == [1, 2, 3, 4]
    assert ends(bench, "t", 5) == [9] * 5


@pytest.mark.parametrize(("acks", "waits", "is_dropped"), [(1, False, True), (0, False, False), (0, True, True)])
async def test_a_costly_request_of_a_client_that_has_left_is_dropped(
    bench: ProduceBench, acks: int, waits: bool, is_dropped: bool
) -> None:
    """With ``acks=0`` the client may leave as soon as it has sent its records."""
    await bench.create("t")
    places = [bench.api._preparing._places.take_at_once("127.0.0.1") for _ in range(THREADS_OF_A_CLIENT * waits)]
    task = asyncio.create_task(bench.begin(("t", 0, LARGE), acks=acks, has_disconnected=True))
    await asyncio.sleep(0)
    for place in places:
        assert place is not None
        place.end()
    if is_dropped:
        with pytest.raises(Disconnect):
            await task
    await asyncio.wait([task])
    assert ends(bench, "t", 1) == [1 - is_dropped]


async def test_clients_take_turns_for_the_threads_that_prepare(
    bench: ProduceBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.create("t")
    go_on, begun = threading.Event(), []

    def waits(api: ProduceApi, context: RequestContext, partition: Any, data: Any) -> Any:
        begun.append(context.client_host)
        go_on.wait()
        raise KafkaError(ErrorCode.INVALID_RECORD)

    monkeypatch.setattr(ProduceApi, "_prepare", waits)
    asked = [bench.begin(("t", 0, LARGE), host=host) for host in ["10.0.0.1"] * 5 + ["10.0.0.2"]]
    tasks = [asyncio.create_task(each) for each in asked]
    await eventually(lambda: len(begun) == THREADS_OF_A_CLIENT + 1)
    assert Counter(begun) == {"10.0.0.1": THREADS_OF_A_CLIENT, "10.0.0.2": 1}
    go_on.set()
    await asyncio.gather(*tasks)
    assert len(begun) == len(asked)


@pytest.mark.parametrize(
    ("messages", "codec", "is_in_thread"),
    [(10, Compression.NONE, False), (1000, Compression.NONE, True), (10, Compression.GZIP, True)],
)
async def test_messages_of_the_old_formats_are_converted_in_a_thread_unless_they_are_few(
    bench: ProduceBench, monkeypatch: pytest.MonkeyPatch, messages: int, codec: Compression, is_in_thread: bool
) -> None:
    await bench.create("t")
    in_thread: list[int] = []
    prepare = ProduceApi._prepare

    def noted(api: ProduceApi, context: Any, partition: Any, data: Any) -> Any:
        in_thread.append(data.index)
        return prepare(api, context, partition, data)

    monkeypatch.setattr(ProduceApi, "_prepare", noted)
    sent = legacy.build([Record(i, NOW_MS, None, b"v") for i in range(messages)], 1, compression=codec)
    (outcome,) = await bench.produce(("t", 0, sent), version=2)
    assert outcome.error_code == ErrorCode.NONE
    assert bool(in_thread) is is_in_thread
    assert ends(bench, "t", 1) == [messages]
