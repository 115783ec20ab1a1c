"""Compaction in a whole broker: the offsets topic stays short, and can be loaded after it was compacted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from parley import Broker
from parley.broker.config import BrokerConfig
from parley.broker.runtime.threads import COMPACTION
from parley.broker.startup.replication import cleaner_settings
from parley.protocol.client import Client
from parley.protocol.errors import ErrorCode
from parley.protocol.records.batch_header import HEADER_SIZE
from tests.broker.coordinators.groups.test_coordinator import OFFSETS_TOPIC, Groups

COMPACTS_AT_ONCE = {
    "log.cleaner.backoff.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.roll.ms": "1",
    "offsets.topic.num.partitions": "1",
}
COMMITS = 60
PATIENCE_S = 60.0
PAUSE_S = 0.02


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


def is_compacted(broker: Broker, topic: str) -> bool:
    """Return True if the sealed segments of a partition, with most of the commits, are as small as a tenth of them."""
    log = broker.server.parts.logs.get(topic, 0)
    assert log is not None
    *sealed, active = log.segments  # only sizes: a thread may replace the files meanwhile
    return active.base_offset > COMMITS / 2 and sum(each.size for each in sealed) < COMMITS / 10 * 2 * HEADER_SIZE


@pytest.mark.slow
async def test_the_offsets_topic_is_compacted_and_read_back(tmp_path: Path) -> None:
    async with Broker(COMPACTS_AT_ONCE, data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        groups = Groups(broker, client)
        assert await groups.create("t") == ErrorCode.NONE
        assert await groups.find_coordinator() == ErrorCode.NONE
        for offset in range(COMMITS):
            assert await groups.commit(offset) == ErrorCode.NONE
        await until(lambda: is_compacted(broker, OFFSETS_TOPIC))
        assert await groups.committed() == [COMMITS - 1]
    async with Broker(COMPACTS_AT_ONCE, data_dir=tmp_path) as broker, Client(broker.bootstrap_servers) as client:
        groups = Groups(broker, client)
        assert await groups.find_coordinator() == ErrorCode.NONE
        assert await groups.committed() == [COMMITS - 1]


async def test_the_settings_of_the_cleaner_follow_the_configuration() -> None:
    async with Broker({"log.cleaner.threads": "3", "log.cleaner.enable": "false"}) as broker:
        settings = cleaner_settings(broker.server.parts.config())
        assert settings.threads == 0
        assert settings.backoff_ms == 15_000
        assert settings.map_bytes == 134_217_728


def test_no_more_logs_are_compacted_at_a_time_than_there_are_threads() -> None:
    config = BrokerConfig.from_properties({"log.cleaner.threads": str(COMPACTION + 1)})
    assert cleaner_settings(config).threads == COMPACTION
