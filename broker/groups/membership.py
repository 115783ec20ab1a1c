"""Members come, take part in rebalances, and go: the classic group protocol (protocol guide, KIP-134, 345, 394, 814).

A rebalance in four steps: (1) something changes, the group is PREPARING_REBALANCE and every member must join again;
(2) when all have, or their rebalance timeout is over, those who have form the next generation and the leader learns of
them; (3) the leader sends everybody's assignment with its SyncGroup; (4) the assignment is written to the log, every
member gets its part, the group is STABLE.

Each public method either answers at once or with a future that the rebalance completes. All run on the event loop, so
a group changes only between awaits; after the one await (writing the log) the generation is checked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Protocol
from uuid import UUID

from broker.config import BrokerConfig
from broker.groups.deadline import Deadline
from broker.groups.group import Group, GroupState, Member
from broker.groups.sessions import Sessions
from broker.network.dispatch import RequestContext
from broker.tasks import TaskSet
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

log = logging.getLogger(__name__)

NAME_IN_ID_MAX = 249
"""Characters of a client's name that its member id begins with: an id has to fit a string of the protocol."""

KNOWN_MEMBER_REQUIRED_SINCE = 4
"""From this version of JoinGroup on a new member is first told its id and joins with it (KIP-394)."""

LOOK_AGAIN_MIN_S = 1.0
"""A rebalance that nobody came to is looked at again after this long at least, be its members' timeout 0."""


class GroupStore(Protocol):
    """Where groups are remembered."""

    async def store_group(self, group: Group, assignments: dict[str, bytes] | None = None) -> None:
        """Make the group's generation durable; raises KafkaError where the log cannot take it."""
        ...


