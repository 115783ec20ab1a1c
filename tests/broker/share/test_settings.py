"""The settings of share groups follow the configuration."""

from __future__ import annotations

from parley.broker.config import BrokerConfig
from parley.broker.metadata.changes import ConfigReplaced, Delta
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ConfigResource, ResourceType
from parley.broker.share import settings
from parley.broker.share.settings import CurrentShareSettings


def test_each_change_of_the_configuration_counts_at_once() -> None:
    config, image = BrokerConfig.from_properties({}), MetadataImage("c")
    current = CurrentShareSettings(lambda: config, lambda: image)

    def changed(**entries: str) -> MetadataImage:
        written = {name.replace("_", "."): value for name, value in entries.items()}
        change = ConfigReplaced(ConfigResource(ResourceType.GROUP, "g"), written)
        return image.apply(Delta(0, image.version + 1, (change,)))

    assert current("g").offset_reset == "latest"
    assert current("g") is current("g"), "it is kept"
    image = changed(share_auto_offset_reset="earliest")
    assert current("g").offset_reset == "earliest"
    assert current("other").offset_reset == "latest"
    config = BrokerConfig.from_properties({"group.share.record.lock.duration.ms": "20000"})
    assert current("g").lock_duration_ms == 20_000
    assert current("g").offset_reset == "earliest"
    image = changed()
    assert current("g").offset_reset == "latest"


def test_clients_cannot_fill_the_memory_with_groups() -> None:
    config = BrokerConfig.from_properties({})
    current = CurrentShareSettings(lambda: config, lambda: MetadataImage("c"))
    for number in range(settings.KEPT_MAX * 2):
        current(f"group-{number}")
    assert len(current._kept) <= settings.KEPT_MAX
