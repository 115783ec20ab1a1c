"""MigrateCoordination: moves the cluster to another coordination store. Only the controller handles it.

The request makes the controller open an address or a file that the client chooses, and trust its contents. Without an
authorizer to restrict this, only a client on the controller's own machine may send it, through a loopback address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any

from parley.broker.api.envelopes import FORWARDED_LISTENER
from parley.broker.network.request_context import Handler, RequestContext
from parley.broker.store_move.driver import StoreMoveDriver
from parley.broker.store_move.participant import StoreMoveParticipant
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.messages.coordination import (
    ABORT,
    START,
    STATUS,
    MigrateCoordinationRequest,
    MigrateCoordinationResponse,
)

FROM_ELSEWHERE = (
    "Without an authorizer, a broker accepts this request only from its own machine. Run the command on the "
    "controller's machine, with a loopback address of the controller as the bootstrap server. Or configure "
    "authorizer.class.name and grant your principal Alter on the cluster."
)


def guard_store_moves(handlers: Mapping[int, Handler], authorizer_is_used: Callable[[], bool]) -> dict[int, Handler]:
    """Return the handlers, but reject MigrateCoordination requests of remote clients with CLUSTER_AUTHORIZATION_FAILED
    while there is no authorizer."""
    handler = handlers[MigrateCoordinationRequest.API_KEY]

    def guarded(context: RequestContext, request: Any) -> Any:
        if authorizer_is_used() or _is_on_this_machine(context):
            return handler(context, request)
        return MigrateCoordinationResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, error_message=FROM_ELSEWHERE
        )

    return {**handlers, MigrateCoordinationRequest.API_KEY: guarded}


def _is_on_this_machine(context: RequestContext) -> bool:
    """Return True if the client connects from a loopback address. The address in an envelope is not trusted."""
    if context.session.listener == FORWARDED_LISTENER:
        return False
    try:
        address = ip_address(context.client_host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


class StoreMoveApi:
    """Handler of MigrateCoordination."""

    def __init__(self, store_move: StoreMoveParticipant, driver: StoreMoveDriver) -> None:
        self._store_move = store_move
        self._driver = driver

    def routes(self) -> dict[int, Handler]:
        return {MigrateCoordinationRequest.API_KEY: self.migrate_coordination}

    async def migrate_coordination(
        self, context: RequestContext, request: MigrateCoordinationRequest
    ) -> MigrateCoordinationResponse:
        """Start, cancel or check a move. Returns the state of the latest move, or an error code, for example
        NOT_CONTROLLER."""
        try:
            if request.action == START:
                await self._driver.start(request.url or "")
            elif request.action == ABORT:
                self._driver.abort()
            elif request.action != STATUS:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown action {request.action}.")
            progress = await self._driver.progress()
        except KafkaError as error:
            return MigrateCoordinationResponse(error_code=error.code, error_message=error.message)
        return MigrateCoordinationResponse(
            move=progress.move,
            state=progress.state,
            step=progress.step,
            detail=progress.detail,
            store=self._store_move.store.url,
        )
