"""The controller's part in a move to another coordination store: it carries out requested moves, one at a time.

A move is requested through the brokers (``MigrateCoordination``), not through a key in the store: the operator needs no
access to the store, and learns of a mistake immediately. A move ends with the term of the controller that drives it:
the next controller finds the unfinished move and abandons it. The states of the driver::

    NOT_CONTROLLER   this broker is not the controller
    IDLE             no move is under way
    REQUESTED        a move was requested and has not begun
    DRIVING          a move is being carried out
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from random import Random
from typing import Final

from parley.broker.runtime.states import step
from parley.broker.runtime.tasks import TaskSet
from parley.broker.store_move.participant import OPEN_MAX_S, StoreMoveParticipant
from parley.consensus.backend import Backend, Session
from parley.consensus.errors import BadConfig, CoordinationError
from parley.consensus.registry import BackendFactory
from parley.consensus.store_move.migration import Expected, Migration, Step, abandon_left_over
from parley.consensus.store_move.store_record import read_record
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


class DriverState(Enum):
    """The state of the driver; the module docstring explains each state."""

    NOT_CONTROLLER = auto()
    IDLE = auto()
    REQUESTED = auto()
    DRIVING = auto()


class DriverEvent(Enum):
    """An event that changes the ``DriverState``."""

    TERM_BEGAN = auto()
    TERM_ENDED = auto()
    MOVE_REQUESTED = auto()
    MOVE_BEGAN = auto()
    MOVE_ENDED = auto()


DRIVER_TRANSITIONS: dict[tuple[DriverState, DriverEvent], DriverState] = {
    (DriverState.NOT_CONTROLLER, DriverEvent.TERM_BEGAN): DriverState.IDLE,
    (DriverState.IDLE, DriverEvent.MOVE_REQUESTED): DriverState.REQUESTED,
    (DriverState.REQUESTED, DriverEvent.MOVE_BEGAN): DriverState.DRIVING,
    (DriverState.REQUESTED, DriverEvent.MOVE_ENDED): DriverState.IDLE,
    (DriverState.DRIVING, DriverEvent.MOVE_ENDED): DriverState.IDLE,
    (DriverState.IDLE, DriverEvent.TERM_ENDED): DriverState.NOT_CONTROLLER,
    (DriverState.REQUESTED, DriverEvent.TERM_ENDED): DriverState.NOT_CONTROLLER,
    (DriverState.DRIVING, DriverEvent.TERM_ENDED): DriverState.NOT_CONTROLLER,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a move. ``move`` is its id, empty if there has been no move. ``state`` is "none", "under way",
    "done" or "failed". ``step`` is the latest step, and ``detail`` a text for the operator."""

    move: str
    state: str
    step: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Request:
    url: str
    move: str


ABANDONED: Final = "abandoned"
ALREADY_USED: Final = "the cluster already uses this store"


