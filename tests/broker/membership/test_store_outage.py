"""An outage of the store is logged when it begins, at growing intervals, and when it ends."""

from __future__ import annotations

import asyncio

import pytest

from parley.broker.membership.store_outage import StoreOutage
from tests.support import virtual_time


def test_an_outage_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    now = 0.0
    outage = StoreOutage(lambda: now)
    outage.record_response()
    logged_at = []
    for second in range(100):
        now = float(second)
        caplog.clear()
        outage.record_failure("refused")
        logged_at += [second] * len(caplog.records)
    assert logged_at == [0, 5, 15, 35, 75]
    assert outage.description == "the coordination store has not responded for 99 s"
    assert outage.count == 1
    caplog.clear()
    outage.record_response()
    outage.record_response()
    (ended,) = caplog.records
    assert (ended.levelname, ended.getMessage()) == ("INFO", "the coordination store responds again")
    assert outage.duration_s is None


def test_two_short_outages_are_not_a_long_one() -> None:
    async def wait_through_two() -> float:
        loop = asyncio.get_running_loop()
        outage, began = StoreOutage(loop.time), loop.time()
        loop.call_later(1, outage.record_failure, "refused")
        loop.call_later(4, outage.record_response)
        loop.call_later(5, outage.record_failure, "refused")
        await outage.wait_until_longer_than(10)
        return loop.time() - began

    assert virtual_time.run(wait_through_two()) == 15
