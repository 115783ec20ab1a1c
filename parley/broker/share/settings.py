"""The settings of a share group that the leaders of its partitions use: the group's own, or else the broker's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.broker.replication.partition import Isolation
from parley.broker.share.share_partition import Limits


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The settings of one share group."""

    lock_duration_ms: int
    limits: Limits
    offset_reset: str
    """The value of ``share.auto.offset.reset``."""
    isolation: Isolation
    may_renew: bool


SettingsOf = Callable[[str], ShareSettings]
"""Returns the current settings of a share group."""


def share_settings(config: BrokerConfig, image: MetadataImage, group_id: str) -> ShareSettings:
    """Return the settings of a share group."""
    group = GroupConfig(config, image.config(ResourceType.GROUP, group_id))
    is_committed = group.share_isolation_level == "read_committed"
    return ShareSettings(
        group.share_record_lock_duration_ms,
        Limits(group.share_partition_max_record_locks, group.share_delivery_count_limit),
        group.share_auto_offset_reset,
        Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED,
        group.share_renew_acknowledge_enable,
    )
