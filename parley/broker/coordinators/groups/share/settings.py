"""The settings of a share group that its coordinator uses: those set for the group, or else the broker's."""

from __future__ import annotations

from parley.broker.config import BrokerConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MembersSettings:
    """The settings for the members of a share group, all in milliseconds."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def members_settings(config: BrokerConfig, image: MetadataImage, group_id: str) -> MembersSettings:
    """Return the settings of a share group: the broker's, unless the group has its own."""
    entries = image.config(ResourceType.GROUP, group_id)
    if not entries:
        return MembersSettings(
            config.group_share_session_timeout_ms,
            config.group_share_heartbeat_interval_ms,
            config.group_share_assignment_interval_ms,
        )
    group = GroupConfig(config, entries)
    return MembersSettings(
        group.share_session_timeout_ms, group.share_heartbeat_interval_ms, group.share_assignment_interval_ms
    )