class Membership:
    """The members of all groups of one coordinator."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        store: GroupStore,
        now_ms: Callable[[], int],
        tasks: TaskSet,
        rng: Random,
        pending_gone: Callable[[Group], None],
    ) -> None:
        """Member ids are drawn from ``rng``.

        ``pending_gone`` is told of a group where somebody who was given a member id will not join.
        """
        self._config = config
        self._store = store
        self._now_ms = now_ms
        self._tasks = tasks
        self._rng = rng
        self._tell_pending_gone = pending_gone
        self._sessions = Sessions(self.expel)

    # -- JoinGroup ---------------------------------------------------------------------------------------------

    def join(
        self, group: Group, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """Let a member join; the answer comes when the next generation begins. Raises KafkaError to refuse."""
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
        member = self.known(group, request.member_id, request.group_instance_id)
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
            group.pending[new_id] = Deadline(
                request.session_timeout_ms / 1000, partial(self._pending_expired, group, new_id)
            )
            return join_error(ErrorCode.MEMBER_ID_REQUIRED, context, new_id)
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
        member = Member(
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
        reply = self._await_join(member)
        self._sessions.begin(group, member)
        self._rebalance(group, f"member {member_id} joins")
        return reply

    def _join_known(
        self, group: Group, member: Member, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        changed = member.protocols != _protocols(request)
        if group.state is GroupState.COMPLETING_REBALANCE and not changed:
            return self._joined(group, member)  # its first answer was lost: the same again
        if group.state is GroupState.STABLE and not changed and member.member_id != group.leader_id:
            return self._joined(group, member)
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._update(member, request)
        reply = self._await_join(member)
        self._rebalance(group, f"member {member.member_id} joins again")
        return reply

    def _replace_static(
        self, group: Group, context: RequestContext, request: JoinGroupRequest, new_id: str
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        """A static member came back under a new id: it takes the place, and the assignment, of its old self."""
        old_id = group.static_ids[request.group_instance_id or ""]
        member = group.members[old_id]
        self._answer_join(member, join_error(ErrorCode.FENCED_INSTANCE_ID, context, old_id))
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.FENCED_INSTANCE_ID, assignment=b""))
        group.rename(member, new_id)
        member.is_new = False  # it has its place whether it waits or not, as long as its session lasts
        member.client_id, member.client_host = context.client_id or "", context.client_host
        self._update(member, request)
        self._sessions.keep_alive(group, member)
        if group.state is not GroupState.STABLE or group.choose_protocol() != group.protocol:
            reply = self._await_join(member)
            self._rebalance(group, f"static member {member.group_instance_id} is replaced")
            return reply
        reply = self._await_join(member)
        self._tasks.start(
            self._store_replacement(group, member, old_id, context.api_version), name=f"store group {group.group_id}"
        )
        return reply

    async def _store_replacement(self, group: Group, member: Member, old_id: str, version: int) -> None:
        generation = group.generation
        try:
            await self._store.store_group(group)
        except KafkaError as error:
            self._answer_join(member, _join_failed(error.code, member.member_id))
            return
        if member.join_reply is None or group.generation != generation or group.state is not GroupState.STABLE:
            return  # a rebalance began meanwhile and answers
        response = self._joined(group, member)
        if member.member_id == group.leader_id:
            # The assignment stands: an old client must not think that it leads, a new one is told so (KIP-814).
            response.skip_assignment = version >= 9
            if version < 9:
                response.leader, response.members = old_id, []
        self._answer_join(member, response)

    @staticmethod
    def _update(member: Member, request: JoinGroupRequest) -> None:
        member.protocols = _protocols(request)
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        member.session_timeout_ms = request.session_timeout_ms

    def _await_join(self, member: Member) -> asyncio.Future[JoinGroupResponse]:
        self._answer_join(member, _join_failed(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        member.join_reply = asyncio.get_running_loop().create_future()
        return member.join_reply

    @staticmethod
    def _answer_join(member: Member, response: JoinGroupResponse) -> None:
        reply, member.join_reply = member.join_reply, None
        if reply is not None and not reply.done():
            reply.set_result(response)

    @staticmethod
    def _answer_sync(member: Member, response: SyncGroupResponse) -> None:
        reply, member.sync_reply = member.sync_reply, None
        if reply is not None and not reply.done():
            reply.set_result(response)

    @staticmethod
    def _joined(group: Group, member: Member) -> JoinGroupResponse:
        leads = member.member_id == group.leader_id
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader_id or "",
            member_id=member.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata_for(group.protocol),
                )
                for other in group.members.values()
            ]
            if leads
            else [],
        )

    # -- the rebalance -----------------------------------------------------------------------------------------

    def _rebalance(self, group: Group, reason: str) -> None:
        """Begin a rebalance unless one is under way, and end it at once if everybody is there."""
        if group.state is not GroupState.PREPARING_REBALANCE:
            log.info(
                "group rebalances",
                extra={"group": group.group_id, "generation": group.generation, "reason": reason},
            )
            self._prepare(group)
        if group.initial_delay_left_ms is None and group.all_joined():
            self._complete_join(group)

    def _prepare(self, group: Group) -> None:
        for member in group.members.values():
            self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""))
        _cancel(group.sync_timer)
        was_empty = group.state is GroupState.EMPTY
        group.enter(GroupState.PREPARING_REBALANCE, self._now_ms())
        timeout_ms = group.rebalance_timeout_ms()
        delay_ms = self._config().group_initial_rebalance_delay_ms
        if was_empty and delay_ms > 0:
            group.initial_delay_left_ms = max(timeout_ms - delay_ms, 0)
            group.joined_during_delay = False
            group.rebalance_timer = Deadline(min(delay_ms, timeout_ms) / 1000, partial(self._initial_delay_over, group))
        else:
            group.rebalance_timer = Deadline(timeout_ms / 1000, partial(self._rebalance_timed_out, group))

    def _initial_delay_over(self, group: Group) -> None:
        """More members came while the first delay ran: wait once more, up to the rebalance timeout."""
        left_ms = group.initial_delay_left_ms or 0
        if group.joined_during_delay and left_ms > 0:
            group.joined_during_delay = False
            delay_ms = min(self._config().group_initial_rebalance_delay_ms, left_ms)
            group.initial_delay_left_ms = left_ms - delay_ms
            group.rebalance_timer = Deadline(delay_ms / 1000, partial(self._initial_delay_over, group))
            return
        group.initial_delay_left_ms = None
        self._complete_join(group)

    def _rebalance_timed_out(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Form the next generation of those who joined; who did not is out, unless it is a static member."""
        _cancel(group.rebalance_timer)
        group.initial_delay_left_ms = None
        for member in [m for m in group.members.values() if m.join_reply is None and m.group_instance_id is None]:
            log.info("member did not rejoin", extra={"group": group.group_id, "member": member.member_id})
            self._forget(group, member)
        for member_id in list(group.pending):
            group.pending.pop(member_id).cancel()
        if group.members and not group.elect_joined_leader():
            timeout_s = max(LOOK_AGAIN_MIN_S, group.rebalance_timeout_ms() / 1000)
            group.rebalance_timer = Deadline(timeout_s, partial(self._rebalance_timed_out, group))
            return
        group.generation += 1
        if not group.members:
            group.protocol = None
            group.leader_id = None
            group.enter(GroupState.EMPTY, self._now_ms())
            self._tasks.start(self._store_empty(group), name=f"store group {group.group_id}")
            return
        group.protocol = group.choose_protocol()
        group.enter(GroupState.COMPLETING_REBALANCE, self._now_ms())
        for member in group.members.values():
            member.is_new = False
            self._answer_join(member, self._joined(group, member))
            self._sessions.keep_alive(group, member)
        group.sync_timer = Deadline(group.rebalance_timeout_ms() / 1000, partial(self._sync_timed_out, group))

    async def _store_empty(self, group: Group) -> None:
        try:
            await self._store.store_group(group, {})
        except KafkaError as error:
            # The generation is remembered by the next write; a restart before it starts from the last one stored.
            log.warning("empty group not stored", extra={"group": group.group_id, "error": error.code.name})

    def _sync_timed_out(self, group: Group) -> None:
        """Members that never asked for their assignment are gone: the others rebalance without them."""
        if group.state is not GroupState.COMPLETING_REBALANCE:
            return
        missing = [member for member in group.members.values() if member.sync_reply is None]
        for member in missing:
            self._forget(group, member)
        if missing:
            self._rebalance(group, "members did not ask for their assignment in time")

    # -- SyncGroup ---------------------------------------------------------------------------------------------

    def sync(self, group: Group, request: SyncGroupRequest) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        """Give a member its assignment, once the leader has sent it. Raises KafkaError to refuse."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        if (request.protocol_type is not None and request.protocol_type != group.protocol_type) or (
            request.protocol_name is not None and request.protocol_name != group.protocol
        ):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._sessions.keep_alive(group, member)
        if group.state is GroupState.STABLE:
            return self._synced(group, member)
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, assignment=b""))
        reply = member.sync_reply = asyncio.get_running_loop().create_future()
        if member.member_id == group.leader_id:
            given = {a.member_id: a.assignment for a in request.assignments}
            assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
            self._tasks.start(self._store_assignment(group, assignments), name=f"store group {group.group_id}")
        return reply

    async def _store_assignment(self, group: Group, assignments: dict[str, bytes]) -> None:
        generation = group.generation
        code = ErrorCode.NONE
        try:
            await self._store.store_group(group, assignments)
        except KafkaError as error:
            code = error.code
        if group.generation != generation or group.state is not GroupState.COMPLETING_REBALANCE:
            return  # a rebalance began meanwhile and has answered
        if code is not ErrorCode.NONE:
            for member in group.members.values():
                self._answer_sync(member, SyncGroupResponse(error_code=code, assignment=b""))
            self._rebalance(group, f"the assignment could not be stored: {code.name}")
            return
        _cancel(group.sync_timer)
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        group.enter(GroupState.STABLE, self._now_ms())
        for member in group.members.values():
            if member.sync_reply is not None:
                self._answer_sync(member, self._synced(group, member))
                self._sessions.keep_alive(group, member)

    @staticmethod
    def _synced(group: Group, member: Member) -> SyncGroupResponse:
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            assignment=member.assignment,
        )

    # -- Heartbeat, LeaveGroup ---------------------------------------------------------------------------------

    def heartbeat(self, group: Group, request: HeartbeatRequest) -> None:
        """Keep a member's session alive. Raises REBALANCE_IN_PROGRESS to make it join again, or why it is out."""
        member = self._current(group, request.member_id, request.group_instance_id, request.generation_id)
        self._sessions.keep_alive(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def leave(self, group: Group, leaving: LeaveGroupRequest.MemberIdentity) -> None:
        """Let one member go. Raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID where it is not one."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if leaving.group_instance_id is None and leaving.member_id in group.pending:
            group.pending.pop(leaving.member_id).cancel()
            self._pending_gone(group)
            return
        member_id = leaving.member_id
        if leaving.group_instance_id is not None and member_id == "":
            member_id = group.static_ids.get(leaving.group_instance_id, "")
        member = self.known(group, member_id, leaving.group_instance_id)
        self.expel(group, member, f"member {member_id} leaves")

    def expel(self, group: Group, member: Member, reason: str) -> None:
        """Remove a member and rebalance the others."""
        self._forget(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._missing_member_left(group)
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._rebalance(group, reason)

    def _missing_member_left(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.all_joined():
            self._complete_join(group)

    def _forget(self, group: Group, member: Member) -> None:
        self._sessions.end(member)
        self._answer_join(member, _join_failed(ErrorCode.UNKNOWN_MEMBER_ID, member.member_id))
        self._answer_sync(member, SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID, assignment=b""))
        group.remove(member)

    def _pending_expired(self, group: Group, member_id: str) -> None:
        del group.pending[member_id]
        self._pending_gone(group)

    def _pending_gone(self, group: Group) -> None:
        self._missing_member_left(group)
        self._tell_pending_gone(group)

    def start_sessions(self, group: Group) -> None:
        """Give every member of a group just loaded from the log a full session to show that it lives."""
        for member in group.members.values():
            self._sessions.keep_alive(group, member)

    def abandon(self, group: Group, code: ErrorCode) -> None:
        """The group moves to another coordinator or is deleted: stop its timers, answer who waits with ``code``."""
        for timer in (group.rebalance_timer, group.sync_timer, *group.pending.values()):
            _cancel(timer)
        group.pending.clear()
        for member in group.members.values():
            self._sessions.end(member)
            self._answer_join(member, _join_failed(code, member.member_id))
            self._answer_sync(member, SyncGroupResponse(error_code=code, assignment=b""))
        group.enter(GroupState.DEAD, self._now_ms())

    # -- who is asking -----------------------------------------------------------------------------------------

    @staticmethod
    def known(group: Group, member_id: str, instance_id: str | None) -> Member:
        """The member that a request speaks for; raises UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if instance_id is not None:
            if instance_id not in group.static_ids:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if group.static_ids[instance_id] != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        member = group.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _current(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.known(group, member_id, instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def check_commit(self, group: Group, member_id: str, instance_id: str | None, generation: int) -> None:
        """Whether a member may commit offsets now: a commit also counts as a heartbeat. Raises KafkaError if not."""
        if generation < 0 and not group.members and not member_id and instance_id is None:
            return  # a consumer that assigns its partitions itself, or an administrator
        if generation < 0 and group.members and not member_id and instance_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self._current(group, member_id, instance_id, generation)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._sessions.keep_alive(group, member)


def join_error(code: ErrorCode, context: RequestContext, member_id: str) -> JoinGroupResponse:
    """The answer to a JoinGroup that failed, in the form its version wants."""
    response = _join_failed(code, member_id)
    response.protocol_name = None if context.api_version >= 7 else ""
    return response


def _join_failed(code: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name="", leader="", member_id=member_id, members=[])


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple((p.name, p.metadata) for p in request.protocols)


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 had one timeout for both purposes (KIP-62)."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def _cancel(timer: Deadline | None) -> None:
    if timer is not None:
        timer.cancel()
