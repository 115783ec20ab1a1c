"""The assignors that a broker offers: the built-in ones, and those from other packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from parley.broker.config import ConfigError, Problem
from parley.broker.config.plugins import plugin
from parley.broker.coordinators.groups.consumer.assignors.assignor import PartitionAssignor
from parley.broker.coordinators.groups.consumer.assignors.range import RangeAssignor
from parley.broker.coordinators.groups.consumer.assignors.uniform import UniformAssignor

ENTRY_POINTS: Final = "parley.group_assignors"
"""The name of the entry point group for assignors."""

_KEY: Final = "group.consumer.assignors"

_BUILT_IN: Final[Mapping[str, type[PartitionAssignor]]] = {
    "uniform": UniformAssignor,
    "range": RangeAssignor,
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UniformAssignor,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RangeAssignor,
}


def load_assignors(names: Sequence[str]) -> dict[str, PartitionAssignor]:
    """Return the assignors that ``group.consumer.assignors`` names, by name, in the same order.

    A name is a built-in assignor, an entry point, or a class as ``package.module.Class``. Raises ConfigError if a name
    is unknown or repeated, or if there are no names.
    """
    assignors: dict[str, PartitionAssignor] = {}
    for name in names:
        built_in = _BUILT_IN.get(name)
        made: PartitionAssignor = built_in() if built_in else plugin(_KEY, name, PartitionAssignor, ENTRY_POINTS)
        if made.name in assignors:
            raise ConfigError([Problem(_KEY, name, "each assignor only once")])
        assignors[made.name] = made
    if not assignors:
        raise ConfigError([Problem(_KEY, "", "at least one assignor")])
    return assignors
