"""Decisions about StreamsGroupHeartbeat (KIP-1071): members join, stay, and leave.

A heartbeat is decided in these steps, as in Kafka.

1. Add or update the member.
2. Take the group's topology from the first member, and configure it. Its internal topics may have to be created.
3. If any of these has changed, start a new group epoch.
4. If the group epoch is higher than the target epoch, compute a new target assignment.
5. Move the member toward its target (``reconciliation.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from parley.broker.coordinators.decision import Decision, KeyValue, Timer
from parley.broker.coordinators.groups.classic.membership import GroupState
from parley.broker.coordinators.groups.group import NO_MEMBERS, Group
from parley.broker.coordinators.groups.group_records import group_tombstone
from parley.broker.coordinators.groups.group_shard import GroupShard
from parley.broker.coordinators.groups.streams.configuration import Configured, Status, StatusCode, check_form
from parley.broker.coordinators.groups.streams.endpoints import endpoints_of
from parley.broker.coordinators.groups.streams.group_change import StreamsGroupChange
from parley.broker.coordinators.groups.streams.reconciliation import reconciled
from parley.broker.coordinators.groups.streams.streams_group import (
    MemberDetails,
    MemberState,
    Progress,
    StreamsGroup,
    StreamsMember,
)
from parley.broker.coordinators.groups.streams.tasks import (
    CurrentTasks,
    MemberTasks,
    TaskId,
    Tasks,
    grouped,
    ids_of,
    is_within,
)
from parley.broker.coordinators.groups.streams.topology import InternalTopic, Topology, topology_of
from parley.broker.coordinators.groups.timer_kinds import TimerKind
from parley.broker.network.request_context import RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse

JOIN, LEAVE, LEAVE_STATIC = 0, -1, -2
"""The epochs in the heartbeats of members that join and of members that leave. As in Kafka 4.3, static members are not
supported."""

NOT_VALIDATED: Final = -1
TIMEOUT_MIN_MS: Final = 10
"""The minimum session and rebalance timeout, even if a shorter one is stored, which would keep the event loop busy."""

TaskIds = StreamsGroupHeartbeatRequest.TaskIds


class Outcome(NamedTuple):
    """The result of a heartbeat: the response, and the topics to create."""

    response: StreamsGroupHeartbeatResponse
    to_create: tuple[InternalTopic, ...] = ()
    """The internal topics that do not exist and must be created for the client."""


def heartbeat(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, shard: GroupShard, now_ms: int
) -> Decision[Outcome]:
    """Let a member join, stay or leave, and move it toward its target tasks. Raises the KafkaError that the client
    gets, for example UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    if request.member_epoch in (LEAVE, LEAVE_STATIC):
        return _leave(request, shard, now_ms)
    if changes_nothing(request, context, shard):
        return _stayed(request, shard)
    return in_all_steps(request, context, shard, now_ms)


def in_all_steps(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, shard: GroupShard, now_ms: int
) -> Decision[Outcome]:
    """Decide on the heartbeat of a member that joins or stays, in all steps. Raises the KafkaError that the client
    gets, for example UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    joins = request.member_epoch == JOIN
    group = _group(request.group_id, shard, joins=joins)
    before = _member(request, group, joins=joins)
    change = StreamsGroupChange(shard, group, now_ms)
    member = _updated(request, context, before, change)
    topology = _topology(request, change)
    _note_stale(member, change)
    configured = change.configure(topology)
    if configured.is_ready:
        _check_tasks(request, configured, before.progress)
    change.begin_epoch_if_changed(topology.epoch if configured.is_ready else NOT_VALIDATED)
    change.delay_first_assignment()
    change.update_target(change.settings.of_assignor())
    member = _reconciled(request, member, change)
    change.timers.update(session(request.group_id, member.member_id, change.settings.session_timeout_ms))
    if request.shutdown_application and change.shutdown_by is None:
        change.shutdown_by = member.member_id
    response = _response(request, before, member, configured, change)
    decision = change.decision(Outcome(response, configured.to_create))
    return _converted(decision, request.group_id, shard) if change.is_new else decision


# --- Most heartbeats ---


def changes_nothing(request: StreamsGroupHeartbeatRequest, context: RequestContext, shard: GroupShard) -> bool:
    """Return True if a heartbeat only keeps the member alive, and the member already has its target tasks.

    This is true of most heartbeats. This check is cheaper than the steps, which would change nothing.
    """
    if _says_anything(request):
        return False
    group = shard.streams_group(request.group_id)
    if group is None or group.topology is None or group.configured is None or not group.metadata_checked:
        return False
    is_settled = (
        group.epoch <= group.target_epoch
        and not group.is_delayed
        and group.shutdown_by is None
        and group.endpoint_epoch == request.endpoint_information_epoch
        and group.validated_epoch == group.topology.epoch
        and group.configured.is_ready
    )
    member = group.members.get(request.member_id) if is_settled else None
    if member is None or member.progress.epoch != request.member_epoch:
        return False
    details = member.details
    return (
        details.client_id == (context.client_id or "")
        and details.client_host == f"/{context.client_host}"
        and details.topology_epoch >= group.topology.epoch
        and member.is_reconciled_to(group.target_epoch)
        and shard.streams_settings(request.group_id).of_assignor() == group.last_settings
    )


def _says_anything(request: StreamsGroupHeartbeatRequest) -> bool:
    """Return True if a heartbeat contains more than the member's id and epoch."""
    return (
        request.active_tasks is not None
        or request.standby_tasks is not None
        or request.warmup_tasks is not None
        or request.topology is not None
        or request.process_id is not None
        or request.user_endpoint is not None
        or request.client_tags is not None
        or request.rack_id is not None
        or request.rebalance_timeout_ms != -1
        or request.shutdown_application
    )


