"""StreamsGroupHeartbeat and StreamsGroupDescribe (KIP-1071).

The handlers validate requests, and translate between messages and ``parley.broker.coordinators.groups.streams``. If the
topology in a heartbeat needs topics that do not exist, the handler starts creating them, on behalf of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from parley.broker.api.groups import GROUP_OPERATIONS, responding
from parley.broker.coordinators.groups.coordinator import GroupCoordinator
from parley.broker.coordinators.groups.group import Group
from parley.broker.coordinators.groups.streams.configuration import SHOWN_MAX, StatusCode
from parley.broker.coordinators.groups.streams.description import described
from parley.broker.coordinators.groups.streams.heartbeats import JOIN, LEAVE_STATIC, Outcome
from parley.broker.coordinators.groups.streams.internal_topics import InternalTopics
from parley.broker.coordinators.groups.streams.settings import StreamsSettings
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.feature_support import serves_streams_groups
from parley.broker.metadata.topic_names import INTERNAL_TOPICS, is_valid_name
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.security.authorization import Authorization
from parley.broker.security.operations import NOT_REQUESTED, Operation
from parley.broker.security.resources import ResourceType
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.streams_groups import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)

ID_MAX: Final = 8_192
"""The maximum length, in characters, of a group id and of a member id. Both must fit in the keys of records."""

HEARTBEATS_REMEMBERED: Final = 2
"""The number of heartbeat intervals for which a creation error is remembered, as in Kafka."""


class StreamsGroupsApi:
    """Handlers of requests about streams groups."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        metadata: Metadata,
        authorization: Authorization,
        topics: InternalTopics,
        settings: Callable[[str], StreamsSettings],
    ) -> None:
        """``settings(group_id)`` returns the settings of a group."""
        self._coordinator = coordinator
        self._metadata = metadata
        self._authorization = authorization
        self._topics = topics
        self._settings = settings

    def routes(self) -> dict[int, Handler]:
        return {
            StreamsGroupHeartbeatRequest.API_KEY: self.heartbeat,
            StreamsGroupDescribeRequest.API_KEY: self.describe,
        }

    def _check_offered(self) -> None:
        if not serves_streams_groups(self._metadata.image):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                "The cluster does not support streams groups: streams.version is 0, or a broker is too old.",
            )

    # --- StreamsGroupHeartbeat ---

    def heartbeat(
        self, context: RequestContext, request: StreamsGroupHeartbeatRequest
    ) -> StreamsGroupHeartbeatResponse | asyncio.Future[StreamsGroupHeartbeatResponse]:
        """Join a group, stay in it, or leave it. The response contains the member's tasks if they have changed, or an
        error code. It is a future if the group's changes must be stored first."""

        def responded(outcome: Outcome) -> StreamsGroupHeartbeatResponse:
            if outcome.to_create:
                self._create(context, request.group_id, outcome)
            return outcome.response

        try:
            self._check_offered()
            check_topic_names(request)
            _check_heartbeat(request)
            return responding(self._coordinator.streams_heartbeat(context, request), responded, _failed)
        except KafkaError as error:
            return _failed(error)

    def _create(self, context: RequestContext, group_id: str, outcome: Outcome) -> None:
        """Start creating the missing topics. If the client may not create them, or an earlier attempt has failed, add
        the reason to the response."""
        names = [topic.name for topic in outcome.to_create]
        refused = self._refused(context, names)
        if refused:
            _add_detail(outcome.response, f"; Unauthorized to CREATE on topics {', '.join(refused)}.")
            return
        remember_ms = HEARTBEATS_REMEMBERED * self._settings(group_id).heartbeat_interval_ms
        self._topics.begin(context, outcome.to_create, remember_ms)
        errors = self._topics.errors(names)
        if errors:
            shown = ", ".join(f"{name} ({text})" for name, text in list(errors.items())[:SHOWN_MAX])
            more = f" and {len(errors) - SHOWN_MAX} more" if len(errors) > SHOWN_MAX else ""
            _add_detail(outcome.response, f"; Creation failed: {shown}{more}.")

    def _refused(self, context: RequestContext, names: Sequence[str]) -> list[str]:
        """Return the topics that the client may not create."""
        if self._authorization.may_on_cluster(context, Operation.CREATE, is_probe=True):
            return []
        allowed = self._authorization.allowed(context, Operation.CREATE, ResourceType.TOPIC, names)
        return [name for name in names if name not in allowed]

    # --- StreamsGroupDescribe ---

    async def describe(
        self, context: RequestContext, request: StreamsGroupDescribeRequest
    ) -> StreamsGroupDescribeResponse:
        """Describe groups: their state, epochs, topology, members and tasks. A group that cannot be described gets an
        error code. Responds when the in-sync replicas have everything that the response contains."""
        operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
        groups = []
        for group_id in dict.fromkeys(request.group_ids):
            try:
                self._check_offered()
                self._coordinator.check_owned(group_id)
                groups.append(await self._coordinator.read(group_id, _describer(group_id, operations)))
            except KafkaError as error:
                groups.append(undescribed_streams_group(group_id, error.code, error.message or None))
        return StreamsGroupDescribeResponse(groups=groups)


