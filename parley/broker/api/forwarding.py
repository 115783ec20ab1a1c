"""Forwards requests for the controller from any other broker, and returns the controller's response.

So a client can send these requests to any broker (KIP-590). The request is forwarded unchanged, in the same version.
While a controller is being elected, or the cluster moves to another store, requests wait, as in Kafka: librdkafka and
others pass NOT_CONTROLLER on to their users. If no controller is elected in time, this broker handles the request
itself, and the client gets NOT_CONTROLLER. If this broker cannot use the coordination store, the client gets an error
that says so.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any

from parley.broker.controller.controller import Controller
from parley.broker.metadata.types import ResourceType
from parley.broker.network.dispatch import Handler, MaybeResponse, RequestContext
from parley.broker.network.peers import Peers
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from parley.protocol.messages.coordination import MigrateCoordinationRequest
from parley.protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from parley.protocol.messages.quorum import UnregisterBrokerRequest
from parley.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.schema import Struct

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
ELECTED_MAX_S = 5.0
"""How long a request waits for another controller. An election takes a fraction of a second if one can be held."""
PURPOSE = "forwarding"
_HANDED_ON = re.compile(rf"broker-\d+-{PURPOSE}")  # as parley.broker.network.peers names its clients


class Forwarding:
    """Wraps the handlers of requests for the controller."""

    def __init__(
        self,
        controller: Controller,
        peers: Peers,
        store_move: StoreMoveParticipant,
        store_error: Callable[[], KafkaError | None],
    ) -> None:
        """``store_error()`` returns the error for clients while this broker cannot use the coordination store."""
        self._controller = controller
        self._peers = peers
        self._store_move = store_move
        self._store_error = store_error

    def around(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the same routes, with requests for the controller forwarded to it."""
        return {key: self._forwarded(handler) if key in FORWARDED else handler for key, handler in routes.items()}

    def _forwarded(self, handler: Handler) -> Handler:
        def handle(context: RequestContext, request: Any) -> Any:
            if _is_for_this_broker(context, request):
                return handler(context, request)
            return self._ask_until_elected(handler, context, request)

        return handle

    async def _ask_until_elected(self, handler: Handler, context: RequestContext, request: Any) -> MaybeResponse:
        patience_s = 0.0
        if not isinstance(request, MigrateCoordinationRequest):  # its client asks again by itself
            patience_s = ELECTED_MAX_S
            await self._store_move.until_settled()

        def local() -> Awaitable[MaybeResponse] | None:
            return _handled(handler, context, request) if self._controller.is_active else None

        try:
            response: MaybeResponse = await self._peers.ask_elected_controller(
                request, local, patience_s=patience_s, version=context.api_version, purpose=PURPOSE
            )
        except KafkaError as error:
            if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
                raise
        else:
            return response
        return await self._handle_without_controller(handler, context, request)

    async def _handle_without_controller(
        self, handler: Handler, context: RequestContext, request: Any
    ) -> MaybeResponse:
        store_error = self._store_error()
        try:
            response = await _handled(handler, context, request)
        except KafkaError as error:
            if error.code is ErrorCode.NOT_CONTROLLER and store_error is not None:
                raise store_error from error
            raise
        if store_error is not None:
            _replace_not_controller(response, store_error)
        return response


async def _handled(handler: Handler, context: RequestContext, request: Any) -> MaybeResponse:
    response: Any = handler(context, request)
    if isawaitable(response):
        response = await response
    whole: MaybeResponse = response
    return whole


def _replace_not_controller(response: Any, error: KafkaError) -> None:
    """Put another error wherever a response has NOT_CONTROLLER."""
    if isinstance(response, list):
        for element in response:
            _replace_not_controller(element, error)
    if not isinstance(response, Struct):
        return
    names = {each.name for each in response.fields()}
    if getattr(response, "error_code", None) == ErrorCode.NOT_CONTROLLER:
        response.error_code = error.code  # type: ignore[attr-defined]
        if "error_message" in names:
            response.error_message = error.message  # type: ignore[attr-defined]
    for name in names:
        _replace_not_controller(getattr(response, name), error)


def _is_for_this_broker(context: RequestContext, request: Any) -> bool:
    """True for requests that this broker handles itself.

    A forwarded request goes no further, since two brokers may each take the other one for the controller. The levels of
    loggers belong to this broker.
    """
    if context.client_id is not None and _HANDED_ON.fullmatch(context.client_id):
        return True
    if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest):
        return any(resource.resource_type == ResourceType.BROKER_LOGGER for resource in request.resources)
    return False