def _stayed(request: StreamsGroupHeartbeatRequest, shard: GroupShard) -> Decision[Outcome]:
    settings = shard.streams_settings(request.group_id)
    response = StreamsGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=[],
        endpoint_information_epoch=request.endpoint_information_epoch,
    )
    timers = session(request.group_id, request.member_id, settings.session_timeout_ms)
    return Decision(Outcome(response), is_divisible=True, timers=timers)


# --- The group ---


def _group(group_id: str, shard: GroupShard, *, joins: bool) -> StreamsGroup:
    """Return the group of a heartbeat. For a joining member, create it if it does not exist or is an empty classic
    group.

    Raises GROUP_ID_NOT_FOUND or GROUP_MAX_SIZE_REACHED.
    """
    known = shard.groups.get(group_id)
    if not joins:
        return require_group(group_id, shard, "Streams group {} not found.")
    is_free = known is None or (known.is_classic and _is_vacant(known))
    group = StreamsGroup(group_id) if is_free else require_group(group_id, shard)
    size = shard.config().group_streams_max_size
    # As in Kafka, a full streams group rejects even its own members when they rejoin. Other group types accept them.
    if len(group.members) >= size:
        raise KafkaError(
            ErrorCode.GROUP_MAX_SIZE_REACHED, f"The streams group has reached its maximum capacity of {size} members."
        )
    return group


def _is_vacant(known: Group) -> bool:
    return not known.membership.members and known.membership.state is GroupState.EMPTY


def require_group(group_id: str, shard: GroupShard, absent: str = "Group {} not found.") -> StreamsGroup:
    """Return the streams group with this id. Raises GROUP_ID_NOT_FOUND if there is none.

    ``absent`` is the error message if no group of any type has this id, with ``{}`` in place of the id.
    """
    return shard.require_group(group_id, lambda known: known.streams, "streams", absent)


def _converted(decision: Decision[Outcome], group_id: str, shard: GroupShard) -> Decision[Outcome]:
    """Let the decision that creates a streams group also replace a classic group without members. The offsets stay."""
    known = shard.groups.get(group_id)
    if known is None:
        return decision
    tombstones: list[KeyValue] = [group_tombstone(group_id)] if known.stored is not None else []
    pending: dict[Hashable, Timer | None] = dict.fromkeys(
        [(TimerKind.PENDING, group_id, member_id) for member_id in known.membership.pending]
    )
    then = decision.change

    def change() -> None:
        group = shard.groups.get(group_id)
        if group is not None:
            group.membership = NO_MEMBERS
        if then is not None:
            then()

    return decision._replace(
        records=[*tombstones, *decision.records], timers={**pending, **decision.timers}, change=change
    )


# --- The member ---


def _member(request: StreamsGroupHeartbeatRequest, group: StreamsGroup, *, joins: bool) -> StreamsMember:
    """Return the member that sent a heartbeat. Raises UNKNOWN_MEMBER_ID or FENCED_MEMBER_EPOCH."""
    member = group.members.get(request.member_id)
    if member is None:
        if not joins:
            raise _unknown(request)
        return StreamsMember(request.member_id)
    epoch, progress = request.member_epoch, member.progress
    if joins or epoch == progress.epoch:
        return member
    known = f"({epoch}) than the one known by the group coordinator ({progress.epoch})"
    rejoin = "The member must abandon all its partitions and rejoin."
    if epoch > progress.epoch:
        text = f"The streams group member has a greater member epoch {known}. {rejoin}"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    if epoch != progress.previous_epoch or not _has_only(request, progress.assigned):
        text = f"The streams group member has a smaller member epoch {known}. {rejoin}"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    return member


def _unknown(request: StreamsGroupHeartbeatRequest) -> KafkaError:
    return KafkaError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {request.member_id} is not a member of group {request.group_id}."
    )


