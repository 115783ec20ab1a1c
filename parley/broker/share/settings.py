"""The settings of a share group that the leaders of its partitions use: those set for the group, or else the broker's.

A fetch reads them several times for each of its partitions. Deriving them from the configuration takes longer than the
rest of the work for a partition, so ``CurrentShareSettings`` caches them until the configuration changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from parley.broker.config.broker_config import BrokerConfig
from parley.broker.config.group_config import GroupConfig
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.broker.replication.partition import Isolation
from parley.broker.share.share_partition import Limits
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The settings of one share group that the leaders of its partitions use."""

    lock_duration_ms: int
    limits: Limits
    offset_reset: str
    """The value of ``share.auto.offset.reset``."""
    isolation: Isolation
    may_renew: bool


SettingsOf = Callable[[str], ShareSettings]
"""Returns the current settings of a share group."""


KEPT_MAX: Final = 1000
"""The maximum number of groups whose settings are cached: more groups than usually have members on one broker."""


class CurrentShareSettings:
    """A function that returns the current settings of a share group (``SettingsOf``), from a cache if possible."""

    def __init__(self, config: Callable[[], BrokerConfig], image: Callable[[], MetadataImage]) -> None:
        self._config = config
        self._image = image
        self._kept: dict[str, tuple[BrokerConfig, Mapping[str, str], ShareSettings]] = {}

    def __call__(self, group_id: str) -> ShareSettings:
        """Return the settings of a group."""
        config, entries = self._config(), self._image().config(ResourceType.GROUP, group_id)
        kept = self._kept.get(group_id)
        if kept is not None and kept[0] is config and kept[1] is entries:  # each change creates new objects
            return kept[2]
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        settings = share_settings(config, entries)
        self._kept[group_id] = (config, entries, settings)
        return settings


def share_settings(config: BrokerConfig, entries: Mapping[str, str]) -> ShareSettings:
    """Return the settings of a share group. ``entries`` are the settings that the group overrides."""
    group = GroupConfig(config, entries)
    is_committed = group.share_isolation_level == "read_committed"
    return ShareSettings(
        group.share_record_lock_duration_ms,
        Limits(group.share_partition_max_record_locks, group.share_delivery_count_limit),
        group.share_auto_offset_reset,
        Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED,
        group.share_renew_acknowledge_enable,
    )
