"""A broker for workers of Connect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley import Broker


@pytest.fixture(scope="session")
def connect_broker() -> Iterator[Broker]:
    """Yield a broker that lets workers' sessions be short, and waits for no other members of their groups."""
    settings = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
    with Broker(settings) as broker:
        yield broker
