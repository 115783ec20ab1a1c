"""Which assignors a broker offers: the built-in ones, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from parley.broker.config import ConfigError, Problem
from parley.broker.coordinators.groups.consumer.assignors.assignor import PartitionAssignor
from parley.broker.coordinators.groups.consumer.assignors.range import RangeAssignor
from parley.broker.coordinators.groups.consumer.assignors.uniform import UniformAssignor

ENTRY_POINTS: Final = "parley.group_assignors"
"""The group of entry points for assignors, by name."""

_KEY: Final = "group.consumer.assignors"

_BUILT_IN: Final[Mapping[str, type[PartitionAssignor]]] = {
    "uniform": UniformAssignor,
    "range": RangeAssignor,
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": UniformAssignor,
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": RangeAssignor,
}


def load_assignors(names: Sequence[str]) -> dict[str, PartitionAssignor]:
    """Return the assignors of ``group.consumer.assignors`` by name, in the same order.

    A name is that of a built-in assignor or of an entry point, or names a class with its module. Raises ConfigError.
    """
    assignors: dict[str, PartitionAssignor] = {}
    for name in names:
        try:
            made = _class_named(name)()
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError([Problem(_KEY, name, f"an assignor that can be loaded: {error}")]) from error
        if not isinstance(made, PartitionAssignor):
            raise ConfigError([Problem(_KEY, name, f"a subclass of {PartitionAssignor.__module__}.PartitionAssignor")])
        if made.name in assignors:
            raise ConfigError([Problem(_KEY, name, "each assignor only once")])
        assignors[made.name] = made
    if not assignors:
        raise ConfigError([Problem(_KEY, "", "at least one assignor")])
    return assignors


def _class_named(name: str) -> Any:
    known = _BUILT_IN.get(name)
    if known is not None:
        return known
    for entry_point in entry_points(group=ENTRY_POINTS, name=name):
        return entry_point.load()
    module, _, cls = name.rpartition(".")
    if not module:
        raise ImportError(f"no entry point of the group {ENTRY_POINTS} has this name, and it names no module")
    return getattr(import_module(module), cls)
