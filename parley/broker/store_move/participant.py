"""A broker's part in a move to another coordination store: it follows the cluster from one store to the next.

Every broker watches which store the cluster uses. During a move it tests the connection to the new store and reports
the result in the old one. When the cluster has moved, the broker continues in the new store. The move is then complete,
even if the controller that drove it has died. From the freeze until the broker knows a controller that was elected in
the new store, requests for the controller wait instead of failing. The states, and what changes them::

    SETTLED    --frozen--> FROZEN       a move is about to copy the remaining keys: writes to the store wait
    FROZEN     --writable--> SETTLED    the move was abandoned
    any        --moved--> SEARCHING     another store is in charge: this broker connects to it
    SEARCHING  --found--> ELECTING      the broker is in the new store, which has no controller yet
    SEARCHING, ELECTING --elected--> SETTLED    a controller newer than the old store's is known
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum, auto
from random import Random

from parley.broker.logging.growing_interval import GrowingInterval
from parley.broker.runtime.states import step
from parley.broker.runtime.tasks import TaskSet
from parley.consensus.backend import Put, Session
from parley.consensus.errors import CoordinationError, Retriable, WrongStore
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import BackendFactory
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_lookup import find_successor
from parley.consensus.store_move.store_record import (
    READY_FOLDER,
    RECORD_FOLDER,
    RECORD_KEY,
    StoreLocation,
    StoreRecord,
    StoreState,
    abandon_move,
    read_record,
)

_log = logging.getLogger(__name__)

RETRY_S = 0.1
OPEN_MAX_S = 20.0
"""The time limit for connecting to the new store, in seconds."""
HOLD_MAX_S = 5.0
"""The longest time, in seconds, that requests for the controller wait while the cluster changes stores."""
STOP_MAX_S = 5.0
"""The time limit, in seconds, for closing the current store when the broker stops. After that, sessions expire by
themselves."""
CLOSE_MAX_S = 2.0
"""The time limit for closing the old store, in seconds. After that, its sessions expire by themselves."""


class MoveState(Enum):
    """The state of this broker during a change of stores; the module docstring explains each state."""

    SETTLED = auto()
    FROZEN = auto()
    SEARCHING = auto()
    ELECTING = auto()


class MoveEvent(Enum):
    """An event that changes the ``MoveState``."""

    STORE_FROZEN = auto()
    STORE_WRITABLE = auto()
    STORE_MOVED = auto()
    STORE_FOUND = auto()
    CONTROLLER_ELECTED = auto()
    """The metadata names a controller of a later term than the old store's last one."""


MOVE_TRANSITIONS: dict[tuple[MoveState, MoveEvent], MoveState] = {
    (MoveState.SETTLED, MoveEvent.STORE_FROZEN): MoveState.FROZEN,
    (MoveState.FROZEN, MoveEvent.STORE_FROZEN): MoveState.FROZEN,
    (MoveState.ELECTING, MoveEvent.STORE_FROZEN): MoveState.FROZEN,  # the next move has already started
    (MoveState.SETTLED, MoveEvent.STORE_WRITABLE): MoveState.SETTLED,
    (MoveState.FROZEN, MoveEvent.STORE_WRITABLE): MoveState.SETTLED,
    (MoveState.ELECTING, MoveEvent.STORE_WRITABLE): MoveState.ELECTING,
    (MoveState.SETTLED, MoveEvent.STORE_MOVED): MoveState.SEARCHING,
    (MoveState.FROZEN, MoveEvent.STORE_MOVED): MoveState.SEARCHING,
    (MoveState.ELECTING, MoveEvent.STORE_MOVED): MoveState.SEARCHING,
    (MoveState.SEARCHING, MoveEvent.STORE_FOUND): MoveState.ELECTING,
    (MoveState.SETTLED, MoveEvent.STORE_FOUND): MoveState.SETTLED,  # the new controller became known first
    (MoveState.SEARCHING, MoveEvent.CONTROLLER_ELECTED): MoveState.SETTLED,
    (MoveState.ELECTING, MoveEvent.CONTROLLER_ELECTED): MoveState.SETTLED,
}


