"""A streams group, as its records describe it: its epochs, topology, members and their tasks.

The stored state changes only when records are applied (``GroupShard.replay``). Decisions return records
(``group_change.py``). Some state is kept only in memory, because a new coordinator does not need it: the configured
topology, the member that requested a shutdown, and whether the first assignment waits for more members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum, IntEnum
from typing import Final

from parley.broker.coordinators.groups.streams.configuration import Configured
from parley.broker.coordinators.groups.streams.tasks import (
    NO_TARGET,
    NO_TASKS,
    NOTHING,
    CurrentTasks,
    MemberTasks,
    TaskId,
    ids_of,
)
from parley.broker.coordinators.groups.streams.topology import Topology
from parley.light_dataclasses import dataclass

FIRST_EPOCH: Final = 1
"""The epoch of a group without records. In a heartbeat, epoch 0 means joining."""

NO_PROCESSES: Final[frozenset[str]] = frozenset()


class StreamsGroupState(Enum):
    """The states of a streams group, as StreamsGroupDescribe and ListGroups return them."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """The progress of a member toward its target assignment. The numbers are stored."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """The member must revoke tasks before it enters the next epoch."""
    UNRELEASED_TASKS = 3
    """The member is in the epoch of the target, and waits for tasks that other members must revoke."""
    UNKNOWN = 127
    """A state that a later version of the broker has stored."""


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """The details that a member has sent about itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    """The id of the process in which the member is a thread. The members of a process share its state stores."""
    endpoint: tuple[str, int] | None = None
    """The host and port at which the process serves queries about its state."""
    tags: tuple[tuple[str, str], ...] = ()
    """The client's tags, in ascending order."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The epochs of a member, and its tasks."""

    epoch: int = 0
    previous_epoch: int = 0
    """The epoch that a member still sends if it did not receive its last response."""
    state: MemberState = MemberState.STABLE
    assigned: CurrentTasks = NO_TASKS
    revoking: CurrentTasks = NO_TASKS
    """The tasks that the member must revoke."""


NO_DETAILS: Final = MemberDetails()
NO_PROGRESS: Final = Progress()


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member of a streams group: its id, the details that it has sent, and its progress."""

    member_id: str
    details: MemberDetails = NO_DETAILS
    progress: Progress = NO_PROGRESS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Return True if the member has exactly the tasks of this epoch's target assignment."""
        return self.progress.state is MemberState.STABLE and self.progress.epoch == epoch


@dataclass(slots=True)
class TaskOwners:
    """The processes that have each task, including tasks that they must still revoke."""

    active: dict[TaskId, str] = field(default_factory=dict)
    standby: dict[TaskId, frozenset[str]] = field(default_factory=dict)
    warmup: dict[TaskId, frozenset[str]] = field(default_factory=dict)

    def add(self, process_id: str, tasks: CurrentTasks) -> None:
        """Record that a process has these tasks."""
        self.active.update(dict.fromkeys(ids_of(tasks.active), process_id))
        for owners, copies in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for each in ids_of(copies):
                owners[each] = owners.get(each, NO_PROCESSES) | {process_id}

    def remove(self, process_id: str, tasks: CurrentTasks) -> None:
        """Record that a process no longer has these tasks."""
        for each in ids_of(tasks.active):
            if self.active.get(each) == process_id:
                del self.active[each]
        for owners, copies in ((self.standby, tasks.standby), (self.warmup, tasks.warmup)):
            for each in ids_of(copies):
                left = owners.get(each, NO_PROCESSES) - {process_id}
                if left:
                    owners[each] = left
                else:
                    owners.pop(each, None)

    def has_copy(self, task: TaskId, process_id: str) -> bool:
        """Return True if a process has a task as a standby or warm-up task."""
        return process_id in self.standby.get(task, NO_PROCESSES) or process_id in self.warmup.get(task, NO_PROCESSES)


@dataclass(slots=True, eq=False)
class StreamsGroup:
    """A streams group, without its committed offsets."""

    group_id: str
    epoch: int = FIRST_EPOCH
    metadata_hash: int = 0
    """The hash of the topology's topics. If it changes, a new target assignment is needed."""
    validated_epoch: int = 0
    """The epoch of the topology whose topics were found to exist, or -1 if topics are missing."""
    last_settings: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The settings of the assignor in the current group epoch."""
    topology: Topology | None = None
    members: dict[str, StreamsMember] = field(default_factory=dict)
    target_epoch: int = FIRST_EPOCH
    target_since_ms: int = 0
    """When the target assignment was computed, or 0 if it never was."""
    targets: dict[str, MemberTasks] = field(default_factory=dict)
    owners: TaskOwners = field(default_factory=TaskOwners)

    # Not stored:
    configured: Configured | None = None
    """The result of the last configuration of the topology."""
    metadata_checked: bool = False
    """True if ``metadata_hash`` is the hash of the current topics."""
    is_assigning: bool = False
    """True while a thread computes the target assignment."""
    is_delayed: bool = False
    """True while the first assignment waits for more members to join."""
    shutdown_by: str | None = None
    """The id of the member that requested a shutdown of the whole application."""
    endpoint_epoch: int = 0
    """A number that rises whenever the tasks of a member with an endpoint change."""

    def state(self) -> StreamsGroupState:
        """Return the state of the group, which follows from its members, topology and epochs."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def reads(self, topic: str) -> bool:
        """Return True if the group has members and its topology reads the topic."""
        return bool(self.members) and self.topology is not None and topic in self.topology.readers

    def target_of(self, member_id: str) -> MemberTasks:
        """Return a member's target assignment, which is empty if it has none."""
        return self.targets.get(member_id, NO_TARGET)

    # --- Records ---

    def put_details(self, member_id: str, details: MemberDetails) -> None:
        """Add a member, or replace its details. Its progress may already be known: compaction can move the record of
        its details after the record of its progress."""
        known = self.members.get(member_id, StreamsMember(member_id))
        self._replace(known, replace(known, details=details))

    def put_progress(self, member_id: str, progress: Progress) -> None:
        """Replace a member's epochs and tasks. Adds the member if it is unknown: compaction can move the record of its
        details after this one."""
        known = self.members.get(member_id, StreamsMember(member_id))
        self._replace(known, replace(known, progress=progress))

    def remove_progress(self, member_id: str) -> None:
        """Reset a member's epochs and tasks to those of a member that has just joined. Does nothing if the member is
        unknown."""
        if member_id in self.members:
            self.put_progress(member_id, NO_PROGRESS)

    def remove_member(self, member_id: str) -> None:
        """Remove a member, and release its tasks. If no member is left, forget that a member requested a shutdown."""
        known = self.members.pop(member_id, None)
        if known is not None:
            self._disown(known)
        if not self.members:
            self.shutdown_by = None

    def put_topology(self, topology: Topology | None) -> None:
        """Replace the topology of the group; None removes it. The topology must then be configured again."""
        self.topology = topology
        self.configured = None

    def _replace(self, known: StreamsMember, member: StreamsMember) -> None:
        self._disown(known)
        self.members[member.member_id] = member
        for tasks in (member.progress.assigned, member.progress.revoking):
            self.owners.add(member.details.process_id, tasks)

    def _disown(self, member: StreamsMember) -> None:
        for tasks in (member.progress.assigned, member.progress.revoking):
            self.owners.remove(member.details.process_id, tasks)
