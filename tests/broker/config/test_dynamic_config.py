"""The configuration of a broker that follows the metadata."""

from __future__ import annotations

import pytest

from parley.broker.config import BrokerConfig
from parley.broker.config.dynamic_config import DynamicConfig
from parley.broker.metadata.changes import ConfigReplaced, Delta
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, ResourceType


class Cluster:
    """The metadata of a cluster, and the configuration of its broker 1."""

    def __init__(self, **static: str) -> None:
        self.metadata = Metadata(MetadataImage("c"))
        self.config = DynamicConfig(1, BrokerConfig.from_properties(static))
        self.metadata.subscribe(self.config.apply)

    def set(self, broker: str, **entries: str) -> None:
        resource = ConfigResource(ResourceType.BROKER, broker)
        written = {name.replace("_", "."): text for name, text in entries.items()}
        self.metadata.apply(Delta(0, self.metadata.image.version + 1, (ConfigReplaced(resource, written),)))


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [vars(record)["warning"] for record in caplog.records if "warning" in vars(record)]


def test_a_change_for_this_broker_or_for_all_is_followed() -> None:
    cluster = Cluster()
    cluster.set("", log_retention_ms="5")
    cluster.set("1", log_segment_bytes="2000000")
    cluster.set("2", log_retention_ms="6")
    assert (cluster.config().log_retention_ms, cluster.config().log_segment_bytes) == (5, 2000000)


def test_a_setting_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.set("", num_network_threads="7")
    cluster.set("1", log_retention_ms="5")
    assert warned(caplog) == [
        "num.network.threads has no effect: A broker is served by one event loop. To use more cores, run more brokers."
    ]


def test_ignored_keys_of_the_properties_file_are_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(**{"num.io.threads": "9"})
    cluster.set("", log_retention_ms="5")
    assert warned(caplog) == []


def test_a_stored_configuration_that_does_not_fit_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.set("", log_retention_ms="soon")
    assert cluster.config().log_retention_ms != 5
    assert "problems" in vars(caplog.records[-1])
