"""Groups of the consumer protocol (KIP-848) with real clients: the Java client and librdkafka."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from tests.support.kafka import KAFKA_4, run_java
from tests.system.running import BrokerProcess
from tests.system.test_confluent_groups import until

pytestmark = [pytest.mark.slow, pytest.mark.system]

PROGRAM = str(Path(__file__).with_name("JavaConsumerGroups.java"))


def test_the_java_client_shares_a_group_subscribes_by_pattern_and_changes_the_protocol(
    broker: BrokerProcess, new_name: Callable[..., str]
) -> None:
    assert run_java(PROGRAM, broker.bootstrap_servers, new_name(), version=KAFKA_4).splitlines()[-1] == "done"


def consumer(broker: BrokerProcess, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )


def test_librdkafka_shares_a_group(broker: BrokerProcess, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=4)
    first, second = consumer(broker, topic), consumer(broker, topic)
    try:
        first.subscribe([topic])
        until([first], lambda held: held == [{0, 1, 2, 3}])
        second.subscribe([f"^{topic}"])
        held = until([first, second], lambda held: [len(each) for each in held] == [2, 2])
        assert held[0] | held[1] == {0, 1, 2, 3}
        first.close()
        until([second], lambda held: held == [{0, 1, 2, 3}])
    finally:
        first.close()
        second.close()
