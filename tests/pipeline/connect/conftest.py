"""A broker for Connect workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley import Broker


@pytest.fixture(scope="session")
def connect_broker() -> Iterator[Broker]:
    """Yield a broker that allows short sessions, and does not delay a group's first rebalance."""
    settings = {"group.min.session.timeout.ms": "500", "group.initial.rebalance.delay.ms": "0"}
    with Broker(settings) as broker:
        yield broker
