"""A running broker exports every metric of the catalog, including those that no other test reads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import parley
from parley import Broker
from parley.broker.metrics.catalogue import CATALOGUE
from parley.broker.metrics.catalogue.logs import FlushMetrics
from parley.broker.metrics.catalogue.process import ShortageMetrics
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from tests.broker.coordinators.groups.test_coordinator import Groups

PARLEY = Path(parley.__file__).parent


async def test_every_metric_of_the_catalogue_has_a_source() -> None:
    async with Broker() as broker:
        sources = dict(broker.server.environment.metrics.snapshot()).keys()
        assert set(CATALOGUE) - sources == {ShortageMetrics}  # only a broker with a process to itself has it


@pytest.mark.slow
def test_every_number_of_the_catalogue_is_named_by_the_code_that_counts_it() -> None:
    paths = [path for path in PARLEY.rglob("*.py") if "catalogue" not in path.parts]
    words = {word for path in paths for word in re.findall(r"\w+", path.read_text())}
    assert [name for each in CATALOGUE for name in each.INSTRUMENTS if name not in words] == []


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
