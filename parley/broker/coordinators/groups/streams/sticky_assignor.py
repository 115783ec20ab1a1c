"""The assignor ``sticky``: balances the load, and moves few tasks (Kafka's StickyTaskAssignor).

An active task is assigned to the first of these members that exists:

1. the member that had the task, if it has fewer tasks than its share;
2. a member that had it as a standby task, under the same condition;
3. in the process with the least load (tasks per member), the member with the fewest tasks.

Then the standby tasks of each stateful task are assigned in the same way, but only to processes that do not have the
task: two copies in one process would be lost together. If there are too few processes, there are fewer standby tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

from parley.broker.coordinators.groups.streams.tasks import MemberTasks, TaskId, grouped, ids_of
from parley.light_dataclasses import dataclass


class MemberSpec(NamedTuple):
    """The assignor's input about a member: its process, and its previous target."""

    process_id: str
    previous: MemberTasks


class SubtopologySpec(NamedTuple):
    """The assignor's input about a subtopology: its number of tasks, and whether it has state stores."""

    tasks: int
    is_stateful: bool


@dataclass(slots=True, eq=False)
class _Member:
    member_id: str
    process: _Process
    count: int = 0
    active: list[TaskId] = field(default_factory=list)
    standby: list[TaskId] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Process:
    rank: int
    """The position of the process, which breaks ties between equal loads."""
    members: list[_Member] = field(default_factory=list)
    tasks: set[TaskId] = field(default_factory=set)
    count: int = 0
    by_count: list[tuple[int, int]] | None = None
    """A heap of the counts and positions of members, or None if it must be rebuilt."""

    @property
    def load(self) -> float:
        return self.count / len(self.members)

    def add(self, member: _Member, task: TaskId, *, is_active: bool) -> int:
        """Assign a task to a member. Returns the member's number of tasks."""
        self.by_count = None
        return self._add(member, task, is_active)

    def add_to_least_loaded(self, task: TaskId, *, is_active: bool) -> int:
        """Assign a task to the member with the fewest tasks. Returns that member's number of tasks."""
        if self.by_count is None:
            self.by_count = [(member.count, position) for position, member in enumerate(self.members)]
            heapify(self.by_count)
        position = self.by_count[0][1]
        count = self._add(self.members[position], task, is_active)
        heapreplace(self.by_count, (count, position))
        return count

    def _add(self, member: _Member, task: TaskId, is_active: bool) -> int:
        self.count += 1
        self.tasks.add(task)
        (member.active if is_active else member.standby).append(task)
        member.count += 1
        return member.count


