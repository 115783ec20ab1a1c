"""How long members may be silent: one timer per member looks at its deadline when it fires, so that a heartbeat moves
a number and no timer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from parley.broker.coordinators.groups.group import Group, GroupMember
from parley.broker.coordinators.groups.group_timer import GroupTimer

log = logging.getLogger(__name__)

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60_000
"""A new member whose JoinGroup has waited this long has given up: its client may never learn its id (Kafka's bound)."""

SESSION_MIN_MS = 10
"""The shortest session, whatever a member or a stored group says: a shorter one would keep the loop busy."""


class MemberSessions:
    """The sessions of the members of all groups."""

    def __init__(self, expel: Callable[[Group, GroupMember, str], None]) -> None:
        """``expel`` is told of a member whose session is over, and why."""
        self._expel = expel

    def begin(self, group: Group, member: GroupMember) -> None:
        """Give a new member until it must have taken part in a generation."""
        self._extend(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)

    def keep_alive(self, group: Group, member: GroupMember) -> None:
        """Begin the member's session anew."""
        self._extend(group, member, member.session_timeout_ms)

    def end(self, member: GroupMember) -> None:
        """Expect nothing more of the member."""
        if member.session_timer is not None:
            member.session_timer.cancel()
            member.session_timer = None

    def _extend(self, group: Group, member: GroupMember, timeout_ms: int) -> None:
        member.expires_at = asyncio.get_running_loop().time() + max(timeout_ms, SESSION_MIN_MS) / 1000
        if member.session_timer is None or member.session_timer.at > member.expires_at:
            self.end(member)
            self._look_later(group, member)

    def _look_later(self, group: Group, member: GroupMember) -> None:
        left_s = member.expires_at - asyncio.get_running_loop().time()
        member.session_timer = GroupTimer(left_s, partial(self._look_at, group, member))

    def _look_at(self, group: Group, member: GroupMember) -> None:
        member.session_timer = None
        if asyncio.get_running_loop().time() < member.expires_at:
            self._look_later(group, member)
        elif member.is_waiting and not member.is_new:
            self.keep_alive(group, member)
        else:
            log.info("member's session expired", extra={"group": group.group_id, "member": member.member_id})
            self._expel(group, member, f"member {member.member_id} sent no heartbeat")
