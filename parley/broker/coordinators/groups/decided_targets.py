"""A large target assignment that a thread computes. The thread also encodes its records, which takes just as long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar

from parley.broker.coordinators.decision import KeyValue

T = TypeVar("T")

NOT_ENCODED: Final[Mapping[str, KeyValue]] = MappingProxyType({})
"""No encoded records, because the assignment was not computed in a thread."""


class DecidedTargets(NamedTuple, Generic[T]):
    """The target of each member, and the encoded records of the targets that changed."""

    targets: Mapping[str, T]
    records: Mapping[str, KeyValue]


def decided_targets(
    decide: Callable[[], Mapping[str, T]], known: Mapping[str, T], record: Callable[[str, T], KeyValue]
) -> DecidedTargets[T]:
    """Compute the targets with ``decide``, and encode those that differ from ``known`` with ``record``.

    This runs in a thread, so ``known`` must not change in the meantime.
    """
    targets = decide()
    changed = {member_id: target for member_id, target in targets.items() if known.get(member_id) != target}
    return DecidedTargets(targets, {member_id: record(member_id, target) for member_id, target in changed.items()})
