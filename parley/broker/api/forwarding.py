"""Forwards clients' requests to the controller, and returns the controller's response.

Clients can therefore send these requests to any broker (KIP-590). A request is forwarded unchanged, in the same
version. If there is an authorizer or a quota for topic changes, it is forwarded in an envelope with the client's
principal.

While a controller is being elected, or the cluster moves to another store, requests wait, as in Kafka, because
librdkafka and other clients report NOT_CONTROLLER to their users. If no controller is elected in time, this broker
handles the request itself, and the client gets NOT_CONTROLLER. If this broker cannot use the coordination store, the
client gets an error with this reason.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any

from parley.broker.api.authorization.refused_requests import refuse
from parley.broker.api.envelopes import EnvelopeRefused, unwrap, wrap
from parley.broker.controller.controller import Controller
from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.metadata.types import ResourceType
from parley.broker.network.peers import Peers
from parley.broker.network.request_context import Handler, MaybeResponse, RequestContext
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from parley.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from parley.protocol.messages.coordination import MigrateCoordinationRequest
from parley.protocol.messages.elections import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from parley.protocol.messages.envelope import EnvelopeResponse
from parley.protocol.messages.features import UpdateFeaturesRequest
from parley.protocol.messages.quorum import UnregisterBrokerRequest
from parley.protocol.messages.quotas import AlterClientQuotasRequest
from parley.protocol.messages.scram import AlterUserScramCredentialsRequest
from parley.protocol.messages.topics import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest
from parley.protocol.schema import Struct

FORWARDED = frozenset(
    request.API_KEY
    for request in (
        AlterClientQuotasRequest,
        AlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        AlterUserScramCredentialsRequest,
        CreateAclsRequest,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteAclsRequest,
        DeleteTopicsRequest,
        ElectLeadersRequest,
        IncrementalAlterConfigsRequest,
        ListPartitionReassignmentsRequest,
        MigrateCoordinationRequest,
        UnregisterBrokerRequest,
        UpdateFeaturesRequest,
    )
)
ELECTED_MAX_S = 5.0
"""The maximum time, in seconds, that a request waits for a new controller. If an election is possible, it takes a
fraction of a second."""
PURPOSE = "forwarding"
_FORWARDING_CLIENT = re.compile(rf"broker-\d+-{PURPOSE}")  # the client ids that parley.broker.network.peers uses

_log = logging.getLogger(__name__)


class Forwarding:
    """A wrapper of handlers that forwards the requests for the controller."""

    def __init__(
        self,
        controller: Controller,
        peers: Peers,
        store_move: StoreMoveParticipant,
        store_error: Callable[[], KafkaError | None],
        *,
        uses_envelopes: Callable[[], bool] = lambda: False,
    ) -> None:
        """``store_error()`` returns the error for clients while this broker cannot use the coordination store, else
        None. ``uses_envelopes()`` returns True if the controller must know the client of each request, for ACLs or
        quotas."""
        self._controller = controller
        self._peers = peers
        self._store_move = store_move
        self._store_error = store_error
        self._uses_envelopes = uses_envelopes
        self._refusals = GrowingInterval(lambda: asyncio.get_running_loop().time())

    def around(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers by API key, with those of the APIs in ``FORWARDED`` replaced by handlers that forward
        requests to the controller."""
        return {key: self._forwarded(handler) if key in FORWARDED else handler for key, handler in routes.items()}

    def _forwarded(self, handler: Handler) -> Handler:
        def handle(context: RequestContext, request: Any) -> Any:
            if _is_for_this_broker(context, request):
                return handler(context, request)
            return self._ask_until_elected(handler, context, request)

        return handle

    async def _ask_until_elected(self, handler: Handler, context: RequestContext, request: Any) -> MaybeResponse:
        patience_s = 0.0
        if not isinstance(request, MigrateCoordinationRequest):  # its client retries
            patience_s = ELECTED_MAX_S
            await self._store_move.until_settled()

        def local() -> Awaitable[MaybeResponse] | None:
            return _handled(handler, context, request) if self._controller.is_active else None

        try:
            response: MaybeResponse = await self._ask(context, request, local, patience_s)
        except KafkaError as error:
            if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.UNSUPPORTED_VERSION):
                raise
        else:
            return response
        return await self._handle_without_controller(handler, context, request)

    async def _ask(
        self, context: RequestContext, request: Any, local: Callable[[], Any], patience_s: float
    ) -> MaybeResponse:
        ask = partial(self._peers.ask_elected_controller, patience_s=patience_s, purpose=PURPOSE)
        if not self._uses_envelopes():
            response: MaybeResponse = await ask(request, local, version=context.api_version)
            return response
        envelope = await ask(wrap(context, request), local)
        if not isinstance(envelope, EnvelopeResponse):
            return envelope  # type: ignore[no-any-return]
        try:
            return unwrap(context, envelope)
        except EnvelopeRefused as refused:
            if self._refusals.claim_line():
                _log.error("the controller rejected a forwarded request", extra={"reason": refused.message})
            return refuse(context, request, refused)

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
    """Replace each NOT_CONTROLLER in a response with another error."""
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
    """Return True if this broker handles the request itself.

    A forwarded request is not forwarded again, because two brokers may each consider the other the controller. The
    levels of loggers belong to this broker.
    """
    if context.client_id is not None and _FORWARDING_CLIENT.fullmatch(context.client_id):
        return True
    if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest):
        return any(resource.resource_type == ResourceType.BROKER_LOGGER for resource in request.resources)
    return False