class StoreMoveParticipant:
    """Keeps the current store of the cluster open, and follows the cluster to another store."""

    def __init__(
        self,
        store: StoreInCharge,
        backend_at: BackendFactory,
        remember: Callable[[str], Awaitable[None]],
        rng: Random,
    ) -> None:
        """``remember(identity)`` records in the data directories which store they now belong to."""
        self.store = store
        """The store that the cluster uses, as far as this broker knows."""
        self._backend_at = backend_at
        self._remember = remember
        self._rng = rng
        self._farewells = TaskSet()
        self._state = MoveState.SETTLED
        self._settled = asyncio.Event()
        self._settled.set()
        self._left_epoch = -1
        """The epoch of the last controller known in the store that this broker has left."""

    def _on(self, event: MoveEvent) -> None:
        """Change the state. An event that the table does not allow is a defect."""
        self._state = step("store move", MOVE_TRANSITIONS, self._state, event)
        if self._state is MoveState.SETTLED:
            self._settled.set()
        else:
            self._settled.clear()

    # --- Following the store in charge ---

    async def follow(self, member: str, session: Session) -> None:
        """Watch which store the cluster uses, and test the connection to the new store when a move is prepared.

        ``member`` is this broker's id in the group of brokers. Runs until it is cancelled. Raises Moved if the cluster
        has moved, or the error that ends the watch.
        """
        view, attempts, tried = View(), TaskSet(), ""
        try:
            async with self.store.watch(RECORD_FOLDER) as watch:
                async for event in watch:
                    view.apply(event)
                    entry = view.entries.get(RECORD_KEY)
                    if entry is None:
                        continue
                    record = StoreRecord.from_entry(entry)
                    self.store.require(record)
                    is_frozen = record.state is StoreState.FROZEN
                    self._on(MoveEvent.STORE_FROZEN if is_frozen else MoveEvent.STORE_WRITABLE)
                    if record.state is StoreState.PREPARING and record.move != tried and record.other is not None:
                        tried = record.move
                        work = self._try(record.move, record.other, member, session)
                        attempts.start(work, name="connect to the new store")
        finally:
            await attempts.close()

    async def continue_in_new_store(self, left_epoch: int, known_epoch: int) -> None:
        """Find the store that the cluster now uses, and make it ``store``. Retries until that store responds.

        ``left_epoch`` is the epoch of the last controller that the old store named. ``known_epoch`` is the epoch of the
        controller in the metadata, which may already have been elected in the new store. Raises the errors of
        ``find_successor`` that a retry cannot resolve.
        """
        self._left_epoch = left_epoch
        self._on(MoveEvent.STORE_MOVED)
        self.controller_elected(known_epoch)
        interval = GrowingInterval(asyncio.get_running_loop().time)
        while True:
            try:
                found = await find_successor(self.store, self._backend_at, rng=self._rng)
                break
            except Retriable as error:
                if interval.claim_line():
                    _log.warning("the new coordination store does not respond", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
        await self._remember(found.identity)
        old, self.store = self.store, found
        if found.backend is not old.backend:
            self._farewells.start(self._leave(old), name="leave the old coordination store")
        self._on(MoveEvent.STORE_FOUND)
        _log.info("moved to another coordination store", extra={"from": old.identity, "to": found.identity})

    async def open_again(self, failed: Callable[[str], None]) -> None:
        """Open the current store again, after it was rolled back. Retries until the store responds, and calls
        ``failed(reason)`` after each failed attempt.

        Raises the errors of ``Backend.open``, for example WrongStore if there is another store now. Raises Moved if the
        restored store names another store as the one in use.
        """
        old = self.store
        await self._leave(old)
        backend = await self._backend_at(old.url)
        self.store = StoreInCharge(backend, old.url, self._rng, term=old.term)
        while True:
            try:
                await self.store.open(expect_identity=old.identity)
                return
            except Retriable as error:
                failed(str(error))
                await asyncio.sleep(RETRY_S)

    async def _try(self, move: str, other: StoreLocation, member: str, session: Session) -> None:
        """Connect to the store to which the cluster is to move, and report the result in the current store."""
        error = ""
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                backend = await self._backend_at(other.url)
                try:
                    await backend.open(expect_identity=other.identity)
                    await (await backend.open_session(session.ttl_ms)).close()
                finally:
                    await backend.close()
        except WrongStore as wrong:
            error = f"this is not the store that the controller uses ({wrong}); all brokers must use the same store"
            _log.warning("the store to move to cannot be used", extra={"reason": error})
        except (CoordinationError, TimeoutError) as wrong:
            error = str(wrong) or f"no response in {OPEN_MAX_S:g} s"
            _log.warning("the store to move to cannot be used", extra={"reason": error})
        report = json.dumps({"move": move, "error": error}).encode()
        with suppress(CoordinationError):  # the driver waits for the report, and abandons the move if none arrives
            await self._write_when_possible(Put(f"{READY_FOLDER}{member}", report, session))

    async def _write_when_possible(self, put: Put) -> None:
        """Write as soon as the store responds."""
        while True:
            try:
                await Writer(self.store.backend, self._rng).commit([], [put])
                return
            except Retriable:
                await asyncio.sleep(RETRY_S)

    # --- Requests for the controller ---

    @property
    def is_settled(self) -> bool:
        """True if the cluster is not changing stores, as far as this broker knows."""
        return self._settled.is_set()

    async def until_settled(self) -> None:
        """Wait until the change of stores is complete, but at most ``HOLD_MAX_S`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_MAX_S):
                await self._settled.wait()

    def controller_elected(self, epoch: int) -> None:
        """Record that the metadata names a controller with this epoch. If that controller was elected in the new store,
        the change of stores is complete."""
        if self._state in (MoveState.SEARCHING, MoveState.ELECTING) and epoch > self._left_epoch:
            self._on(MoveEvent.CONTROLLER_ELECTED)

    # --- Leaving ---

    @staticmethod
    async def _leave(store: StoreInCharge) -> None:
        with suppress(CoordinationError, TimeoutError):
            async with asyncio.timeout(CLOSE_MAX_S):
                await store.close()

    async def close(self) -> None:
        """Close the current store, and the previous store if it is still open. Drop the connection to a store that does
        not respond in time."""
        try:
            async with asyncio.timeout(STOP_MAX_S):
                await self.store.close()
        except TimeoutError:
            await self.store.abandon()
        await self._farewells.close()

    async def abandon(self) -> None:
        """Drop the connections to the stores without closing sessions, as if the process were killed."""
        await self.store.abandon()
        await self._farewells.close()

    async def abandon_move_of(self, epoch: int) -> None:
        """Abandon the move that the controller with this epoch was driving, because that controller is dead.

        Writers then need not wait until the session of the dead controller expires. Does nothing if no move has frozen
        the store, or if the store does not respond.
        """
        with suppress(CoordinationError):
            stored = await read_record(self.store.backend)
            if stored.state is StoreState.FROZEN:
                await abandon_move(self.store.backend, stored, f"abandoned: the controller of epoch {epoch} is dead")
