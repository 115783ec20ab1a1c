"""Several batches of an idempotent producer in flight while the leader of the partition changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.broker.api import refused_batches as refusals_module
from parley.broker.api.refused_batches import Refusals
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.records.batch import build
from parley.protocol.records.batch_header import read_header
from parley.protocol.records.record import Record
from parley.storage.log_config import LogConfig
from parley.storage.producer_state import ProducerState
from tests.broker.api.bench import BROKER, NOW_MS, OTHER
from tests.broker.api.test_produce import ProduceBench

FINE, NOT_LEADER, OUT_OF_ORDER = (
    ErrorCode.NONE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
)


def numbered(sequence: int, *, producer: int = 7, epoch: int = 0) -> bytearray:
    record = Record(0, NOW_MS, None, b"%d" % sequence, ())
    return build([record], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


class PipelineBench(ProduceBench):
    async def send(self, *sequences: int, epoch: int = 0) -> list[ErrorCode]:
        """Return the errors for batches of one record, sent one after another."""
        answers = [await self.produce(("t", 0, numbered(each, epoch=epoch))) for each in sequences]
        return [ErrorCode(outcome.error_code) for (outcome,) in answers]

    @property
    def values(self) -> list[int]:
        return [int(record.value or b"") for record in self.stored("t")]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PipelineBench]:
    bench = PipelineBench(tmp_path)
    yield bench
    await bench.tasks.close()


async def test_batches_behind_one_that_was_rejected_before_the_broker_knew_it_leads_are_rejected_too(
    bench: PipelineBench,
) -> None:
    """A producer that gets OUT_OF_ORDER_SEQUENCE_NUMBER would send 0 again under a new epoch: it would be there
    twice."""
    await bench.create("t", replicas=(BROKER, OTHER))
    assert await bench.send(0) == [FINE]  # and the response is lost
    bench.alter("t", leader=OTHER)
    assert await bench.send(0, 1) == [NOT_LEADER] * 2
    bench.alter("t", leader=BROKER)
    assert await bench.send(2, 3) == [NOT_LEADER] * 2
    assert await bench.send(0, 1, 2, 3) == [FINE] * 4
    assert bench.values == [0, 1, 2, 3]


async def test_a_producer_nothing_is_known_of_does_not_overtake_itself(bench: PipelineBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    assert await bench.send(0) == [NOT_LEADER]
    bench.alter("t", leader=BROKER)
    assert await bench.send(1) == [NOT_LEADER]
    assert await bench.send(0, 1) == [FINE] * 2
    assert bench.values == [0, 1]


async def test_a_topic_not_heard_of_yet(bench: PipelineBench) -> None:
    assert await bench.send(0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await bench.create("t")
    assert await bench.send(1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await bench.send(0, 1) == [FINE] * 2


async def test_too_few_replicas_and_then_enough(bench: PipelineBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), config=LogConfig(min_insync_replicas=2))
    bench.alter("t", isr=(BROKER,))
    (refused,) = await bench.produce(("t", 0, numbered(0)), acks=-1)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    bench.alter("t", isr=(BROKER, OTHER))
    assert await bench.send(1) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert await bench.send(0, 1) == [FINE] * 2


async def test_a_batch_that_continues_the_log_after_an_append_by_another_leader_is_accepted(
    bench: PipelineBench,
) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    assert await bench.send(0) == [NOT_LEADER]
    bench.partition("t").log.append_as_follower(numbered(0))
    bench.alter("t", leader=BROKER)
    assert await bench.send(1) == [FINE]


async def test_a_lasting_gap_is_reported_as_out_of_order(bench: PipelineBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    assert await bench.send(0) == [FINE]
    bench.alter("t", leader=OTHER)
    assert await bench.send(1) == [NOT_LEADER]
    bench.alter("t", leader=BROKER)
    assert await bench.send(3) == [OUT_OF_ORDER]
    assert await bench.send(2, 2) == [NOT_LEADER, OUT_OF_ORDER]


async def test_a_lasting_gap_of_an_unknown_producer_is_accepted(bench: PipelineBench) -> None:
    """As by Kafka's log, which takes any number of a producer it does not know."""
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    assert await bench.send(0) == [NOT_LEADER]
    bench.alter("t", leader=BROKER)
    assert await bench.send(1, 1) == [NOT_LEADER, FINE]
    assert await bench.send(0) == [OUT_OF_ORDER]
    assert bench.values == [1]


