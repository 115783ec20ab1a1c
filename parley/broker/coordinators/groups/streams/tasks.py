"""The tasks of a streams application, by subtopology and partition.

A member runs *active* tasks, and keeps copies of the state of its *standby* tasks. *Warm-up* tasks catch up before a
member takes them over; no assignor of Kafka 4.3 uses them. An active task is stored with the epoch in which the member
got it, which fences commits of earlier epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

TaskId = tuple[str, int]
"""A task: its subtopology and partition."""

Tasks = Mapping[str, frozenset[int]]
"""The partitions of tasks by subtopology. A subtopology without tasks is omitted."""

TasksSince = Mapping[str, Mapping[int, int]]
"""The epochs in which active tasks were assigned, by subtopology and partition."""

NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class MemberTasks(NamedTuple):
    """Tasks of a member, without their epochs: its target, or the tasks that it reports."""

    active: Tasks = NOTHING
    standby: Tasks = NOTHING
    warmup: Tasks = NOTHING


class CurrentTasks(NamedTuple):
    """The tasks that a member has, or that it must revoke."""

    active: TasksSince = NOTHING
    standby: Tasks = NOTHING
    warmup: Tasks = NOTHING

    @property
    def is_empty(self) -> bool:
        """True if there are no tasks."""
        return not (self.active or self.standby or self.warmup)


NO_TARGET: Final = MemberTasks()
NO_TASKS: Final = CurrentTasks()


def ids_of(tasks: Mapping[str, Iterable[int]]) -> Iterable[TaskId]:
    """Iterate over the ids of tasks."""
    return ((subtopology, partition) for subtopology, partitions in tasks.items() for partition in partitions)


def grouped(ids: Iterable[TaskId]) -> dict[str, frozenset[int]]:
    """Return tasks by subtopology, in ascending order of the subtopologies."""
    found: dict[str, set[int]] = {}
    for subtopology, partition in ids:
        found.setdefault(subtopology, set()).add(partition)
    return {subtopology: frozenset(found[subtopology]) for subtopology in sorted(found)}


def overlap(first: Mapping[str, Iterable[int]], second: Mapping[str, Iterable[int]]) -> bool:
    """Return True if ``first`` and ``second`` have a task in common."""
    return any(not set(first[each]).isdisjoint(second[each]) for each in first.keys() & second.keys())


def still_has_any(owned: MemberTasks, tasks: CurrentTasks) -> bool:
    """Return True if a member's reported tasks include any of ``tasks``."""
    return (
        overlap(owned.active, tasks.active)
        or overlap(owned.standby, tasks.standby)
        or overlap(owned.warmup, tasks.warmup)
    )


def is_within(owned: Mapping[str, Iterable[int]], tasks: Mapping[str, Iterable[int]]) -> bool:
    """Return True if ``tasks`` contains all tasks in ``owned``."""
    return all(set(partitions) <= set(tasks.get(subtopology, ())) for subtopology, partitions in owned.items())
