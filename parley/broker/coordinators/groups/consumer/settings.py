"""The settings of a consumer group: those set for the group, or else the broker's."""

from __future__ import annotations

from functools import lru_cache

from parley.broker.config import BrokerConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a consumer group, all in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def settings_of(config: BrokerConfig, image: MetadataImage, group_id: str) -> GroupSettings:
    """Return the settings of a consumer group: the broker's, unless the group has its own."""
    entries = image.config(ResourceType.GROUP, group_id)
    if not entries:
        return _without_own_entries(config)
    group = GroupConfig(config, entries)
    return GroupSettings(
        group.consumer_session_timeout_ms,
        group.consumer_heartbeat_interval_ms,
        group.consumer_assignment_interval_ms,
    )


@lru_cache(1)
def _without_own_entries(config: BrokerConfig) -> GroupSettings:
    return GroupSettings(
        config.group_consumer_session_timeout_ms,
        config.group_consumer_heartbeat_interval_ms,
        config.group_consumer_assignment_interval_ms,
    )
