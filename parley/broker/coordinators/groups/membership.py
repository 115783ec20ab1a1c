"""The classic group protocol: members join, sync, send heartbeats and leave (KIP-134, KIP-345, KIP-394, KIP-814).

Each public method returns its response, or a future that a rebalance (``rebalance.py``) completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from uuid import UUID

from parley.broker.config import BrokerConfig
from parley.broker.coordinators.groups.group import Group, GroupMember, GroupState
from parley.broker.coordinators.groups.member_sessions import MemberSessions
from parley.broker.coordinators.groups.rebalance import GroupStore, Rebalances, error_of
from parley.broker.coordinators.groups.responses import (
    join_error,
    join_response,
    new_join_reply,
    respond_to_join,
    respond_to_sync,
    sync_response,
)
from parley.broker.coordinators.patient_timer import PatientTimer, cancel
from parley.broker.network.dispatch import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

NAME_IN_ID_MAX = 249
"""Characters of the client id or instance id that begin a member id, which must fit a string of the protocol."""

KNOWN_MEMBER_REQUIRED_SINCE = 4
"""From this version of JoinGroup on, a new member first gets its id and then joins with it (KIP-394)."""


class GroupMembership:
    """The members of all groups of a coordinator."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: GroupStore,
        now_ms: Callable[[], int],
        rng: Random,
        pending_gone: Callable[[Group], None],
    ) -> None:
        """``rng`` generates member ids.

        ``pending_gone(group)`` is called when a client that was given a member id does not join the group with it.
        """
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._rng = rng
        self._tell_pending_gone = pending_gone
        self._sessions = MemberSessions(self.expel)
        self._rebalances = Rebalances(config, store, now_ms, self._sessions)

    @property
    def completed_rebalances(self) -> int:
        """The number of rebalances that have ended with an assignment."""
        return self._rebalances.completed

    # --- JoinGroup ---

    def join(
        self, group: Group, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """Add a member, or let it rejoin. The response comes when the next generation begins. Raises KafkaError."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        protocols = [(p.name, p.metadata) for p in request.protocols]
        if not protocols or not request.protocol_type:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        instead_of = request.member_id or group.static_ids.get(request.group_instance_id or "", "")
        if not group.accepts(request.protocol_type, protocols, instead_of=instead_of):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if request.member_id == "":
            return self._join_unknown(group, context, request)
        if request.member_id in group.pending:
            if request.group_instance_id is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            self._check_size(group, request.member_id)
            return self._add(group, context, request, request.member_id)
        member = group.known_member(request.member_id, request.group_instance_id)
        return self._join_known(group, member, request)

    def _join_unknown(
        self, group: Group, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        instance_id = request.group_instance_id
        unique = UUID(int=self._rng.getrandbits(128), version=4)
        name = instance_id if instance_id is not None else context.client_id or ""
        new_id = f"{name[:NAME_IN_ID_MAX]}-{unique}"
        if instance_id is not None and instance_id in group.static_ids:
            return self._replace_static(group, context, request, new_id)
        self._check_size(group, new_id)
        if instance_id is None and context.api_version >= KNOWN_MEMBER_REQUIRED_SINCE:
            group.pending[new_id] = PatientTimer(
                request.session_timeout_ms / 1000, partial(self._pending_expired, group, new_id)
            )
            return join_error(ErrorCode.MEMBER_ID_REQUIRED, new_id, context.api_version)
        return self._add(group, context, request, new_id)

    def _check_size(self, group: Group, member_id: str) -> None:
        size = len(group.members) + len(group.pending.keys() - {member_id})
        if size >= self._config().group_max_size:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _add(
        self, group: Group, context: RequestContext, request: JoinGroupRequest, member_id: str
    ) -> asyncio.Future[JoinGroupResponse]:
        timer = group.pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()
        member = GroupMember(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id or "",
            client_host=context.client_host,
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=_protocols(request),
            is_new=True,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        if group.initial_delay_left_ms is not None:
            group.joined_during_delay = True
        reply = new_join_reply(member)
        self._sessions.begin(group, member)
        self._rebalances.begin(group, f"member {member_id} joins")
        return reply

    def _join_known(
        self, group: Group, member: GroupMember, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        changed = member.protocols != _protocols(request)
        if group.state is GroupState.COMPLETING_REBALANCE and not changed:
            return join_response(group, member)  # its first response was lost: repeat it
        if group.state is GroupState.STABLE and not changed and member.member_id != group.leader_id:
            return join_response(group, member)
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._update(member, request)
        reply = new_join_reply(member)
        self._rebalances.begin(group, f"member {member.member_id} joins again")
        return reply

    def _replace_static(
        self, group: Group, context: RequestContext, request: JoinGroupRequest, new_id: str
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """Let a static member that has restarted take the place, and the assignment, of its previous incarnation."""
        old_id = group.static_ids[request.group_instance_id or ""]
        member = group.members[old_id]
        respond_to_join(member, join_error(ErrorCode.FENCED_INSTANCE_ID, old_id))  # any version can express it
        respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID, assignment=b""))
        group.rename(member, new_id)
        member.is_new = False  # it keeps its place until its session expires, even if it does not wait
        member.client_id, member.client_host = context.client_id or "", context.client_host
        self._update(member, request)
        self._sessions.keep_alive(group, member)
        if group.state is not GroupState.STABLE or group.choose_protocol() != group.protocol:
            reply = new_join_reply(member)
            self._rebalances.begin(group, f"static member {member.group_instance_id} is replaced")
            return reply
        reply = new_join_reply(member)
        written = self._store.store_group(group)
        stored = partial(self._replacement_stored, group, group.generation, member, old_id, context.api_version)
        written.add_done_callback(stored)
        return reply

    @staticmethod
    def _replacement_stored(
        group: Group,
        generation: int,
        member: GroupMember,
        old_id: str,
        version: int,
        written: asyncio.Future[None],
    ) -> None:
        code = error_of(written)
        if code is not ErrorCode.NONE:
            respond_to_join(member, join_error(code, member.member_id))
            return
        if member.join_reply is None or group.generation != generation or group.state is not GroupState.STABLE:
            return  # a rebalance has begun meanwhile and will respond
        response = join_response(group, member)
        if member.member_id == group.leader_id:
            # The assignment stays. An old client must not act as leader; a new one heeds skip_assignment (KIP-814).
            response.skip_assignment = version >= 9
            if version < 9:
                response.leader, response.members = old_id, []
        respond_to_join(member, response)

    @staticmethod
    def _update(member: GroupMember, request: JoinGroupRequest) -> None:
        member.protocols = _protocols(request)
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        member.session_timeout_ms = request.session_timeout_ms

    # --- SyncGroup ---

    def sync(self, group: Group, request: SyncGroupRequest) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """Return a member's assignment once the leader has sent it. Raises KafkaError."""
        member = group.current_member(request.member_id, request.group_instance_id, request.generation_id)
        if (request.protocol_type is not None and request.protocol_type != group.protocol_type) or (
            request.protocol_name is not None and request.protocol_name != group.protocol
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._sessions.keep_alive(group, member)
        if group.state is GroupState.STABLE:
            return sync_response(group, member)
        respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""))
        reply = member.sync_reply = asyncio.get_running_loop().create_future()
        if member.member_id == group.leader_id:
            self._rebalances.assign(group, {a.member_id: a.assignment for a in request.assignments})
        return reply

    # --- Heartbeat, LeaveGroup ---

    def heartbeat(self, group: Group, request: HeartbeatRequest) -> None:
        """Keep a member's session alive. Raises REBALANCE_IN_PROGRESS to make it rejoin, and other KafkaErrors."""
        member = group.current_member(request.member_id, request.group_instance_id, request.generation_id)
        self._sessions.keep_alive(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group: Group, leaving: LeaveGroupRequest.MemberIdentity) -> None:
        """Remove a member that leaves. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID if it is not a member."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leaving.group_instance_id is None and leaving.member_id in group.pending:
            group.pending.pop(leaving.member_id).cancel()
            self._pending_gone(group)
            return
        member_id = leaving.member_id
        if leaving.group_instance_id is not None and member_id == "":
            member_id = group.static_ids.get(leaving.group_instance_id, "")
        member = group.known_member(member_id, leaving.group_instance_id)
        self.expel(group, member, f"member {member_id} leaves")

    def expel(self, group: Group, member: GroupMember, reason: str) -> None:
        """Remove a member and rebalance the others."""
        self._rebalances.forget(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._rebalances.complete_if_all_joined(group)
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalances.begin(group, reason)

    def _pending_expired(self, group: Group, member_id: str) -> None:
        del group.pending[member_id]
        self._pending_gone(group)

    def _pending_gone(self, group: Group) -> None:
        self._rebalances.complete_if_all_joined(group)
        self._tell_pending_gone(group)

    def start_sessions(self, group: Group) -> None:
        """Begin the sessions of all members of a group that was just loaded from the log."""
        for member in group.members.values():
            self._sessions.keep_alive(group, member)

    def abandon(self, group: Group, code: ErrorCode) -> None:
        """Stop a group that moves to another coordinator or is deleted; waiting requests fail with ``code``."""
        for timer in (group.rebalance_timer, group.sync_timer, *group.pending.values()):
            cancel(timer)
        group.pending.clear()
        for member in group.members.values():
            self._sessions.end(member)
            respond_to_join(member, join_error(code, member.member_id))
            respond_to_sync(member, SyncGroupResponse(error_code=code, assignment=b""))
        group.enter(GroupState.DEAD, self._now_ms())

    def committed(self, group: Group, member_id: str) -> None:
        """Count a commit of offsets as a heartbeat of the member."""
        member = group.members.get(member_id)
        if member is not None:
            self._sessions.keep_alive(group, member)


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple((p.name, p.metadata) for p in request.protocols)


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout. JoinGroup v0 has none, so the session timeout serves as both (KIP-62)."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
