"""The plan of a partition: omissions, limits, divergence; and the states of a waiting fetch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parley.broker.api.fetch.params import FetchParams, params_of
from parley.broker.api.fetch.pending_fetch import _STEPS, FetchEvent, FetchState
from parley.broker.api.fetch.plan import Omit, Read, allowance, plan_omission
from parley.broker.api.fetch.sessions import FetchTarget
from parley.broker.runtime.states import IllegalStep
from parley.protocol.messages.fetch import FetchRequest
from parley.protocol.uuids import UUID
from tests.broker.api.bench import BROKER, OTHER, Bench, context
from tests.broker.api.fetch.test_handler import FetchBench, ask

UNKNOWN = 2**63 - 1


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[FetchBench]:
    bench = FetchBench(tmp_path)
    yield bench
    await bench.tasks.close()


def target(bench: Bench, offset: int, *, max_bytes: int = 100, known: int = UNKNOWN) -> FetchTarget:
    asked = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes, high_watermark=known
    )
    made = FetchTarget("t", bench.partition("t").topic_id, asked)
    made.bind(bench.partition("t"))
    made.is_verified = True
    made.known_log_start = 0
    return made


def params(replica_id: int = -1) -> FetchParams:
    return params_of(context(12), FetchRequest(replica_id=replica_id, max_wait_ms=0, min_bytes=1, topics=[]))


def test_partitions_share_the_bytes_in_order_and_the_first_gets_a_batch() -> None:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)
    asked = FetchTarget("t", UUID(int=1), partition)
    assert allowance(asked, 0, 1000) == Read(100, True)
    assert allowance(asked, 950, 1000) == Read(50, False)
    assert allowance(asked, 1200, 1000) == Read(0, False)


async def test_a_partition_that_has_nothing_new_is_omitted(bench: FetchBench) -> None:
    await bench.create("t", replicas=(BROKER, OTHER))
    bench.write("t", 2)
    follower, consumer = params(OTHER), params()

    def omit(at: FetchTarget, who: FetchParams, *, may_defer: bool = True, reads_here: bool = False) -> Omit | None:
        return plan_omission(at, who, may_defer=may_defer, consumers_read_here=reads_here)

    assert omit(target(bench, 2, known=0), follower) is Omit.UNCHANGED
    stale = target(bench, 2, known=-1)
    assert omit(stale, follower) is Omit.CAN_WAIT
    assert omit(stale, follower, may_defer=False) is None
    assert omit(stale, follower, reads_here=True) is None
    assert omit(target(bench, 1), follower) is None, "there are records"
    assert omit(target(bench, 0, known=-1), consumer) is None, "a consumer learns the high watermark at once"
    unverified = target(bench, 2, known=0)
    unverified.is_verified = False
    assert omit(unverified, follower) is None


async def test_a_fetch_takes_only_the_steps_of_its_table(bench: FetchBench) -> None:
    await bench.create("t")
    waiting = bench.begin(ask("t"), max_wait_ms=60_000)
    assert waiting._fetch_state is FetchState.WAITING
    with pytest.raises(IllegalStep, match="WAIT is not legal in the state WAITING"):
        waiting.wait(1.0)
    bench.write("t")
    assert waiting._fetch_state is FetchState.WOKEN
    await waiting
    assert waiting._fetch_state is FetchState.RESPONDING
    waiting.next_request_arrived()
    waiting.cancel()
    for event in FetchEvent:
        assert (FetchState.RESPONDING, event) not in _STEPS
        assert (FetchState.CANCELLED, event) not in _STEPS
