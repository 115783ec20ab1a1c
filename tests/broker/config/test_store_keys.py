"""The keys of coordination stores in a broker's configuration, with a store from another package."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from parley.broker.config import BrokerConfig, ConfigError
from parley.broker.config.describe import describe_broker
from parley.broker.config.dynamic_changes import check_change
from parley.broker.config.key_definition import Password
from parley.broker.config.retired import why_retired
from parley.broker.logging.lines import secrets_in
from parley.consensus import registry
from parley.consensus.memory import MemoryBackend
from parley.consensus.store_config import ConfigKey, StoreConfig, ValueType


class PigeonBackend(MemoryBackend):
    config = StoreConfig(
        keys=(
            ConfigKey("pigeon.password", ValueType.PASSWORD, None, "What the pigeon whispers."),
            ConfigKey("pigeon.flight.ms", ValueType.INT, 5000, "How long a flight takes.", at_least=1, unit="ms"),
        )
    )


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("pigeon", f"{__name__}:PigeonBackend", registry.GROUP),
        EntryPoint("broken", "no_such_module:Backend", registry.GROUP),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.GROUP else [])


def test_the_values_of_a_third_partys_keys_are_checked() -> None:
    config = BrokerConfig.from_properties({"pigeon.password": "coo", "pigeon.flight.ms": "7"})
    assert config.warnings == ()
    assert vars(config)["pigeon_password"] == Password("coo")
    assert vars(config)["pigeon_flight_ms"] == 7
    with pytest.raises(ConfigError, match=r"pigeon\.flight\.ms=0 is not allowed"):
        BrokerConfig.from_properties({"pigeon.flight.ms": "0"})


def test_a_misspelled_key_of_a_third_party_is_named() -> None:
    (warning,) = BrokerConfig.from_properties({"pigeon.pasword": "coo"}).warnings
    assert warning == "pigeon.pasword is not a configuration key: did you mean pigeon.password?"


def test_secrets_of_a_third_party_are_hidden() -> None:
    config = BrokerConfig.from_properties({"pigeon.password": "coo"})
    entries = {entry.name: entry for entry in describe_broker(config)}
    assert (entries["pigeon.password"].value, entries["pigeon.password"].is_sensitive) == (None, True)
    assert (entries["pigeon.flight.ms"].value, entries["pigeon.flight.ms"].is_default) == ("5000", True)
    assert secrets_in(config) == {"coo"}


def test_keys_of_stores_stay_known_and_cannot_be_changed_at_run_time() -> None:
    config = BrokerConfig.from_properties({"pigeon.password": "coo"}).with_dynamic({}, {"log.retention.ms": "1"})
    assert config.warnings == ()
    for name in ("pigeon.flight.ms", "zookeeper.session.timeout.ms"):
        with pytest.raises(ConfigError, match="set in the properties file"):
            check_change(config, {name: "9"}, per_broker=True)


def test_a_store_that_cannot_be_loaded_leaves_its_keys_unknown() -> None:
    (warning,) = BrokerConfig.from_properties({"broken.key": "1"}).warnings
    assert warning == "broken.key is not a configuration key"


def test_the_session_timeout_may_be_given_by_a_stores_own_key() -> None:
    def session_timeout_ms(**given: str) -> int:
        properties = {name.replace("_", "."): value for name, value in given.items()}
        return BrokerConfig.from_properties(properties).session_timeout_ms

    assert session_timeout_ms() == 9_000
    assert session_timeout_ms(zookeeper_session_timeout_ms="7000") == 7_000
    assert session_timeout_ms(zookeeper_session_timeout_ms="7000", coordination_session_timeout_ms="8000") == 8_000


def test_keys_that_a_store_does_not_use_say_why() -> None:
    assert why_retired("zookeeper.metadata.migration.enable") == "It moves a Kafka cluster to its own metadata quorum."


def test_a_configuration_without_unknown_keys_does_not_read_the_installed_distributions() -> None:
    code = (
        "import sys; from parley.broker.config import BrokerConfig; "
        "BrokerConfig.from_properties({'zookeeper.connect': 'h', 'broker.id': '1'}); "
        "sys.exit(bool({'importlib.metadata', 'kazoo'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3]).returncode == 0
