"""A broker's measurements of its coordination store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley.broker.embedded.broker import Broker
from parley.broker.membership.measured_store import CANCELLED, MeasuredBackend, StoreCounts
from parley.broker.membership.store_outage import StoreOutage
from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.catalogue.coordination import StoreCallMetrics, StoreMetrics, StoreSessionMetrics
from parley.broker.metrics.catalogue.logs import LogDirectoryMetrics
from parley.broker.metrics.instruments import Instruments
from parley.consensus.backend import ABSENT, Check, Entry, Put, TxnResult
from parley.consensus.errors import AlreadyExists, Unavailable
from parley.consensus.memory import MemoryBackend


class Away(MemoryBackend):
    """Fails or hangs, as it is told."""

    fault = ""

    async def get(self, key: str, **options: Any) -> Entry | None:
        if self.fault == "hangs":
            await asyncio.Event().wait()
        if self.fault:
            raise Unavailable(self.fault)
        return await super().get(key, **options)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def store_values(counts: StoreCounts, store: MeasuredBackend, outage: StoreOutage) -> StoreMetrics:
    ((labels, values),) = counts.store_metrics(store, outage)
    assert labels == ("memory",)
    assert isinstance(values, StoreMetrics)
    return values


async def test_calls_and_errors_are_counted_by_operation_and_kind(clock: Clock) -> None:
    counts = StoreCounts(clock)
    inner = Away.from_url("memory:")
    store = MeasuredBackend(inner, counts)
    await store.open()
    await store.get("a")
    result: TxnResult = await store.txn([Check("a", ABSENT)], [Put("a", b"1")])
    assert result.revisions[0] is not None
    with pytest.raises(AlreadyExists):
        await store.put("a", b"2", expect=ABSENT)
    assert not await store.delete("b")
    assert (await store.list("", limit=10)).entries[0].key == "a"

    clock.now = 60.0
    inner.fault = "no route"
    with pytest.raises(Unavailable):
        await store.get("a")
    inner.fault = "hangs"
    call = asyncio.ensure_future(store.get("a"))
    await asyncio.sleep(0)
    outage = StoreOutage(clock)
    outage.record_failure("no route")
    values = store_values(counts, store, outage)
    assert (values.calls_in_progress, values.since_contact_seconds) == (1, 60.0)
    assert (values.responds, values.outages) == (0, 1)
    call.cancel()
    await asyncio.wait({call})

    assert {operation: sum(each.duration.buckets) for operation, each in counts.calls.items()} == {
        "open": 1, "get": 3, "txn": 1, "put": 1, "delete": 1, "list": 1,
    }  # fmt: skip
    errors = {labels: each.errors for labels, each in counts.errors.items()}
    assert errors == {("put", "AlreadyExists"): 1, ("get", "Unavailable"): 1, ("get", CANCELLED): 1}
    outage.record_response()
    clock.now = 90.0
    values = store_values(counts, store, outage)
    assert (values.responds, values.outages, values.outage_seconds, values.in_charge_seconds) == (1, 1, 0.0, 30.0)
    await store.close()


async def test_a_session_that_is_closed_is_not_lost(clock: Clock) -> None:
    counts = StoreCounts(clock)
    store = MeasuredBackend(MemoryBackend.from_url("memory:"), counts)
    await store.open()

    def values() -> StoreSessionMetrics:
        ((_, found),) = counts.session_metrics()
        assert isinstance(found, StoreSessionMetrics)
        return found

    first = await store.open_session(60_000)
    counts.session_opened(first)
    clock.now = 5.0
    assert (values().connected, values().age_seconds, values().ttl_seconds) == (1, 5.0, 60.0)
    counts.session_closing(first)
    await first.close()
    assert (values().connected, values().age_seconds, values().expirations) == (0, 0.0, 0)

    second = await store.open_session(60_000)
    counts.session_opened(second)
    second.suspend()
    assert (values().connected, values().interruptions, values().reconnections) == (0, 1, 0)
    second.renewed(asyncio.get_running_loop().time())
    assert (values().connected, values().reconnections) == (1, 1)
    second.lose()
    assert (values().opened, values().expirations, values().age_seconds) == (2, 1, 0.0)
    await store.close()


async def test_a_broker_exports_all_of_it() -> None:
    async with Broker() as broker:
        samples: dict[type[Instruments], list[Any]] = dict(broker.server.environment.metrics.snapshot())
        (store,) = samples[StoreMetrics]
        assert store.labels == (broker.server.parts.store_move.store.capabilities.name,)
        assert store.values[0] == 1
        assert {sample.labels[0] for sample in samples[StoreCallMetrics]} >= {"open", "get", "txn", "open_session"}
        assert samples[StoreSessionMetrics][0].values[0] == 1
        assert len(samples[LogDirectoryMetrics]) == 1
        assert set(samples) <= set(CATALOGUE), "the exporter shows only what the catalogue lists"
