"""AlterPartitionReassignments, ListPartitionReassignments: move partitions to other replicas (KIP-455, KIP-860).

Only the controller handles these requests: another broker might not know yet of a reassignment that the client has just
started. ``timeout_ms`` is not needed: the response is sent when the reassignment has started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from parley.broker.api.authorization.refused_requests import refuse
from parley.broker.api.requested_names import more_than_once, named_twice, once
from parley.broker.controller.controller import Controller
from parley.broker.controller.decision import Decision
from parley.broker.controller.elections.election_rules import RulesOf
from parley.broker.controller.reassignment import (
    Reassignment,
    ReassignmentOutcome,
    alter_reassignments,
    list_reassignments,
)
from parley.broker.metadata.types import PartitionState
from parley.broker.network.request_context import Handler, RequestContext
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from parley.protocol.schema import Response


class ReassignmentApi:
    """Handlers of requests about partition reassignments."""

    def __init__(self, controller: Controller, rules: RulesOf) -> None:
        self._controller = controller
        self._rules = rules

    def routes(self) -> dict[int, Handler]:
        return {
            AlterPartitionReassignmentsRequest.API_KEY: self.move,
            ListPartitionReassignmentsRequest.API_KEY: self.list_moves,
        }

    async def move(self, context: RequestContext, request: AlterPartitionReassignmentsRequest) -> Response:
        """Start or cancel reassignments. Each partition's change succeeds or fails independently. An error of the whole
        request, for example NOT_CONTROLLER, is returned for the response and for each partition."""
        requested = [_move(topic.name, partition) for topic in request.topics for partition in topic.partitions]
        twice = named_twice((move.topic, move.partition) for move in requested)
        moves = [move for move in requested if (move.topic, move.partition) not in twice]
        may_change = request.allow_replication_factor_change
        try:
            outcomes = await self._controller.submit(
                lambda image: alter_reassignments(image, moves, self._rules, factor_may_change=may_change)
            )
        except KafkaError as error:
            return refuse(context, request, error)
        outcomes += [
            ReassignmentOutcome(Reassignment(topic, index, None), more_than_once("partition"))
            for topic, index in sorted(twice)
        ]
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=may_change, responses=_responses(outcomes)
        )

    async def list_moves(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """List the reassignments in progress of the requested partitions, or of all partitions. The error code is
        NOT_CONTROLLER if this broker is not the controller."""
        wanted = None
        if request.topics is not None:
            wanted = once(((topic.name, topic.partition_indexes) for topic in request.topics), lambda index: index)
        try:
            moving = await self._controller.submit(lambda image: Decision((), list_reassignments(image, wanted)))
        except KafkaError as error:
            return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message, topics=[])
        return ListPartitionReassignmentsResponse(topics=_ongoing(moving))


def _move(topic: str, requested: AlterPartitionReassignmentsRequest.ReassignablePartition) -> Reassignment:
    return Reassignment(
        topic, requested.partition_index, None if requested.replicas is None else tuple(requested.replicas)
    )


def _responses(
    outcomes: Iterable[ReassignmentOutcome],
) -> list[AlterPartitionReassignmentsResponse.ReassignableTopicResponse]:
    by_topic: defaultdict[str, list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse]]
    by_topic = defaultdict(list)
    for outcome in outcomes:
        error = outcome.error
        by_topic[outcome.move.topic].append(
            AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=outcome.move.partition,
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
    return [
        AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=name, partitions=partitions)
        for name, partitions in by_topic.items()
    ]


def _ongoing(
    moving: Iterable[tuple[str, int, PartitionState]],
) -> list[ListPartitionReassignmentsResponse.OngoingTopicReassignment]:
    by_topic: defaultdict[str, list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment]]
    by_topic = defaultdict(list)
    for topic, index, state in moving:
        by_topic[topic].append(
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(state.replicas),
                adding_replicas=list(state.adding),
                removing_replicas=list(state.removing),
            )
        )
    return [
        ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=partitions)
        for name, partitions in by_topic.items()
    ]
