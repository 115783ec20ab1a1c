"""MigrateCoordination: move the cluster to another coordination store. Only the controller handles it."""

from __future__ import annotations

from parley.broker.network.dispatch import Handler, RequestContext
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
        """Start, cancel or check a move, and return the state of the latest one."""
        try:
            if request.action == START:
                await self._driver.start(request.url or "")
            elif request.action == ABORT:
                self._driver.abort()
            elif request.action != STATUS:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no action {request.action}.")
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
