"""Coordinators with one planted bug each in groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from parley.broker.coordinators.groups import offset_decisions
from parley.broker.coordinators.groups.consumer import heartbeats, leaving, member_steps, reconciliation
from parley.broker.coordinators.groups.consumer.group_change import GroupChange
from parley.broker.coordinators.groups.consumer.member import MemberState, Progress


def assign_what_others_have(patch: pytest.MonkeyPatch) -> None:
    """A member gets all partitions of its target immediately, including those that other members must still revoke."""
    decide = reconciliation.reconciled

    def assign_all(progress: Progress, situation: reconciliation.Situation) -> Progress:
        return decide(progress, replace(situation, is_free=lambda topic, partition: True))

    patch.setattr(member_steps, "reconciled", assign_all)


def revoke_at_once(patch: pytest.MonkeyPatch) -> None:
    """A partition that a member must revoke is free before the member reports that it has revoked it."""
    patch.setattr(reconciliation, "_still_has", lambda partitions, reported: False)


def accept_commits_of_removed_members(patch: pytest.MonkeyPatch) -> None:
    """A commit is accepted in any epoch, even from a member that slept and was removed."""
    patch.setattr(offset_decisions, "check_may_commit", lambda group, committer: None)
    patch.setattr(offset_decisions, "partition_check", lambda group, member_id, epoch: None)


def join_in_the_first_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new member gets the first epoch instead of the epoch of the target assignment."""
    decide = reconciliation.reconciled

    def enter_first(progress: Progress, situation: reconciliation.Situation) -> Progress:
        after = decide(progress, situation)
        return replace(after, epoch=1) if progress.epoch == 0 else after

    patch.setattr(member_steps, "reconciled", enter_first)


def go_back_an_epoch(patch: pytest.MonkeyPatch) -> None:
    """When a member leaves, the group returns to its epoch before that member joined."""
    remove = leaving.remove_members

    def remove_and_go_back(group: Any, members: Collection[Any], *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as within:
            bump = GroupChange.bump

            def bump_back(self: GroupChange, *args: Any) -> None:
                self.epoch -= 2
                bump(self, *args)

            within.setattr(GroupChange, "bump", bump_back)
            return remove(group, members, *args)

    patch.setattr(leaving, "remove_members", remove_and_go_back)


def keep_dead_consumers(patch: pytest.MonkeyPatch) -> None:
    """A member's session never expires, so it keeps its partitions after its death."""
    patch.setattr(heartbeats, "session", lambda group_id, member_id, timeout_ms: {})


def never_hand_over(patch: pytest.MonkeyPatch) -> None:
    """A member that waits for partitions does not get them when they are revoked."""
    after_heartbeat = reconciliation._after_heartbeat

    def wait_for_ever(progress: Progress, situation: reconciliation.Situation) -> Progress:
        if progress.state is MemberState.UNRELEASED_PARTITIONS:
            return progress
        return after_heartbeat(progress, situation)

    patch.setattr(reconciliation, "_after_heartbeat", wait_for_ever)
