"""Finds topics, partitions and settings that are missing on the target. Pure decisions, no I/O.

A mirrored topic is created with the source's number of partitions and with the settings that were changed there. Later
it gets the source's new partitions and changed settings. An existing topic may grow but never shrinks, and its records
stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parley.pipeline.mirror.naming import Selection

STATIC_BROKER: Final = 4
DEFAULT: Final = 5
"""Sources of a setting, with DescribeConfigs' numbers: the broker's file, and Kafka's default."""
TOPIC: Final = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of a topic, as the mirrored cluster describes it."""

    value: str | None
    source: int = TOPIC
    """The level at which the value is set, such as the topic or the broker's file, by DescribeConfigs' number."""
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a setting on the target. None removes it, so that the target's default applies."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Topology:
    """The topics to create, with their numbers of partitions, and the topics to grow, with their new numbers."""

    create: dict[str, int]
    grow: dict[str, int]


def missing(source: Mapping[str, int], target: Mapping[str, int]) -> Topology:
    """Return what the target lacks. ``source`` and ``target`` contain the wanted and the existing topics by their names
    on the target, with their numbers of partitions.
    """
    create = {name: count for name, count in source.items() if name not in target}
    grow = {name: count for name, count in source.items() if target.get(name, count) < count}
    return Topology(create, grow)


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """The choice of settings to mirror: all except ``exclude``, and the source's defaults only if
    ``defaults`` is set.
    """

    exclude: Selection
    defaults: bool = False

    def at_creation(self, settings: Mapping[str, Setting]) -> dict[str, str]:
        """Return the settings with which a new topic is created."""
        return {change.name: change.value for change in self.later(settings) if change.value is not None}

    def later(self, settings: Mapping[str, Setting]) -> list[Change]:
        """Return the changes to an existing topic's settings: those to set, and those to remove."""
        changes = []
        for name, setting in sorted(settings.items()):
            if setting.read_only or setting.sensitive or setting.source == STATIC_BROKER or name in self.exclude:
                continue
            keep = self.defaults or setting.source != DEFAULT
            changes.append(Change(name, setting.value if keep else None))
        return changes
