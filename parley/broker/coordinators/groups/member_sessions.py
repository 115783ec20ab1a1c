"""Sessions of group members: a member that sends no heartbeat for its session timeout is removed.

Each member has one timer, which looks at the member's deadline when it fires. So a heartbeat moves the deadline only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from parley.broker.coordinators.groups.group import Group, GroupMember
from parley.broker.coordinators.patient_timer import PatientTimer

_log = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""A new member is removed if its JoinGroup waits longer than this (as in Kafka): its client has probably given up."""

SESSION_MIN_MS = 10
"""The shortest session, even if a member or a stored group asks for less: a shorter one would keep the loop busy."""


class MemberSessions:
    """The sessions of the members of all groups of a coordinator."""

    def __init__(self, expel: Callable[[Group, GroupMember, str], None]) -> None:
        """``expel(group, member, reason)`` is called when a member's session has expired."""
        self._expel = expel

    def begin(self, group: Group, member: GroupMember) -> None:
        """Begin the session of a new member, which waits for its first generation."""
        self._extend(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)

    def keep_alive(self, group: Group, member: GroupMember) -> None:
        """Restart the member's session."""
        self._extend(group, member, member.session_timeout_ms)

    def end(self, member: GroupMember) -> None:
        """End the member's session."""
        if member.session_timer is not None:
            member.session_timer.cancel()
            member.session_timer = None

    def _extend(self, group: Group, member: GroupMember, timeout_ms: int) -> None:
        member.expires_at = asyncio.get_running_loop().time() + max(timeout_ms, SESSION_MIN_MS) / 1000
        if member.session_timer is None or member.session_timer.at > member.expires_at:
            self.end(member)
            self._start_timer(group, member)

    def _start_timer(self, group: Group, member: GroupMember) -> None:
        left_s = member.expires_at - asyncio.get_running_loop().time()
        member.session_timer = PatientTimer(left_s, partial(self._on_timer, group, member))

    def _on_timer(self, group: Group, member: GroupMember) -> None:
        member.session_timer = None
        if asyncio.get_running_loop().time() < member.expires_at:
            self._start_timer(group, member)
        elif member.is_waiting and not member.is_new:
            self.keep_alive(group, member)
        else:
            _log.info("member's session expired", extra={"group": group.group_id, "member": member.member_id})
            self._expel(group, member, f"member {member.member_id} sent no heartbeat")
