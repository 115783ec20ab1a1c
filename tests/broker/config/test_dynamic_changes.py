"""Validation of configuration changes while brokers run."""

from __future__ import annotations

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.dynamic_changes import check_change

BROKER = BrokerConfig.from_properties({"log.cleaner.threads": "3"})


def test_the_answer_is_the_configuration_as_it_would_be() -> None:
    for_all = check_change(BROKER, {"log.cleaner.threads": "4"}, per_broker=False)
    assert (for_all.log_cleaner_threads, dict(for_all.cluster_default)) == (4, {"log.cleaner.threads": "4"})
    for_one = check_change(for_all, {"log.cleaner.threads": "5"}, per_broker=True)
    assert (for_one.log_cleaner_threads, dict(for_one.cluster_default)) == (5, {"log.cleaner.threads": "4"})
    assert BROKER.log_cleaner_threads == 3


@pytest.mark.parametrize(
    ("layer", "per_broker", "text"),
    [
        ({"num.partitions": "3"}, True, "it takes effect when a broker starts"),
        ({"log.retention.hours": "3"}, True, "it takes effect when a broker starts"),
        ({"advertised.listeners": "PLAINTEXT://a:1"}, True, "it takes effect when a broker starts"),
        ({"listeners": "PLAINTEXT://:1"}, True, "it takes effect when a broker starts"),
        ({"listeners": "PLAINTEXT://:1"}, False, "set for one broker, not for all at once"),
        ({"listener.name.plaintext.ssl.keystore.location": "/x"}, False, "set for one broker, not for all at once"),
        ({"ssl.keystore.location": "/x"}, True, "listener.name.<name>.ssl.keystore.location"),
        ({"sasl.jaas.config": "x"}, True, "listener.name.<name>.sasl.jaas.config"),
        ({"log.segment.bytes": "abc"}, True, "log.segment.bytes=abc is not allowed"),
        ({"log.retention.ms": "0"}, False, "-1 (forever), or at least 1"),
        ({"log.cleaner.io.buffer.load.factor": "nan"}, False, "a number from 0.01 to 1"),
        ({"log.cleaner.io.buffer.load.factor": "-1"}, False, "a number from 0.01 to 1"),
        ({"log.cleaner.io.max.bytes.per.second": "0"}, False, "a number of at least 1"),
        ({"log.cleaner.io.max.bytes.per.second": "1e400"}, False, "a number of at least 1"),
    ],
)
def test_refuses(layer: dict[str, str], per_broker: bool, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_change(BROKER, layer, per_broker=per_broker)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        "num.io.threads",
        "num.network.threads",
        "background.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
    ],
)
def test_a_thread_count_changes_by_at_most_a_factor_of_two(name: str) -> None:
    """The messages are Kafka's."""
    broker = BrokerConfig.from_properties({name: "9"})
    for allowed in ("4", "9", "18"):
        check_change(broker, {name: allowed}, per_broker=True)
    prefix = f"Dynamic thread count update validation failed for {name}="
    for refused, why in (
        ("3", "3, value should be at least half the current value 9"),
        ("19", "19, value should not be greater than double the current value 9"),
        ("2147483647", "2147483647, value should not be greater than double the current value 9"),
    ):
        with pytest.raises(ConfigError) as raised:
            check_change(broker, {name: refused}, per_broker=False)
        assert str(raised.value) == prefix + why
    raised_before = broker.with_dynamic({name: "18"}, {})
    check_change(raised_before, {name: "36"}, per_broker=True)
    with pytest.raises(ConfigError):
        check_change(raised_before.with_dynamic({name: "36"}, {}), {}, per_broker=False)


def test_a_secret_is_not_in_a_refusal() -> None:
    with pytest.raises(ConfigError) as refused:
        check_change(BROKER, {"ssl.key.password": "hunter2"}, per_broker=True)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("layer", "per_broker"),
    [
        ({"made.up": "1"}, True),
        ({"listener.name.plaintext.max.connections": "7"}, False),
        ({"listener.name.plaintext.scram-sha-256.sasl.jaas.config": "x"}, True),
        ({"listener.name.plaintext.ssl.keystore.location": "/x"}, True),
        ({"leader.replication.throttled.rate": "1000"}, True),
    ],
)
def test_allows(layer: dict[str, str], per_broker: bool) -> None:
    check_change(BROKER, layer, per_broker=per_broker)