def _has_only(request: StreamsGroupHeartbeatRequest, assigned: CurrentTasks) -> bool:
    """Return True if a member reports its tasks, and all of them are assigned to it."""
    owned = _owned(request)
    return owned is not None and all(is_within(mine, known) for mine, known in zip(owned, assigned, strict=True))


def _owned(request: StreamsGroupHeartbeatRequest) -> MemberTasks | None:
    """Return the tasks that a member reports, or None if it does not report all three kinds."""
    active, standby, warmup = request.active_tasks, request.standby_tasks, request.warmup_tasks
    if active is None or standby is None or warmup is None:
        return None
    return MemberTasks(_tasks(active), _tasks(standby), _tasks(warmup))


def _tasks(said: Sequence[TaskIds]) -> Tasks:
    return grouped((each.subtopology_id, partition) for each in said for partition in each.partitions)


def _updated(
    request: StreamsGroupHeartbeatRequest, context: RequestContext, before: StreamsMember, change: StreamsGroupChange
) -> StreamsMember:
    """Step 1: add or update the member."""
    old = before.details
    topology, endpoint, tags = request.topology, request.user_endpoint, request.client_tags
    details = MemberDetails(
        old.instance_id,
        old.rack_id if request.rack_id is None else request.rack_id,
        context.client_id or "",
        f"/{context.client_host}",
        old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
        old.topology_epoch if topology is None else topology.epoch,
        old.process_id if request.process_id is None else request.process_id,
        old.endpoint if endpoint is None else (endpoint.host, endpoint.port),
        old.tags if tags is None else tuple(sorted({each.key: each.value for each in tags}.items())),
    )
    if details == old:
        return before
    member = replace(before, details=details)
    change.put_member(member)
    return member


# --- The topology ---


def _topology(request: StreamsGroupHeartbeatRequest, change: StreamsGroupChange) -> Topology:
    """Step 2: return the topology of the group. The first member sends it.

    Raises INVALID_REQUEST if the member sends a different one, or UNKNOWN_SERVER_ERROR if the topology is malformed, or
    if neither the member nor the group has one.
    """
    known = change.group.topology
    if request.topology is None:
        if known is None:
            text = "The topology is null and the group topology is also null."
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        return known
    topology = topology_of(request.topology)
    check_form(topology)
    if known is None:
        change.put_topology(topology)
        return topology
    if known.epoch <= topology.epoch and known != topology:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")
    return known


def _note_stale(member: StreamsMember, change: StreamsGroupChange) -> None:
    known = change.group.topology
    if known is not None and member.details.topology_epoch < known.epoch:
        text = (
            f"The member's topology epoch {member.details.topology_epoch} is behind the group's topology epoch "
            f"{known.epoch}."
        )
        change.statuses.append(Status(StatusCode.STALE_TOPOLOGY, text))


def _check_tasks(request: StreamsGroupHeartbeatRequest, configured: Configured, progress: Progress) -> None:
    """Raise INVALID_REQUEST if a member reports a task that does not exist and was not assigned to it.

    An assigned task may no longer exist, because its topic was recreated with fewer partitions.
    """
    subtopologies = configured.subtopologies or {}
    for said in (request.active_tasks, request.standby_tasks, request.warmup_tasks):
        for each in said or ():
            known = subtopologies.get(each.subtopology_id)
            if known is None:
                text = f"Subtopology {each.subtopology_id} does not exist in the topology."
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
            for partition in each.partitions:
                if not 0 <= partition < known.tasks and not _was_given(progress, (each.subtopology_id, partition)):
                    text = (
                        f"Task {partition} for subtopology {each.subtopology_id} is invalid. Number of tasks for this "
                        f"subtopology: {known.tasks}"
                    )
                    raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def _was_given(progress: Progress, task: TaskId) -> bool:
    return any(task in ids_of(tasks) for held in (progress.assigned, progress.revoking) for tasks in held)


# --- Tasks ---


def _reconciled(
    request: StreamsGroupHeartbeatRequest, member: StreamsMember, change: StreamsGroupChange
) -> StreamsMember:
    """Step 5: move the member toward its target."""
    if member.is_reconciled_to(change.target_epoch):
        return member
    target = change.target_of(member.member_id)
    progress = reconciled(member, change.target_epoch, target, _owned(request), change.group.owners)
    if progress == member.progress:
        return member
    member = change.put_progress(member, progress)
    change.timers.update(rebalance_timer(change.group_id, member))
    return member


