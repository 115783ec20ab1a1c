"""Which host of tasks may run which task, and when: the decisions behind :mod:`parley.pipeline.connect.spark`,
without I/O.

Rules:

1. A task is in one place: it waits, or one host has it. What another host still says of it counts for nothing.
2. The tasks of a host that was lost are fenced for `FENCE_S`: within that time the host, which may yet live, ends them
   by itself (:mod:`parley.pipeline.connect.tasks.peer`: its lease ends after `SILENCE_S`, and it has `STOP_S` to stop
   them).
   Until then a task that is fenced is started nowhere, whoever asks for it, and whoever has stopped it waits as long.
3. A task goes to the host that has the fewest.
4. A task may kill its process, and all others in it. Tasks whose host was lost within `TRIAL_S` of their start there,
   `DEATHS_MAX` times in a row, are suspects, and are put on trial: a host gets one of them at a time. If it is lost
   while a suspect is on trial, or if there is only one whom it can have been, that task has failed. The others go on.

Nothing here is for several threads: the engine's lock is around it. Times are in seconds, of any clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from parley.pipeline.connect.herder import TaskId
from parley.pipeline.connect.tasks.spec import TaskSpec

__all__ = ["DEATHS_MAX", "FENCE_S", "TRIAL_S", "Host", "Placement"]

FENCE_S: Final = 30.0
"""Longer than `SILENCE_S` and `STOP_S` together, by as much as what is under way then may take to arrive."""
TRIAL_S: Final = 20.0
DEATHS_MAX: Final = 2


@dataclass(eq=False, slots=True, kw_only=True)
class Host:
    """A host of tasks, as the engine sees it."""

    tasks: dict[TaskId, TaskSpec] = field(default_factory=dict)
    started_at: dict[TaskId, float] = field(default_factory=dict)
    failed: set[TaskId] = field(default_factory=set)
    """Those of its tasks that have failed: they are started again by whoever asks for it, not because it is lost."""


H = TypeVar("H", bound=Host)


class Placement(Generic[H]):
    """See the module's rules."""

    def __init__(self) -> None:
        self.hosts: list[H] = []
        self._waiting: dict[TaskId, TaskSpec] = {}
        self._fenced_until: dict[TaskId, float] = {}
        self._unwanted: set[TaskId] = set()
        """Tasks that a host still has, but that are being stopped."""
        self._deaths: Counter[TaskId] = Counter()

    # What is wanted.

    def want(self, spec: TaskSpec) -> None:
        """The task is to run."""
        self._waiting[spec.id] = spec

    def set_paused(self, task: TaskId, *, is_paused: bool) -> H | None:
        """It is to be started so wherever it is; the host that has it now."""
        host = self._host_of(task)
        specs = self._waiting if host is None else host.tasks
        if task in specs:
            specs[task] = replace(specs[task], is_paused=is_paused)
        return host

    def give_up(self, tasks: Iterable[TaskId]) -> dict[H, list[TaskId]]:
        """These are to run no longer, what they are suspected of is forgotten: the hosts that have to stop them."""
        found: dict[H, list[TaskId]] = {}
        for task in tasks:
            self._waiting.pop(task, None)
            self._deaths.pop(task, None)
            host = self._host_of(task)
            if host is not None:
                found.setdefault(host, []).append(task)
                self._unwanted.add(task)
        return found

    # What hosts do.

    def owns(self, host: H, spec: TaskSpec) -> bool:
        """Whether what the host says of this start of a task counts."""
        held = host.tasks.get(spec.id)
        return held is not None and held.incarnation == spec.incarnation

    def failed(self, host: H, spec: TaskSpec) -> None:
        """The task does nothing any more, though the host still has it."""
        if self.owns(host, spec):
            host.failed.add(spec.id)

    def stopped(self, host: H, tasks: Iterable[TaskId]) -> None:
        """The host has ended these, or has abandoned them."""
        for task in tasks:
            host.tasks.pop(task, None)
            host.failed.discard(task)
            self._unwanted.discard(task)

    def lost(self, host: H, now: float) -> list[TaskSpec]:
        """The host is gone, or is taken to be: its tasks wait for another. Those that have failed by that."""
        if host not in self.hosts:
            return []
        self.hosts.remove(host)
        running = {task: spec for task, spec in host.tasks.items() if task not in host.failed}
        recent = [task for task in running if now - host.started_at[task] < TRIAL_S]
        guilty = self._guilty(recent)
        for task in running.keys() - set(recent):
            self._deaths.pop(task, None)
        self._fenced_until = {task: end for task, end in self._fenced_until.items() if end > now}
        for task, spec in running.items():
            self._fenced_until[task] = now + FENCE_S
            if task not in guilty and task not in self._unwanted:
                self._waiting[task] = spec
        self._unwanted.difference_update(host.tasks)
        host.tasks = {}
        return [running[task] for task in guilty]

    def _guilty(self, recent: list[TaskId]) -> list[TaskId]:
        """Whom the loss of a host is put down to, of the tasks that it had begun with shortly before."""
        on_trial = [task for task in recent if self._is_suspect(task)]
        if not on_trial:
            self._deaths.update(recent)
            on_trial = [task for task in recent if self._is_suspect(task)]
        return on_trial if len(on_trial) == 1 else []

    def _is_suspect(self, task: TaskId) -> bool:
        return self._deaths[task] >= DEATHS_MAX

    # What is next.

    def next(self, now: float) -> tuple[H, TaskSpec] | None:
        """A task to be started, and the host that has it from now on; None if there is none at this moment."""
        for task, spec in self._waiting.items():
            if self._fenced_until.get(task, now) > now:
                continue
            hosts = self.hosts
            if self._is_suspect(task):
                hosts = [one for one in hosts if not self._trials(one, now)]
            if hosts:
                host = min(hosts, key=lambda one: len(one.tasks))
                del self._waiting[task]
                self._fenced_until.pop(task, None)
                host.tasks[task], host.started_at[task] = spec, now
                return host, spec
        return None

    def wait_s(self, now: float) -> float | None:
        """For how long `next` answers None if nothing else happens; None: for ever."""
        fences = [self._fenced_until.get(task, now) for task in self._waiting]
        trials = [end for host in self.hosts for end in self._trials(host, now)] if self._waiting else []
        return min((at - now for at in [*fences, *trials] if at > now), default=None)

    def fence_s(self, tasks: Iterable[TaskId], now: float) -> float:
        """For how long one of these may still run on a host that was lost."""
        return max((self._fenced_until.get(task, now) - now for task in tasks), default=0.0)

    def without_host(self, now: float) -> list[TaskSpec]:
        """The tasks that could be started if there were a host."""
        if self.hosts:
            return []
        return [spec for task, spec in self._waiting.items() if self._fenced_until.get(task, now) <= now]

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def _trials(self, host: H, now: float) -> list[float]:
        """When the suspects that the host is tried with have lasted long enough."""
        ends = [host.started_at[task] + TRIAL_S for task in host.tasks if self._is_suspect(task)]
        return [end for end in ends if end > now]

    def _host_of(self, task: TaskId) -> H | None:
        return next((one for one in self.hosts if task in one.tasks), None)