async def test_a_batch_that_was_garbled_is_not_overtaken(bench: PipelineBench) -> None:
    await bench.create("t")
    garbled = numbered(0)
    garbled[-1] ^= 0xFF
    (outcome,) = await bench.produce(("t", 0, garbled))
    assert outcome.error_code == ErrorCode.CORRUPT_MESSAGE
    assert await bench.send(1) == [ErrorCode.CORRUPT_MESSAGE]
    assert await bench.send(0, 1) == [FINE] * 2
    assert bench.values == [0, 1]


async def test_a_new_producer_epoch_is_not_affected_by_rejections(bench: PipelineBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER), leader=OTHER)
    assert await bench.send(0) == [NOT_LEADER]
    bench.alter("t", leader=BROKER)
    assert await bench.send(0, 1, epoch=1) == [FINE] * 2


def remembers(refusals: Refusals, producer: int, directory: Path) -> bool:
    try:
        refusals.check("t", 0, read_header(numbered(1, producer=producer)), ProducerState(directory))
    except KafkaError as error:
        return error.code is NOT_LEADER
    return False


def test_a_few_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(refusals_module, "REFUSALS_MAX", 10)
    refusals = Refusals()
    for producer in range(20):
        refusals.note("t", 0, numbered(0, producer=producer), NOT_LEADER, host="h")
    assert len(refusals) == 10
    assert [producer for producer in range(20) if remembers(refusals, producer, tmp_path)] == list(range(10, 20))


@pytest.mark.parametrize("missing", ["t", "no such topic"])
def test_a_host_that_invents_producers_loses_its_entries_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: str
) -> None:
    monkeypatch.setattr(refusals_module, "REFUSALS_MAX", 10)
    refusals = Refusals()
    for producer in range(3):
        refusals.note("t", 0, numbered(0, producer=producer), NOT_LEADER, host="h")
    for producer in range(100, 200):
        refusals.note(missing, 0, numbered(0, producer=producer), NOT_LEADER, host="stranger")
    for producer in range(3, 5):
        refusals.note("t", 0, numbered(0, producer=producer), NOT_LEADER, host="other")
    assert len(refusals) == 10
    assert [producer for producer in range(5) if remembers(refusals, producer, tmp_path)] == list(range(5))


def test_a_producer_that_changes_its_host_is_remembered_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(refusals_module, "REFUSALS_MAX", 1)
    refusals = Refusals()
    for host in ("one", "two", "one"):
        refusals.note("t", 0, numbered(0), NOT_LEADER, host=host)
        assert len(refusals) == 1
        assert remembers(refusals, 7, tmp_path)


def test_a_name_no_topic_can_have_is_not_remembered() -> None:
    refusals = Refusals()
    refusals.note("t" * 250, 0, numbered(0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, host="h")
    assert not refusals
    refusals.note("t" * 249, 0, numbered(0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, host="h")
    assert refusals


@pytest.mark.parametrize("records", [None, b"", b"x" * 20, bytes(100), numbered(-1), numbered(0, producer=-1)])
def test_records_without_sequence_are_not_remembered(records: bytes | None) -> None:
    refusals = Refusals()
    refusals.note("t", 0, records, NOT_LEADER, host="h")
    assert not refusals


def test_a_batch_that_is_bad_itself_is_not_remembered() -> None:
    refusals = Refusals()
    refusals.note("t", 0, numbered(0), ErrorCode.INVALID_RECORD, host="h")
    assert not refusals
