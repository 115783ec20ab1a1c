"""The settings of a streams group that its coordinator uses: those set for the group, or else the broker's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from parley.broker.config import BrokerConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.light_dataclasses import dataclass

STANDBY_REPLICAS: Final = "num.standby.replicas"


@dataclass(frozen=True, slots=True)
class StreamsSettings:
    """The settings of a streams group. Times are in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    initial_rebalance_delay_ms: int
    standby_replicas: int

    def of_assignor(self) -> Mapping[str, str]:
        """Return the settings of the assignor, as they are stored. If they change, a new target assignment is
        needed."""
        return {STANDBY_REPLICAS: str(self.standby_replicas)}


def streams_settings(config: BrokerConfig, image: MetadataImage, group_id: str) -> StreamsSettings:
    """Return the settings of a streams group: the broker's, unless the group has its own. The number of standby
    replicas is at most the broker's maximum."""
    entries = image.config(ResourceType.GROUP, group_id)
    if not entries:
        return _without_own_entries(config)
    group = GroupConfig(config, entries)
    return StreamsSettings(
        group.streams_session_timeout_ms,
        group.streams_heartbeat_interval_ms,
        group.streams_assignment_interval_ms,
        group.streams_initial_rebalance_delay_ms,
        min(group.streams_num_standby_replicas, config.group_streams_max_standby_replicas),
    )


@lru_cache(1)
def _without_own_entries(config: BrokerConfig) -> StreamsSettings:
    return StreamsSettings(
        config.group_streams_session_timeout_ms,
        config.group_streams_heartbeat_interval_ms,
        config.group_streams_assignment_interval_ms,
        config.group_streams_initial_rebalance_delay_ms,
        config.group_streams_num_standby_replicas,
    )
