"""Kafka's own Java client, of the newest version and of 3.9."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.kafka import KAFKA_3, KAFKA_4, run_java
from tests.system.running import BrokerProcess

PROGRAM = str(Path(__file__).with_name("JavaClient.java"))


@pytest.mark.parametrize("version", [KAFKA_4, pytest.param(KAFKA_3, marks=pytest.mark.soak)])
def test_the_java_client(broker: BrokerProcess, new_name: Callable[..., str], version: str) -> None:
    assert run_java(PROGRAM, broker.bootstrap_servers, new_name(), version=version).splitlines()[-1] == "done"