class StoreMoveDriver:
    """Carries out moves to another store, which operators request, while this broker is the controller."""

    def __init__(self, participant: StoreMoveParticipant, backend_at: BackendFactory, rng: Random) -> None:
        self._participant = participant
        self._backend_at = backend_at
        self._rng = rng
        self._state = DriverState.NOT_CONTROLLER
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._driving: asyncio.Task[str | None] | None = None
        self._progress = Progress("", "none")

    def _on(self, event: DriverEvent) -> None:
        """Change the state. An event that the table does not allow is a defect."""
        self._state = step("store move driver", DRIVER_TRANSITIONS, self._state, event)

    # --- Operator requests ---

    async def start(self, url: str) -> str:
        """Request a move to the store at this address, and return the id of the move. ``progress`` reports on it.

        Raises KafkaError: NOT_CONTROLLER; INVALID_REQUEST if the address is wrong or a move is already under way.
        """
        self._require_controller()
        try:
            await self._backend_at(url)
        except BadConfig as wrong:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The address cannot be used: {wrong}") from wrong
        self._require_controller()
        if self._state is not DriverState.IDLE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A move to another store is already under way.")
        request = _Request(url, f"{self._rng.getrandbits(64):016x}")
        self._progress = Progress(request.move, "under way", "begin")
        self._on(DriverEvent.MOVE_REQUESTED)
        self._requests.put_nowait(request)
        return request.move

    def abort(self) -> None:
        """Abandon the move that is under way, unless the cluster has already switched to the new store.

        Raises KafkaError: NOT_CONTROLLER; INVALID_REQUEST if no move is under way.
        """
        self._require_controller()
        if self._state is DriverState.REQUESTED:
            self._end(self._requests.get_nowait(), ABANDONED)
        elif self._driving is not None:
            self._driving.cancel()
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "No move is under way.")

    async def progress(self) -> Progress:
        """Return the progress of the latest move.

        Raises KafkaError: NOT_CONTROLLER; COORDINATOR_NOT_AVAILABLE if the store does not respond.
        """
        self._require_controller()
        if self._progress.move:
            return self._progress
        try:
            return await self._recorded()
        except CoordinationError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error

    async def _recorded(self) -> Progress:
        """Return how the latest move ended, according to the record in the store. Raises CoordinationError."""
        record, _ = await read_record(self._participant.store.backend)
        if not record.move:
            return Progress("", "none")
        return Progress(record.move, "done" if record.is_move_done else "failed", detail=record.note)

    def _require_controller(self) -> None:
        if self._state is DriverState.NOT_CONTROLLER:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)

    # --- Carrying out moves ---

    async def run(self, session: Session, members: Expected) -> None:
        """Carry out the requested moves, one after another, until cancelled. Runs during each term as controller.

        ``session`` is the controller's session; ``members()`` returns the ids of the brokers that must follow the move.
        Raises CoordinationError if the store does not respond at the beginning.
        """
        await self._abandon_left_over()
        self._requests = asyncio.Queue()
        self._progress = Progress("", "none")
        self._on(DriverEvent.TERM_BEGAN)
        tasks = TaskSet()
        try:
            while True:
                request = await self._requests.get()
                self._on(DriverEvent.MOVE_BEGAN)
                driving = tasks.start(self._move(request, session, members), name="move to another store")
                self._driving = driving
                await asyncio.wait({driving})
                self._driving = None
                self._end(request, _failure_of(driving))
        finally:
            self._on(DriverEvent.TERM_ENDED)
            self._driving = None
            await tasks.close()

    def _end(self, request: _Request, failure: str | None) -> None:
        self._on(DriverEvent.MOVE_ENDED)
        if failure is not None:
            self._progress = Progress(request.move, "failed", self._progress.step, failure)

    async def _abandon_left_over(self) -> None:
        """Abandon a move that an earlier controller started: it can no longer be completed."""
        note = "abandoned: another broker became the controller; start the move again"
        if await abandon_left_over(self._participant.store, note):
            _log.warning("a move to another store was abandoned: the controller has changed")

    async def _move(self, request: _Request, session: Session, members: Expected) -> str | None:
        """Carry out a move. Returns None if the cluster now uses the requested store, otherwise the reason for the
        failure.

        The controller that is elected in the new store reports the end of a successful move. If the cluster already
        uses the requested store, the reported state is the state before the request.
        """

        def on_step(step: Step, detail: str) -> None:
            _log.info("moving to another store", extra={"move": request.move, "step": step.value, "detail": detail})
            self._progress = Progress(request.move, "under way", step.value, detail)

        target: Backend | None = None
        migration: Migration | None = None
        reason: str | None = ABANDONED
        try:
            target = await self._backend_at(request.url)
            async with asyncio.timeout(OPEN_MAX_S):
                await target.open()
            if target.identity == self._participant.store.identity:
                has_moved = (await self._recorded()).state == "done"
                self._progress = Progress(request.move, "done" if has_moved else "none", detail=ALREADY_USED)
                reason = None
                return reason
            migration = Migration(
                self._participant.store,
                session,
                target,
                request.url,
                move=request.move,
                members=members,
                on_step=on_step,
                rng=self._rng,
            )
            await migration.run()
        except (CoordinationError, TimeoutError) as error:
            reason = str(error) or "the new store does not respond"
        except Exception as error:
            reason = repr(error)
            raise
        except asyncio.CancelledError:
            if migration is None or not migration.is_committed:
                raise
        finally:
            if migration is not None and migration.is_committed:
                reason = None
            elif reason is not None:
                _log.warning(
                    "the cluster has not moved to another store", extra={"move": request.move, "reason": reason}
                )
            if target is not None:
                await target.close()
        return reason


def _failure_of(move: asyncio.Task[str | None]) -> str | None:
    """Return the reason why a finished move failed, or None if it succeeded."""
    if move.cancelled():
        return ABANDONED
    error = move.exception()
    return move.result() if error is None else repr(error)
