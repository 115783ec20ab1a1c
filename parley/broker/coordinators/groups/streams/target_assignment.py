"""The target assignment of a streams group: which tasks each member is to have in the end.

A small group's is decided within the heartbeat that needs it. A large one's is decided in a thread, from a copy of what
the assignor needs; until it is stored, the members keep to the previous one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from parley.broker.coordinators.groups.streams.configuration import Configured
from parley.broker.coordinators.groups.streams.settings import STANDBY_REPLICAS
from parley.broker.coordinators.groups.streams.sticky_assignor import MemberSpec, SubtopologySpec, assign
from parley.broker.coordinators.groups.streams.streams_group import StreamsMember
from parley.broker.coordinators.groups.streams.tasks import NO_TARGET, TargetTasks

LARGE: Final = 2_000
"""Members and tasks together from which on a thread decides: from then on it takes about ten milliseconds."""


def size_of(members: int, configured: Configured | None, settings: Mapping[str, str]) -> int:
    """Return the size by which an assignment takes long: members, and tasks with their copies."""
    subtopologies = (configured.subtopologies if configured is not None else None) or {}
    copies = _replicas(settings)
    return members + sum(each.tasks * (1 + copies * each.is_stateful) for each in subtopologies.values())


def deciding(
    members: Iterable[StreamsMember],
    targets: Mapping[str, TargetTasks],
    configured: Configured | None,
    settings: Mapping[str, str],
) -> Callable[[], dict[str, TargetTasks]]:
    """Return a function that returns the target of every member. It shares nothing with the group that changes."""
    ordered = sorted(members, key=lambda member: member.member_id)
    if configured is None or not configured.is_ready or configured.subtopologies is None:
        return partial(dict, [(member.member_id, NO_TARGET) for member in ordered])
    specs = {
        member.member_id: MemberSpec(member.details.process_id, targets.get(member.member_id, NO_TARGET))
        for member in ordered
    }
    subtopologies = {
        name: SubtopologySpec(each.tasks, each.is_stateful) for name, each in configured.subtopologies.items()
    }
    return partial(assign, specs, subtopologies, _replicas(settings))


def _replicas(settings: Mapping[str, str]) -> int:
    return int(settings.get(STANDBY_REPLICAS, "0"))
