"""The steps of a member toward its target assignment, which ensure that no task runs twice at the same time.

=====================  ==========================================================  =============================
state                  the member makes a step if                                  the step
=====================  ==========================================================  =============================
STABLE                 the target has another epoch                                it revokes tasks first
UNREVOKED_TASKS        it reports that it no longer has the revoked tasks          it enters the target's epoch (*)
UNRELEASED_TASKS       always                                                      it gets tasks that became free
UNKNOWN                it reports that it has no tasks (else it is fenced)         it enters the target's epoch
=====================  ==========================================================  =============================

(*) If a newer target takes more tasks away, the member enters the next epoch and stays in this state, as in Kafka. It
enters the target's epoch when it has revoked them, too.

A member gets an active task only if no process has it as an active task, and the member's process has no copy of it.
It gets a standby task only if the member's process does not have the task in any form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from parley.broker.coordinators.groups.streams.streams_group import MemberState, Progress, StreamsMember, TaskOwners
from parley.broker.coordinators.groups.streams.tasks import (
    CurrentTasks,
    MemberTasks,
    TaskId,
    Tasks,
    TasksSince,
    still_has_any,
)
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError


def reconciled(
    member: StreamsMember, target_epoch: int, target: MemberTasks, owned: MemberTasks | None, owners: TaskOwners
) -> Progress:
    """Return a member's progress after a heartbeat.

    ``owned`` contains the tasks that the member reports as its own, or is None if it does not report them. ``owners``
    contains the processes that have each task of the group. Raises FENCED_MEMBER_EPOCH for a member in an unknown
    state, unless it reports that it has no tasks.
    """
    now = member.progress
    match now.state:
        case MemberState.STABLE if now.epoch == target_epoch:
            return now
        case MemberState.UNREVOKED_TASKS if owned is None or still_has_any(owned, now.revoking):
            return now
        case MemberState.UNREVOKED_TASKS:
            epoch = now.epoch + 1  # as in Kafka; only used if the latest target takes more tasks away
        case MemberState.UNKNOWN:
            if owned is None or any(owned):
                text = (
                    "The streams group member is in an unknown state. The member must abandon all its tasks and rejoin."
                )
                raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
            epoch = target_epoch
        case _:
            epoch = now.epoch
    steps = _steps(member, target_epoch, target, owners)
    if not steps.revoked.is_empty and (owned is None or still_has_any(owned, steps.revoked)):
        return Progress(epoch, now.epoch, MemberState.UNREVOKED_TASKS, steps.kept, steps.revoked)
    state = MemberState.UNRELEASED_TASKS if steps.waits else MemberState.STABLE
    return Progress(target_epoch, now.epoch, state, _merged(steps.kept, steps.added))


@dataclass(frozen=True, slots=True)
class _Steps:
    """The differences between a member's tasks and its target."""

    kept: CurrentTasks
    revoked: CurrentTasks
    added: CurrentTasks
    waits: bool
    """True if a task of the target is not free yet."""


def _steps(member: StreamsMember, target_epoch: int, target: MemberTasks, owners: TaskOwners) -> _Steps:
    process_id, now = member.details.process_id, member.progress.assigned

    def is_run(task: TaskId) -> bool:
        return task in owners.active or owners.has_copy(task, process_id)

    def is_here(task: TaskId) -> bool:
        return owners.active.get(task) == process_id or owners.has_copy(task, process_id)

    kept = CurrentTasks(
        _kept_active(now.active, target.active), _kept(now.standby, target.standby), _kept(now.warmup, target.warmup)
    )
    revoked = CurrentTasks(
        _dropped_active(now.active, target.active),
        _dropped(now.standby, target.standby),
        _dropped(now.warmup, target.warmup),
    )
    active, active_waits = _free(target.active, now.active, is_run)
    standby, standby_waits = _free(target.standby, now.standby, is_here)
    warmup, warmup_waits = _free(target.warmup, now.warmup, is_here)
    since = {subtopology: dict.fromkeys(sorted(free), target_epoch) for subtopology, free in active.items()}
    return _Steps(kept, revoked, CurrentTasks(since, standby, warmup), active_waits or standby_waits or warmup_waits)


def _kept(now: Tasks, target: Tasks) -> Tasks:
    found = {subtopology: tasks & target.get(subtopology, frozenset()) for subtopology, tasks in now.items()}
    return {subtopology: tasks for subtopology, tasks in found.items() if tasks}


def _dropped(now: Tasks, target: Tasks) -> Tasks:
    found = {subtopology: tasks - target.get(subtopology, frozenset()) for subtopology, tasks in now.items()}
    return {subtopology: tasks for subtopology, tasks in found.items() if tasks}


def _kept_active(now: TasksSince, target: Tasks) -> TasksSince:
    return _filtered(now, lambda subtopology, partition: partition in target.get(subtopology, ()))


def _dropped_active(now: TasksSince, target: Tasks) -> TasksSince:
    return _filtered(now, lambda subtopology, partition: partition not in target.get(subtopology, ()))


def _filtered(tasks: TasksSince, keep: Callable[[str, int], bool]) -> TasksSince:
    found = {
        subtopology: {partition: epoch for partition, epoch in since.items() if keep(subtopology, partition)}
        for subtopology, since in tasks.items()
    }
    return {subtopology: since for subtopology, since in found.items() if since}


def _free(
    target: Tasks, now: Mapping[str, Iterable[int]], is_taken: Callable[[TaskId], bool]
) -> tuple[dict[str, frozenset[int]], bool]:
    """Return the free tasks that a member does not have yet, and True if it must wait for tasks that are not free."""
    found, waits = {}, False
    for subtopology, tasks in target.items():
        wanted = tasks.difference(now.get(subtopology, ()))
        free = frozenset([partition for partition in wanted if not is_taken((subtopology, partition))])
        waits = waits or len(free) < len(wanted)
        if free:
            found[subtopology] = free
    return found, waits


def _merged(kept: CurrentTasks, added: CurrentTasks) -> CurrentTasks:
    if added.is_empty:
        return kept
    subtopologies = sorted({*kept.active, *added.active})
    return CurrentTasks(
        {each: {**kept.active.get(each, {}), **added.active.get(each, {})} for each in subtopologies},
        _union(kept.standby, added.standby),
        _union(kept.warmup, added.warmup),
    )


def _union(first: Tasks, second: Tasks) -> Tasks:
    none = frozenset[int]()
    return {each: first.get(each, none) | second.get(each, none) for each in sorted({*first, *second})}
