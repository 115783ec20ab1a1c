"""A rebalance of a group, from the change that causes it until every member has its assignment.

1. The group is PREPARING_REBALANCE, and every member must join again.
2. When all have joined, or the rebalance timeout is over, the members that have joined form the next generation. Its
   leader gets the list of members.
3. The leader sends the assignments of all members with its SyncGroup.
4. They are written to the log, every member gets its own, and the group is STABLE.

Membership changes on the event loop alone. Only writing to the log takes longer; what has changed meanwhile is checked
when it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.group import Group, GroupMember, GroupState
from parley.broker.coordinators.groups.member_sessions import MemberSessions
from parley.broker.coordinators.groups.responses import (
    join_error,
    join_response,
    respond_to_join,
    respond_to_sync,
    sync_response,
)
from parley.broker.coordinators.patient_timer import PatientTimer, cancel
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import SyncGroupResponse

_log = logging.getLogger(__name__)

LOOK_AGAIN_MIN_S = 1.0
"""The shortest time after which a rebalance that no member has joined is tried again."""


class GroupStore(Protocol):
    """Stores groups durably."""

    def store_group(self, group: Group, assignments: Mapping[str, bytes] | None = None) -> asyncio.Future[None]:
        """Store the group's generation as it is now, with ``assignments`` in place of the members' own if given.

        The future fails with KafkaError if the log does not have it.
        """
        ...


def error_of(written: asyncio.Future[None]) -> ErrorCode:
    """Return the error of a future of ``GroupStore``, NONE if it succeeded."""
    error = written.exception()
    if error is None:
        return ErrorCode.NONE
    if not isinstance(error, KafkaError):
        raise error
    return error.code


class Rebalances:
    """The rebalances of all groups of a coordinator."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: GroupStore,
        now_ms: Callable[[], int],
        sessions: MemberSessions,
    ) -> None:
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._sessions = sessions
        self.completed = 0
        """Rebalances that have ended with an assignment."""

    def begin(self, group: Group, reason: str) -> None:
        """Begin a rebalance unless one is in progress, and end it at once if every member has joined."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            _log.info(
                "group rebalances",
                extra={"group": group.group_id, "generation": group.generation, "reason": reason},
            )
            self._prepare(group)
        self.complete_if_all_joined(group)

    def complete_if_all_joined(self, group: Group) -> None:
        """End the rebalance in progress, if there is one and every member has joined."""
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.all_joined():
            self._complete_join(group)

    def forget(self, group: Group, member: GroupMember) -> None:
        """Remove a member and fail its waiting requests. The other members do not rebalance yet."""
        self._sessions.end(member)
        respond_to_join(member, join_error(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, assignment=b""))
        group.remove(member)

    def _prepare(self, group: Group) -> None:
        for member in group.members.values():
            respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""))
        cancel(group.sync_timer)
        was_empty = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, self._now_ms())
        timeout_ms = group.rebalance_timeout_ms()
        delay_ms = self._config().group_initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            group.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            group.joined_during_delay = False
            group.rebalance_timer = PatientTimer(
                min(delay_ms, timeout_ms) / 1000, partial(self._initial_delay_over, group)
            )
        else:
            group.rebalance_timer = PatientTimer(timeout_ms / 1000, partial(self._rebalance_timed_out, group))

    def _initial_delay_over(self, group: Group) -> None:
        """End the join phase, or wait again if more members joined meanwhile, up to the rebalance timeout."""
        left_ms = group.initial_delay_left_ms or 0
        if group.joined_during_delay and left_ms > 0:
            group.joined_during_delay = False
            delay_ms = min(self._config().group_initial_rebalance_delay_ms, left_ms)
            group.initial_delay_left_ms = left_ms - delay_ms
            group.rebalance_timer = PatientTimer(delay_ms / 1000, partial(self._initial_delay_over, group))
            return
        group.initial_delay_left_ms = None
        self._complete_join(group)

    def _rebalance_timed_out(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Form the next generation of the members that have joined, and remove the others unless they are static."""
        cancel(group.rebalance_timer)
        group.initial_delay_left_ms = None
        for member in [m for m in group.members.values() if m.join_reply is None and m.group_instance_id is None]:
            _log.info("member did not rejoin", extra={"group": group.group_id, "member": member.member_id})
            self.forget(group, member)
        for member_id in list(group.pending):
            group.pending.pop(member_id).cancel()
        if group.members and not group.elect_joined_leader():
            timeout_s = max(LOOK_AGAIN_MIN_S, group.rebalance_timeout_ms() / 1000)
            group.rebalance_timer = PatientTimer(timeout_s, partial(self._rebalance_timed_out, group))
            return
        group.generation += 1
        if not group.members:
            group.protocol = None
            group.leader_id = None
            group.enter(GroupState.EMPTY, self._now_ms())
            self._store.store_group(group, {}).add_done_callback(partial(self._empty_stored, group))
            return
        group.protocol = group.choose_protocol()
        group.enter(GroupState.COMPLETING_REBALANCE, self._now_ms())
        for member in group.members.values():
            member.is_new = False
            respond_to_join(member, join_response(group, member))
            self._sessions.keep_alive(group, member)
        group.sync_timer = PatientTimer(group.rebalance_timeout_ms() / 1000, partial(self._sync_timed_out, group))

    @staticmethod
    def _empty_stored(group: Group, written: asyncio.Future[None]) -> None:
        code = error_of(written)
        if code is not ErrorCode.NONE:
            # The next write stores the generation. Until then a restarted broker goes on from the stored one.
            _log.warning("an empty group was not stored", extra={"group": group.group_id, "error": code.name})

    def _sync_timed_out(self, group: Group) -> None:
        """Remove the members that never requested their assignment, and rebalance the others."""
        if group.state is not GroupState.COMPLETING_REBALANCE:
            return
        missing = [member for member in group.members.values() if member.sync_reply is None]
        for member in missing:
            self.forget(group, member)
        if missing:
            self.begin(group, "members did not ask for their assignment in time")

    def assign(self, group: Group, given: Mapping[str, bytes]) -> None:
        """Store the assignments that the leader has sent, then respond to the members that wait for them."""
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        written = self._store.store_group(group, assignments)
        written.add_done_callback(partial(self._assignment_stored, group, group.generation, assignments))

    def _assignment_stored(
        self, group: Group, generation: int, assignments: dict[str, bytes], written: asyncio.Future[None]
    ) -> None:
        code = error_of(written)
        if group.generation != generation or group.state is not GroupState.COMPLETING_REBALANCE:
            return  # a rebalance has begun meanwhile and has responded
        if code is not ErrorCode.NONE:
            for member in group.members.values():
                respond_to_sync(member, SyncGroupResponse(error_code=code, assignment=b""))
            self.begin(group, f"the assignment could not be stored: {code.name}")
            return
        self.completed += 1
        cancel(group.sync_timer)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.enter(GroupState.STABLE, self._now_ms())
        for member in group.members.values():
            if member.sync_reply is not None:
                respond_to_sync(member, sync_response(group, member))
                self._sessions.keep_alive(group, member)