def _describer(group_id: str, operations: int) -> Any:
    def look(group: Group | None) -> StreamsGroupDescribeResponse.DescribedGroup:
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if group.streams is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        return described(group.streams, operations)

    return look


def undescribed_streams_group(
    group_id: str, code: ErrorCode, message: str | None = None
) -> StreamsGroupDescribeResponse.DescribedGroup:
    """Return the result for a group that cannot be described."""
    return StreamsGroupDescribeResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        members=[],
    )


def _add_detail(response: StreamsGroupHeartbeatResponse, detail: str) -> None:
    for status in response.status or ():
        if status.status_code == StatusCode.MISSING_INTERNAL_TOPICS:
            status.status_detail += detail


def _failed(error: KafkaError) -> StreamsGroupHeartbeatResponse:
    too_large = error.code is ErrorCode.MESSAGE_TOO_LARGE
    return StreamsGroupHeartbeatResponse(
        error_code=ErrorCode.UNKNOWN_SERVER_ERROR if too_large else error.code,
        error_message=error.message or None,
        member_id="",
        member_epoch=0,
        heartbeat_interval_ms=0,
        acceptable_recovery_lag=0,
        task_offset_interval_ms=0,
        status=[],
        endpoint_information_epoch=0,
    )


# --- Checks of a heartbeat ---


def topics_of(request: StreamsGroupHeartbeatRequest) -> list[str]:
    """Return the topics in the topology of a heartbeat, without duplicates."""
    subtopologies = () if request.topology is None else request.topology.subtopologies
    return list(dict.fromkeys(name for each in subtopologies for name in _topics(each)))


def _topics(subtopology: StreamsGroupHeartbeatRequest.Subtopology) -> Iterable[str]:
    yield from subtopology.source_topics
    yield from subtopology.repartition_sink_topics
    yield from (topic.name for topic in subtopology.repartition_source_topics)
    yield from (topic.name for topic in subtopology.state_changelog_topics)


def check_topic_names(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise KafkaError (STREAMS_INVALID_TOPOLOGY) if the topology contains an internal topic or an invalid
    topic name."""
    if request.topology is None:
        return
    names = topics_of(request)
    prohibited = [name for name in names if name in INTERNAL_TOPICS]
    if prohibited:
        text = f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    invalid = [name for name in names if not is_valid_name(name)]
    if invalid:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _check_heartbeat(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise KafkaError (INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY) if a heartbeat violates one of Kafka's rules."""
    _check_supported(request)
    _check_id(request.member_id, "MemberId")
    _check_id(request.group_id, "GroupId")
    _check_id(request.rack_id, "RackId")
    epoch = request.member_epoch
    if epoch == JOIN:
        _check_join(request)
    elif epoch == LEAVE_STATIC:
        _require(False, "InstanceId can't be null.")
    elif epoch < LEAVE_STATIC:
        _require(False, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    has_none = request.active_tasks is None
    is_whole = has_none is (request.standby_tasks is None) and has_none is (request.warmup_tasks is None)
    _require(is_whole, "If one task-type is non-null, all must be non-null.")
    if epoch != JOIN:
        _require(request.topology is None, "Topology can only be provided when (re-)joining.")


def _check_id(value: str | None, name: str) -> None:
    if value is not None and not value.strip():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if value is not None and len(value) > ID_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} has more than {ID_MAX} characters.")


def _check_supported(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise KafkaError (INVALID_REQUEST) if a heartbeat uses features that neither Parley nor Kafka 4.3 supports."""
    _require(request.instance_id is None, "Static membership is not yet supported.")
    _require(request.task_offsets is None, "TaskOffsets are not supported yet.")
    _require(request.task_end_offsets is None, "TaskEndOffsets are not supported yet.")
    _require(not request.warmup_tasks, "WarmupTasks are not supported yet.")
    if request.topology is not None:
        has_regex = any(each.source_topic_regex for each in request.topology.subtopologies)
        _require(not has_regex, "Regular expressions for source topics are not supported yet.")


def _check_join(request: StreamsGroupHeartbeatRequest) -> None:
    _require(request.rebalance_timeout_ms != -1, "RebalanceTimeoutMs must be provided in first request.")
    _require(not request.active_tasks, "ActiveTasks must be empty when (re-)joining.")
    _require(not request.standby_tasks, "StandbyTasks must be empty when (re-)joining.")
    _require(not request.warmup_tasks, "WarmupTasks must be empty when (re-)joining.")
    _require(request.topology is not None, "Topology must be non-null when (re-)joining.")
    for subtopology in () if request.topology is None else request.topology.subtopologies:
        for topic in subtopology.state_changelog_topics:
            if topic.partitions != 0:
                text = (
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )
                raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _require(holds: bool, text: str) -> None:
    if not holds:
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
