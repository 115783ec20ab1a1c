"""Requests that only the controller can answer, at a broker that is not: handed on to it, and its answer handed back.

So a client may ask any broker, as it may since KIP-590. The request goes on as it came, in the same version. While
another controller is being elected, be it in another coordination store, requests wait for it, as in Kafka: librdkafka
and others hand NOT_CONTROLLER to their users. Where none comes, the broker answers for itself, and that is it. What a
controller was doing when its term ended may have been done: then the one that is asked again says so in its own words,
such as TOPIC_ALREADY_EXISTS.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias

from parley.broker.controller.controller import Controller
from parley.broker.metadata.current import Metadata
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.types import ResourceType
from parley.broker.network.dispatch import Answer, Handler, RequestContext
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
"""How long a request waits for another controller. An election takes a fraction of a second where there can be one."""
LAST_WORD_S = 1.0
"""How long a controller that another has replaced may take to answer: if it did what it was asked, it says so."""
RETRY_S = 0.1
PURPOSE = "forwarding"
_HANDED_ON = re.compile(rf"broker-\d+-{PURPOSE}")  # as parley.broker.network.peers names its clients
UNREACHABLE = (
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)

Holds: TypeAlias = Callable[[MetadataImage], bool]


class Forwarding:
    """Puts itself before the handlers of such requests."""

    def __init__(
        self, controller: Controller, metadata: Metadata, peers: Peers, store_move: StoreMoveParticipant
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._peers = peers
        self._store_move = store_move

    def around(self, routes: Mapping[int, Handler]) -> dict[int, Handler]:
        """The same routes, where requests for the controller find it."""
        return {key: self._forwarded(handler) if key in FORWARDED else handler for key, handler in routes.items()}

    def _forwarded(self, handler: Handler) -> Handler:
        def handle(context: RequestContext, request: Any) -> Any:
            if _is_for_this_broker(context, request):
                return handler(context, request)
            return self._ask_until_elected(handler, context, request)

        return handle

    async def _ask_until_elected(self, handler: Handler, context: RequestContext, request: Any) -> Answer:
        patience_s = 0.0
        if not isinstance(request, MigrateCoordinationRequest):  # who asks how a move stands asks again by himself
            patience_s = ELECTED_MAX_S
            await self._store_move.until_settled()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        while True:
            is_led_by_another = partial(_is_led_after, self._metadata.image.controller_epoch)
            try:
                answer = await self._ask(handler, context, request, is_led_by_another)
            except KafkaError as error:
                if error.code is ErrorCode.UNSUPPORTED_VERSION:
                    break
                if error.code not in UNREACHABLE:
                    raise
            else:
                if not _is_from_no_controller(answer):
                    return answer
            # The same one is asked again, too: it may merely have cut the connection.
            if not await self._metadata.until(is_led_by_another, RETRY_S) and loop.time() >= deadline:
                break
        return await _answer_of(handler, context, request)

    async def _ask(self, handler: Handler, context: RequestContext, request: Any, is_led_by_another: Holds) -> Answer:
        """The controller's answer. Where there is another controller by now, it is not waited for much longer.

        Raises ``KafkaError``: NOT_CONTROLLER then, and as ``Peers.ask_controller``.
        """
        if self._controller.is_active:
            return await _answer_of(handler, context, request)
        asking = asyncio.ensure_future(
            self._peers.ask_controller(request, version=context.api_version, purpose=PURPOSE)
        )
        another = asyncio.ensure_future(self._metadata.until(is_led_by_another, None))
        try:
            await asyncio.wait({asking, another}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({asking}, timeout=LAST_WORD_S)
            if not asking.done():
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "Another controller was elected.")
            answer: Answer = asking.result()
        finally:
            asking.cancel()
            another.cancel()
        return answer


async def _answer_of(handler: Handler, context: RequestContext, request: Any) -> Answer:
    answer: Any = handler(context, request)
    if isawaitable(answer):
        answer = await answer
    whole: Answer = answer
    return whole


def _is_led_after(epoch: int, image: MetadataImage) -> bool:
    """Whether a controller is known that was elected after the one of this epoch."""
    return image.controller_epoch > epoch and image.controller_id >= 0


def _is_from_no_controller(answer: Any) -> bool:
    """Whether some part of an answer has the error NOT_CONTROLLER."""
    if isinstance(answer, list):
        return any(map(_is_from_no_controller, answer))
    if not isinstance(answer, Struct):
        return False
    values = {each.name: getattr(answer, each.name) for each in answer.fields()}
    return values.get("error_code") == ErrorCode.NOT_CONTROLLER or any(map(_is_from_no_controller, values.values()))


def _is_for_this_broker(context: RequestContext, request: Any) -> bool:
    """What has been handed on already goes no further, for two brokers may each take the other for the controller;
    and the levels of loggers are this broker's own."""
    if context.client_id is not None and _HANDED_ON.fullmatch(context.client_id):
        return True
    if isinstance(request, AlterConfigsRequest | IncrementalAlterConfigsRequest):
        return any(resource.resource_type == ResourceType.BROKER_LOGGER for resource in request.resources)
    return False