def _response(
    request: StreamsGroupHeartbeatRequest,
    before: StreamsMember,
    member: StreamsMember,
    configured: Configured,
    change: StreamsGroupChange,
) -> StreamsGroupHeartbeatResponse:
    assigned = member.progress.assigned
    response = StreamsGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.progress.epoch,
        heartbeat_interval_ms=change.settings.heartbeat_interval_ms,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=[],
        endpoint_information_epoch=0,
    )
    has_changed = request.member_epoch == JOIN or assigned != before.progress.assigned
    if has_changed or _reports_other_tasks(request, assigned):
        response.active_tasks = _task_ids(assigned.active)
        response.standby_tasks = _task_ids(assigned.standby)
        response.warmup_tasks = _task_ids(assigned.warmup)
        change.endpoint_epoch += has_changed and member.details.endpoint is not None
    if change.endpoint_epoch != request.endpoint_information_epoch:
        members = [each for each in change.members() if each.member_id != member.member_id]
        response.partitions_by_user_endpoint = endpoints_of([*members, member], configured, change.shard.image())
    if not change.is_new:
        response.endpoint_information_epoch = change.endpoint_epoch
    if configured.problem is not None:
        change.statuses.append(configured.problem)
    if change.shutdown_by is not None:
        text = (
            f"Streams group member {change.shutdown_by} encountered a fatal error and requested a shutdown for the "
            "entire application."
        )
        change.statuses.append(Status(StatusCode.SHUTDOWN_APPLICATION, text))
    make = StreamsGroupHeartbeatResponse.Status
    response.status = [make(status_code=code, status_detail=detail) for code, detail in change.statuses]
    return response


def _reports_other_tasks(request: StreamsGroupHeartbeatRequest, assigned: CurrentTasks) -> bool:
    """Return True if a member reports tasks other than those assigned to it: its last response may have been lost."""
    owned = _owned(request)
    return owned is not None and owned != (grouped(ids_of(assigned.active)), assigned.standby, assigned.warmup)


def _task_ids(tasks: Mapping[str, Iterable[int]]) -> list[StreamsGroupHeartbeatResponse.TaskIds]:
    make = StreamsGroupHeartbeatResponse.TaskIds
    return [make(subtopology_id=each, partitions=sorted(partitions)) for each, partitions in tasks.items()]


# --- Members that leave ---


def _leave(request: StreamsGroupHeartbeatRequest, shard: GroupShard, now_ms: int) -> Decision[Outcome]:
    group = require_group(request.group_id, shard)
    member = group.members.get(request.member_id)
    if member is None:
        raise _unknown(request)
    change = StreamsGroupChange(shard, group, now_ms)
    if request.shutdown_application and change.shutdown_by is None:
        change.shutdown_by = request.member_id
    change.remove(member)
    response = StreamsGroupHeartbeatResponse(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=0,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=[],
        endpoint_information_epoch=0,
    )
    return change.decision(Outcome(response))


# --- Timers ---


def session(group_id: str, member_id: str, timeout_ms: int) -> Mapping[Hashable, Timer]:
    """Return the session timer of a member under its key, for ``Decision.timers``. Setting the timer restarts the
    session."""
    event = partial(_removed, group_id, member_id, None)
    return {(TimerKind.STREAMS_SESSION, group_id, member_id): Timer(max(timeout_ms, TIMEOUT_MIN_MS), event, True)}


def rebalance_timer(group_id: str, member: StreamsMember) -> Mapping[Hashable, Timer | None]:
    """Return the timer that removes a member if it does not revoke its tasks in time, under its key, for
    ``Decision.timers``. The timer is None, which cancels it, if the member need not revoke any tasks."""
    key = TimerKind.STREAMS_REBALANCE, group_id, member.member_id
    if member.progress.state is not MemberState.UNREVOKED_TASKS:
        return {key: None}
    event = partial(_removed, group_id, member.member_id, member.progress.epoch)
    return {key: Timer(max(member.details.rebalance_timeout_ms, TIMEOUT_MIN_MS), event, True)}


def loaded_timers(shard: GroupShard, group: StreamsGroup) -> dict[Hashable, Timer]:
    """Return the timers of a loaded group: the session of each member, and the rebalance timeout of each member that
    must revoke tasks."""
    timeout_ms = shard.streams_settings(group.group_id).session_timeout_ms
    timers: dict[Hashable, Timer | None] = {}
    for member in group.members.values():
        timers.update(session(group.group_id, member.member_id, timeout_ms))
        timers.update(rebalance_timer(group.group_id, member))
    return {key: timer for key, timer in timers.items() if timer is not None}


def _removed(group_id: str, member_id: str, epoch: int | None, shard: GroupShard, now_ms: int) -> Decision[Any]:
    """Remove a member whose session has expired (``epoch`` is None), or that has not revoked its tasks in time and is
    still in ``epoch``."""
    group = shard.streams_group(group_id)
    member = None if group is None else group.members.get(member_id)
    if group is None or member is None or epoch not in (None, member.progress.epoch):
        return Decision(None)
    change = StreamsGroupChange(shard, group, now_ms)
    change.remove(member)
    return change.decision(None)
