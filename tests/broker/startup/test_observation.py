"""A running broker exports every metric of the catalogue, and counts what no other test reads."""

from __future__ import annotations

from parley import Broker
from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.catalogue.logs import FlushMetrics
from parley.broker.metrics.catalogue.process import ShortageMetrics
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.groups.test_coordinator import Groups


async def test_every_metric_of_the_catalogue_has_a_source() -> None:
    async with Broker() as broker:
        sources = dict(broker.server.environment.metrics.snapshot()).keys()
        assert set(CATALOGUE) - sources == {ShortageMetrics}  # it watches a process of its own


async def test_flushes_are_measured() -> None:
    async with Broker() as broker, Client(broker.bootstrap_servers) as client:
        groups = Groups(broker, client)
        await groups.create("t")
        await groups.find_coordinator()
        assert await groups.commit(0) is ErrorCode.NONE
        (log,) = [log for log in broker.server.parts.logs.logs if log.log_end_offset]
        (before,) = dict(broker.server.environment.metrics.snapshot())[FlushMetrics]
        log.flush()
        log.flush()  # nothing is left to flush
        (after,) = dict(broker.server.environment.metrics.snapshot())[FlushMetrics]
        assert sum(after.values[0][0]) == sum(before.values[0][0]) + 1
