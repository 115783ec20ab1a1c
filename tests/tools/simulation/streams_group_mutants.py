"""Coordinators with one planted bug each in streams groups (KIP-1071)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parley.broker.coordinators.groups.streams import heartbeats, reconciliation, target_assignment
from parley.broker.coordinators.groups.streams.group_change import StreamsGroupChange
from parley.broker.coordinators.groups.streams.sticky_assignor import assign
from parley.broker.coordinators.groups.streams.streams_group import (
    MemberState,
    Progress,
    StreamsMember,
    TaskOwners,
)
from parley.broker.coordinators.groups.streams.tasks import MemberTasks


def ignore_owners(patch: pytest.MonkeyPatch) -> None:
    """A member gets all tasks of its target immediately, including those that other members must still revoke."""
    decide = reconciliation.reconciled

    def assign_all(
        member: StreamsMember, epoch: int, target: MemberTasks, owned: MemberTasks | None, owners: TaskOwners
    ) -> Progress:
        return decide(member, epoch, target, owned, TaskOwners())

    patch.setattr(heartbeats, "reconciled", assign_all)


def revoke_at_once(patch: pytest.MonkeyPatch) -> None:
    """A task that a member must revoke is free before the member reports that it has revoked it."""
    decide = reconciliation.reconciled

    def revoke(
        member: StreamsMember, epoch: int, target: MemberTasks, owned: MemberTasks | None, owners: TaskOwners
    ) -> Progress:
        return decide(member, epoch, target, MemberTasks(), owners)

    patch.setattr(heartbeats, "reconciled", revoke)


def join_in_the_first_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new member gets the first epoch instead of the epoch of the target assignment."""
    decide = reconciliation.reconciled

    def enter_first(member: StreamsMember, *args: Any) -> Progress:
        after = decide(member, *args)
        return replace(after, epoch=1) if member.progress.epoch == 0 else after

    patch.setattr(heartbeats, "reconciled", enter_first)


def go_back_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """When a member leaves, the group returns to its epoch before that member joined."""
    remove = StreamsGroupChange.remove

    def remove_and_go_back(self: StreamsGroupChange, member: StreamsMember) -> None:
        self.epoch -= 2
        remove(self, member)

    patch.setattr(StreamsGroupChange, "remove", remove_and_go_back)


def keep_dead_programs(patch: pytest.MonkeyPatch) -> None:
    """A member's session never expires, so it keeps its tasks after its death."""
    patch.setattr(heartbeats, "session", lambda group_id, member_id, timeout_ms: {})


def never_hand_over(patch: pytest.MonkeyPatch) -> None:
    """A member that waits for tasks does not get them when they are revoked."""
    decide = reconciliation.reconciled

    def wait_for_ever(member: StreamsMember, *args: Any) -> Progress:
        waits = member.progress.state is MemberState.UNRELEASED_TASKS
        return member.progress if waits else decide(member, *args)

    patch.setattr(heartbeats, "reconciled", wait_for_ever)


def assign_no_copies(patch: pytest.MonkeyPatch) -> None:
    """The assignor assigns no standby tasks."""
    patch.setattr(
        target_assignment, "assign", lambda members, subtopologies, standby_replicas: assign(members, subtopologies, 0)
    )


def remove_unstored(patch: pytest.MonkeyPatch) -> None:
    """A member that leaves is removed only from the coordinator's memory; the change is not stored."""

    def remove(self: StreamsGroupChange, member: StreamsMember) -> None:
        self.group.remove_member(member.member_id)

    patch.setattr(StreamsGroupChange, "remove", remove)
