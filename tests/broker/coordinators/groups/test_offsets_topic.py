"""How an append to ``__consumer_offsets`` waits for the ISR, in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.offsets_topic import OffsetsTopic
from parley.broker.runtime.purgatory import Purgatory
from parley.protocol.errors import ErrorCode, KafkaError
from tests.support.virtual_time import run

NOW_MS = 77


class Replica:
    """A partition whose high watermark the test sets."""

    def __init__(self) -> None:
        self.end = 0
        self.high_watermark = 0
        self.failure: ErrorCode | None = None
        self.must_be_flushed = False
        self.flushes = 0
        self.asked: list[int] = []
        self.log = SimpleNamespace(flush=self._flush)

    def _flush(self) -> None:
        self.flushes += 1

    def append(self, batch: bytearray, *, acks: int, now_ms: int) -> SimpleNamespace:
        assert (acks, now_ms) == (-1, NOW_MS)
        self.end += 1
        return SimpleNamespace(last_offset=self.end - 1)

    def must_flush(self, now_ms: int) -> bool:
        assert now_ms == NOW_MS
        return self.must_be_flushed

    def is_acknowledged(self, offset: int) -> ErrorCode | None:
        self.asked.append(offset)
        return self.failure or (ErrorCode.NONE if offset < self.high_watermark else None)


class Bench:
    def __init__(self) -> None:
        self.replica = Replica()
        self.purgatory = Purgatory()
        partitions: Any = SimpleNamespace(find=lambda topic, index: self.replica)
        config = BrokerConfig.from_properties({"offsets.commit.timeout.ms": "3000"})
        self.topic = OffsetsTopic(partitions, self.purgatory, lambda: config, lambda: NOW_MS)

    def append(self) -> asyncio.Future[int]:
        return asyncio.ensure_future(self.topic.append(0, bytearray(b"batch")))

    def moves_to(self, high_watermark: int) -> list[int]:
        """Move the high watermark. Returns the offsets of the appends that are looked at."""
        self.replica.asked.clear()
        self.replica.high_watermark = high_watermark
        self.purgatory.notify(self.replica)
        return self.replica.asked


def test_an_append_returns_once_the_isr_has_it_and_later_ones_are_not_looked_at_before() -> None:
    async def scenario() -> None:
        bench = Bench()
        appends = [bench.append() for _ in range(3)]
        await asyncio.sleep(0)
        assert bench.moves_to(0) == [0], "the first one waits: the others need not look"
        assert bench.moves_to(2) == [0, 1, 2]
        await asyncio.sleep(0.001)
        assert [append.done() for append in appends] == [True, True, False]
        bench.moves_to(3)
        assert await asyncio.gather(*appends) == [0, 1, 2]

    run(scenario())


def test_an_append_that_the_isr_has_at_once_does_not_wait() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.replica.high_watermark = 1
        began = asyncio.get_running_loop().time()
        assert await bench.append() == 0
        assert asyncio.get_running_loop().time() == began
        assert bench.replica.flushes == 0

    run(scenario())


@pytest.mark.parametrize("failure", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_an_append_fails_with_the_error_of_the_partition(failure: ErrorCode) -> None:
    async def scenario() -> None:
        bench = Bench()
        append = bench.append()
        await asyncio.sleep(0)
        bench.replica.failure = failure
        bench.moves_to(0)
        with pytest.raises(KafkaError) as refused:
            await append
        assert refused.value.code is failure

    run(scenario())


def test_an_append_waits_as_long_as_the_configuration_says() -> None:
    async def scenario() -> None:
        bench = Bench()
        began = asyncio.get_running_loop().time()
        with pytest.raises(KafkaError) as refused:
            await bench.append()
        assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert asyncio.get_running_loop().time() - began == 3

    run(scenario())


def test_an_append_is_flushed_first_if_it_must_be() -> None:
    async def scenario() -> None:
        bench = Bench()
        bench.replica.must_be_flushed, bench.replica.high_watermark = True, 1
        await bench.append()
        assert bench.replica.flushes == 1

    run(scenario())
