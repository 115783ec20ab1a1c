"""The target assignment of a streams group: the tasks that each member will have when all members have reconciled.

For a small group, it is computed in the heartbeat that needs it. For a large group, a thread computes it from a copy of
the data, and the previous target assignment stays valid until the new one is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from parley.broker.coordinators.groups.streams.configuration import Configured
from parley.broker.coordinators.groups.streams.settings import STANDBY_REPLICAS
from parley.broker.coordinators.groups.streams.sticky_assignor import MemberSpec, SubtopologySpec, assign
from parley.broker.coordinators.groups.streams.streams_group import StreamsMember
from parley.broker.coordinators.groups.streams.tasks import NO_TARGET, MemberTasks

LARGE: Final = 2_000
"""The number of members and tasks together from which a thread computes the assignment, because that takes about ten
milliseconds."""


def size_of(members: int, configured: Configured | None, settings: Mapping[str, str]) -> int:
    """Return the number of members, tasks and standby tasks of an assignment, which determines how long the computation
    takes."""
    subtopologies = (configured.subtopologies if configured is not None else None) or {}
    copies = _replicas(settings)
    return members + sum(each.tasks * (1 + copies * each.is_stateful) for each in subtopologies.values())


def deciding(
    members: Iterable[StreamsMember],
    targets: Mapping[str, MemberTasks],
    configured: Configured | None,
    settings: Mapping[str, str],
) -> Callable[[], dict[str, MemberTasks]]:
    """Return a function that computes the target of every member. It shares no mutable data with the group.

    If the topology is not ready, all targets are empty.
    """
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
