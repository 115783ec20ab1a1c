"""Two clusters for a test of a mirror."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley import Broker

SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "log.retention.ms": "-1",  # copied records can have any timestamp
}


@pytest.fixture
def a() -> Iterator[str]:
    """Yield the bootstrap address of cluster A."""
    with Broker(SETTINGS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def b() -> Iterator[str]:
    """Yield the bootstrap address of cluster B."""
    with Broker(SETTINGS) as broker:
        yield broker.bootstrap_servers
