"""Requests that only the controller can answer, at a broker that is not: handed on to it, and its answer handed back.

So a client may ask any broker, as it may since KIP-590. The request goes on as it came, in the same version. Where the
controller cannot be reached the broker answers for itself, and that is NOT_CONTROLLER: clients look for the controller
and ask again. While the cluster changes to another coordination store, requests wait for the controller that is
elected there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import isawaitable
from typing import Any

from broker.controller.controller import Controller
from broker.controller.moving import Moves
from broker.metadata.types import ResourceType
from broker.network.dispatch import Answer, Handler, RequestContext
from broker.peers import Peers
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from protocol.messages.coordination import MigrateCoordinationRequest
from protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from protocol.messages.quorum import UnregisterBrokerRequest
from protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

FORWARDED = frozenset(
    request.API_KEY
    for request in (
        AlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        ListPartitionReassignmentsRequest,
        MigrateCoordinationRequest,
        UnregisterBrokerRequest,
    )
)
PURPOSE = "forwarding"
_HANDED_ON = re.compile(rf"broker-\d+-{PURPOSE}")  # as broker.peers names its clients
UNREACHABLE = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSUPPORTED_VERSION,
)


class Forwarding:
    """Puts itself before the handlers of such requests."""

    def __init__(self, controller: Controller, peers: Peers, moves: Moves) -> None:
        self._controller = controller
        self._peers = peers
        self._moves = moves

    def around(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same routes, where requests for the controller find it."""
        return {key: self._forwarded(handler) if key in FORWARDED else handler for key, handler in routes.items()}

    def _forwarded(self, handler: Handler) -> Handler:
        def handle(context: RequestContext, request: Any) -> Any:
            if _is_for_this_broker(context, request):
                return handler(context, request)
            if not self._moves.is_settled and not isinstance(request, MigrateCoordinationRequest):
                return self._hold(handler, context, request)
            if self._controller.is_active:
                return handler(context, request)
            return self._forward(handler, context, request)

        return handle

    async def _hold(self, handler: Handler, context: RequestContext, request: Any) -> Answer:
        await self._moves.until_settled()
        if not self._controller.is_active:
            return await self._forward(handler, context, request)
        return await _answer_of(handler, context, request)

    async def _forward(self, handler: Handler, context: RequestContext, request: Any) -> Answer:
        try:
            answer: Answer = await self._peers.ask_controller(request, version=context.api_version, purpose=PURPOSE)
        except KafkaError as error:
            if error.code not in UNREACHABLE:
                raise
            answer = await _answer_of(handler, context, request)
        return answer


async def _answer_of(handler: Handler, context: RequestContext, request: Any) -> Answer:
    answer: Any = handler(context, request)
    if isawaitable(answer):
        answer = await answer
    whole: Answer = answer
    return whole


def _is_for_this_broker(context: RequestContext, request: Any) -> bool:
    """What has been handed on already goes no further, for two brokers may each take the other for the controller;
    and the levels of loggers are this broker's own."""
    if context.client_id is not None and _HANDED_ON.fullmatch(context.client_id):
        return True
    if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest):
        return any(resource.resource_type == ResourceType.BROKER_LOGGER for resource in request.resources)
    return False