@dataclass(slots=True)
class _Share:
    """The number of tasks that a member may keep. A member with more would leave too few for the other members.

    It is the number of remaining tasks per remaining member, and is computed again when a member reaches it.
    """

    tasks: int
    members: int
    quota: int = 0

    def __post_init__(self) -> None:
        self._divide()

    def note(self, count: int) -> None:
        """Record that a member now has this number of tasks."""
        if count == self.quota:
            self.members -= 1
            self.tasks -= count
            self._divide()

    def _divide(self) -> None:
        self.quota = -(-self.tasks // self.members) if self.members else 0


def assign(
    members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standby_replicas: int
) -> dict[str, MemberTasks]:
    """Return the tasks of each member, by member id. A stateful task gets up to ``standby_replicas`` standby tasks."""
    if not members:
        return {}
    return _Assignment(members, subtopologies, standby_replicas).made()


class _Assignment:
    def __init__(
        self, members: Mapping[str, MemberSpec], subtopologies: Mapping[str, SubtopologySpec], standby_replicas: int
    ) -> None:
        self._replicas = standby_replicas
        self._active = [(name, each) for name, spec in subtopologies.items() for each in range(spec.tasks)]
        self._stateful = [task for task in self._active if subtopologies[task[0]].is_stateful]
        self._active_share = _Share(len(self._active), len(members))
        self._share = _Share(len(self._active) + len(self._stateful) * standby_replicas, len(members))
        processes: dict[str, _Process] = {}
        self._members: list[_Member] = []
        self._had_active: dict[TaskId, _Member] = {}
        self._had_standby: dict[TaskId, list[_Member]] = {}
        for member_id, spec in members.items():
            process = processes.setdefault(spec.process_id, _Process(len(processes)))
            member = _Member(member_id, process)
            process.members.append(member)
            self._members.append(member)
            self._had_active.update(dict.fromkeys(ids_of(spec.previous.active), member))
            for task in ids_of(spec.previous.standby):
                self._had_standby.setdefault(task, []).append(member)
        self._processes = list(processes.values())

    def made(self) -> dict[str, MemberTasks]:
        self._assign_active()
        if self._replicas > 0:
            self._assign_standby()
        return {each.member_id: MemberTasks(grouped(each.active), grouped(each.standby)) for each in self._members}

    # --- Active tasks ---

    def _assign_active(self) -> None:
        ordered = sorted(self._active, key=lambda task: (task[1], task[0]))
        left = [task for task in ordered if not self._returned(task, self._had_active.get(task))]
        left = [task for task in left if not self._returned(task, _least_loaded(self._had_standby.get(task, ())))]
        queue = self._by_load()
        for task in sorted(left):
            process = self._processes[queue[0][1]]
            self._note_active(process.add_to_least_loaded(task, is_active=True))
            heapreplace(queue, (process.load, process.rank))

    def _returned(self, task: TaskId, member: _Member | None) -> bool:
        """Assign an active task to a member that had it, if the member has fewer tasks than its share. Returns True if
        the task was assigned."""
        if member is None or member.count >= self._active_share.quota:
            return False
        self._note_active(member.process.add(member, task, is_active=True))
        return True

    def _note_active(self, count: int) -> None:
        self._active_share.note(count)
        self._share.note(count)

    def _by_load(self) -> list[tuple[float, int]]:
        queue = [(process.load, process.rank) for process in self._processes]
        heapify(queue)
        return queue

    # --- Standby tasks ---

    def _assign_standby(self) -> None:
        left: list[tuple[TaskId, int]] = []
        for task in sorted(self._stateful, key=lambda each: (each[1], each[0]), reverse=True):
            given = 0
            while given < self._replicas and self._keeps_copy(task):
                given += 1
            if given < self._replicas:
                left.append((task, self._replicas - given))
        queue = self._by_load()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._copied(task, queue):
                    break

    def _keeps_copy(self, task: TaskId) -> bool:
        """Assign a standby task to a member that had the task, if the member has fewer tasks than its share. Returns
        True if the task was assigned."""
        return self._returned_copy(task, self._had_active.get(task)) or self._returned_copy(
            task, _least_loaded(self._had_standby.get(task, ()), task)
        )

    def _returned_copy(self, task: TaskId, member: _Member | None) -> bool:
        if member is None or task in member.process.tasks or member.count >= self._share.quota:
            return False
        self._share.note(member.process.add(member, task, is_active=False))
        return True

    def _copied(self, task: TaskId, queue: list[tuple[float, int]]) -> bool:
        """Assign a standby task to the least loaded process that does not have the task. Returns False if all processes
        have it."""
        passed = []
        found = None
        while queue and found is None:
            entry = heappop(queue)
            process = self._processes[entry[1]]
            if task in process.tasks:
                passed.append(entry)
            else:
                found = process
        if found is not None:
            self._share.note(found.add_to_least_loaded(task, is_active=False))
            passed.append((found.load, found.rank))
        for entry in passed:
            heappush(queue, entry)
        return found is not None


def _least_loaded(members: Iterable[_Member], task: TaskId | None = None) -> _Member | None:
    """Return the first member, or a later one if its process has less load and it has fewer tasks itself.

    With ``task``, skip later members whose process has the task and, as in Kafka, return None if the process of the
    first member has it.
    """
    known = list(members)
    if not known:
        return None
    candidate = known[0]
    for member in known[1:]:
        is_lighter = member.process.load < candidate.process.load and member.count < candidate.count
        if is_lighter and (task is None or task not in member.process.tasks):
            candidate = member
    return candidate if task is None or task not in known[0].process.tasks else None
