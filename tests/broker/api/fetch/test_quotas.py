"""Fetches under a quota: no records beyond the quota, none lost in a session, and smaller responses instead
of delays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parley.broker.api.fetch import pending_fetch
from parley.broker.api.fetch.handler import FetchApi
from parley.broker.api.fetch.render import build_response
from parley.broker.network.request_context import RequestContext
from parley.broker.quotas.enforcement import QuotaEnforcement
from parley.broker.quotas.entities import QuotaEntity
from parley.protocol.messages.fetch import FetchRequest, FetchResponse
from tests.broker.api.bench import context
from tests.broker.api.fetch.test_handler import MAX, FetchBench, ask, content, found
from tests.broker.quotas.test_enforcement import Clock, enforcing
from tests.support.memory import nothing_is_in_memory

RATE = 1000.0
BATCH = 900
"""Bytes of a record: a batch of one has some more. Eleven use up what a consumer may fetch at once."""


class LimitedBench(FetchBench):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.clock = Clock()
        self.quotas: QuotaEnforcement = enforcing({QuotaEntity(user=""): {"consumer_byte_rate": RATE}}, self.clock)
        self.api = FetchApi(
            self.partitions,
            self.metadata,
            self.sessions,
            self.purgatories.fetch,
            self.tasks,
            max_bytes=MAX,
            quotas=self.quotas,
        )

    async def settled(self, *asked: Any, **request: Any) -> tuple[FetchResponse, float]:
        """Fetch, and count the request as the dispatcher does. Returns the response and the throttle time."""
        asking: RequestContext = context(12)
        answer = self.asked_by(asking, *asked, **request)
        while not isinstance(answer, FetchResponse):
            answer = await answer
        response, throttle_s = self.quotas.charge(asking, answer, self.clock())
        assert isinstance(response, FetchResponse)
        assert response.throttle_time_ms == round(throttle_s * 1000)
        return response, throttle_s

    def asked_by(self, asking: RequestContext, *asked: Any, **request: Any) -> Any:
        whole = FetchRequest(**{"max_wait_ms": 0, "min_bytes": 1, "topics": topics_of(*asked), **request})
        return self.api.fetch(asking, whole)


def topics_of(*asked: Any) -> list[FetchRequest.FetchTopic]:
    return [FetchRequest.FetchTopic(topic=topic, partitions=[partition]) for topic, partition in asked]


def size(response: FetchResponse) -> int:
    return sum(len(content(data)) for topic in response.responses for data in topic.partitions)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[LimitedBench]:
    bench = LimitedBench(tmp_path)
    await bench.create("t")
    for _ in range(40):
        bench.write("t", size=BATCH)
    yield bench
    await bench.tasks.close()


async def test_a_fetch_immediately_returns_as_much_as_the_quota_allows(bench: LimitedBench) -> None:
    response, throttle_s = await bench.settled(ask("t"))
    assert 9 * RATE < size(response) <= 10 * RATE
    assert throttle_s == 0.0
    offset = len(found(response)[0][3])
    response, throttle_s = await bench.settled(ask("t", offset))
    assert found(response) == []
    assert 0 < throttle_s <= 1.0, "it wants one batch, not all that there is"
    bench.clock.now_s += 1.0
    response, throttle_s = await bench.settled(ask("t", offset))
    assert found(response) == []
    bench.clock.now_s += 10.0
    response, throttle_s = await bench.settled(ask("t", offset))
    assert found(response)[0][3][0] == offset
    assert throttle_s == 0.0


async def test_a_session_keeps_partitions_that_a_throttled_response_omits(bench: LimitedBench) -> None:
    await bench.create("u")
    first, _ = await bench.settled(ask("t"), ask("u"), session_epoch=0)
    session, offset = first.session_id, len(found(first)[0][3])
    bench.write("u", size=BATCH)
    throttled, throttle_s = await bench.settled(ask("t", offset), session_id=session, session_epoch=1)
    assert (throttled.session_id, found(throttled)) == (session, [])
    assert throttle_s > 0
    bench.clock.now_s += 11.0
    after, _ = await bench.settled(session_id=session, session_epoch=2)
    assert {(topic, offsets[0]) for topic, _, _, offsets in found(after)} == {("t", offset), ("u", 0)}


async def test_a_throttled_full_fetch_begins_no_session(bench: LimitedBench) -> None:
    await bench.settled(ask("t"))
    response, throttle_s = await bench.settled(ask("t"), session_epoch=0)
    assert throttle_s > 0
    assert (response.session_id, bench.sessions.sessions) == (0, 0)


async def test_a_consumer_that_is_up_to_date_is_not_throttled(bench: LimitedBench) -> None:
    await bench.settled(ask("t"))
    response, throttle_s = await bench.settled(ask("t", 40))
    assert found(response) == [("t", 0, 0, [])]
    assert throttle_s == 0.0


async def test_a_fetch_that_waits_for_more_than_the_quota_allows_waits_for_less(bench: LimitedBench) -> None:
    await bench.settled(ask("t"))
    asking = context(12)
    response = bench.asked_by(asking, ask("t"), min_bytes=100_000, max_wait_ms=60_000)
    assert isinstance(response, FetchResponse)


async def test_the_work_of_a_fetch_that_has_waited_takes_request_time(
    bench: LimitedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def render_slowly(*parts: Any) -> FetchResponse:
        bench.clock.now_s += 0.25
        return build_response(*parts)

    monkeypatch.setattr(pending_fetch, "build_response", render_slowly)
    for write in (True, False):
        asking = context(12)
        waits = bench.asked_by(asking, ask("t", 40 if write else 41), max_wait_ms=60_000)
        if write:
            bench.write("t", size=BATCH)
        else:
            waits.expired()
        await waits
        assert asking.busy_s == 0.25


async def test_records_that_only_the_disk_has_are_returned_and_counted(
    bench: LimitedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_in_memory(monkeypatch)
    response, _ = await bench.settled(ask("t"))
    assert size(response) > 0
    ((_, numbers),) = bench.quotas.metrics()
    assert numbers.used == size(response)
    _, throttle_s = await bench.settled(ask("t"))
    assert throttle_s > 0
    for _ in range(3):  # a client that opens a connection for each fetch is not stopped by its throttles
        response, throttle_s = await bench.settled(ask("t"))
        assert found(response) == []
        assert throttle_s > 0
