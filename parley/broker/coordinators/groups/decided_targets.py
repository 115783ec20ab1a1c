"""A large target assignment as a thread decides it, with its records: to encode them takes as long as to decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from parley.broker.coordinators.decision import KeyValue

T = TypeVar("T")

NOT_ENCODED: Final[Mapping[str, KeyValue]] = MappingProxyType({})
"""The records of targets that were not decided in a thread."""


class DecidedTargets(NamedTuple, Generic[T]):
    """The target of each member, and the records of those that were to change."""

    targets: Mapping[str, T]
    records: Mapping[str, KeyValue]


def decided_targets(
    decide: Callable[[], Mapping[str, T]], known: Mapping[str, T], record: Callable[[str, T], KeyValue]
) -> DecidedTargets[T]:
    """Decide, and encode what differs from ``known``. A thread calls this: ``known`` must not change meanwhile."""
    targets = decide()
    changed = {member_id: target for member_id, target in targets.items() if known.get(member_id) != target}
    return DecidedTargets(targets, {member_id: record(member_id, target) for member_id, target in changed.items()})
