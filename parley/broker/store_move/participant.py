"""A broker's part in moving the cluster to another coordination store while it runs (``parley.consensus.migration``).

Every broker watches which store is in charge. When it is asked to connect to another one it tries that, and says how it
went; when the store has moved it goes on in the other one: by then the move is done, whoever did it may be gone.

The controller drives a move that it is asked for. It is asked through the brokers (``MigrateCoordination``), not by a
key in the store: so whoever moves a cluster needs no access to the store it is in, and hears at once of a mistake. A
move ends with the term of the controller that drives it: the next one finds what is left of it, and gives it up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from parley.broker.membership.live_brokers import BROKERS_GROUP
from parley.broker.runtime.tasks import TaskSet
from parley.consensus.backend import Backend, Put, Session
from parley.consensus.errors import BadConfig, CoordinationError, Retriable, WrongStore
from parley.consensus.migration import Migration, Step, give_up_left_over
from parley.consensus.recipes.groups import Groups
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import BackendFactory
from parley.consensus.store_in_charge import StoreInCharge
from parley.consensus.store_lookup import find_successor
from parley.consensus.store_record import (
    READY_FOLDER,
    RECORD_FOLDER,
    RECORD_KEY,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
    unfreeze,
)
from parley.protocol.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

RETRY_S = 0.1
OPEN_MAX_S = 20.0
"""How long a broker tries to connect to the new store."""
HOLD_MAX_S = 5.0
"""How long requests for the controller are held back at most while it changes with the store."""
CLOSE_MAX_S = 2.0
"""How long to take leave of the old store; its sessions end by themselves."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a move stands. ``state`` is one of "none", "under way", "done", "failed"; ``detail`` is for people."""

    move: str
    state: str
    step: str = ""
    detail: str = ""


@dataclass(slots=True)
class _Request:
    url: str
    move: str


class Moves:
    """Follows the store in charge, and drives a move while this broker is the controller."""

    def __init__(
        self,
        store: StoreInCharge,
        backend_at: BackendFactory,
        remember: Callable[[str], Awaitable[None]],
        rng: Random,
    ) -> None:
        """``remember(identity)`` notes with the broker's data that it belongs to another store from now on."""
        self.store = store
        """The store in charge, as far as this broker knows."""
        self._backend_at = backend_at
        self._remember = remember
        self._rng = rng
        self._farewells = TaskSet()
        self._settled = asyncio.Event()
        self._settled.set()
        self._left_epoch: int | None = None  # of the controller in the store that was left, while there is no other
        self._requests: asyncio.Queue[_Request] = asyncio.Queue()
        self._is_busy = False
        self._driving: asyncio.Task[None] | None = None
        self._is_in_office = False
        self._progress = Progress("", "none")

    # -- as any broker ---------------------------------------------------------------------------------------------

    async def follow(self, member: str, session: Session) -> None:
        """Watch the store in charge until it has moved: raises Moved, or what ended the watch.

        ``member`` is what this broker is called in the group of brokers.
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
                    self._note(record)
                    if record.state is StoreState.PREPARING and record.move != tried and record.other is not None:
                        tried = record.move
                        work = self._try(record.move, record.other, member, session)
                        attempts.start(work, name="connect to the new store")
        finally:
            await attempts.close()

    # Requests for the controller wait, rather than fail, from the freeze until a controller is known in the new store.

    @property
    def is_settled(self) -> bool:
        """Whether there is no change of stores going on, as far as this broker knows."""
        return self._settled.is_set()

    async def until_settled(self) -> None:
        """Wait for that, though not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HOLD_MAX_S):
                await self._settled.wait()

    def _note(self, record: StoreRecord) -> None:
        if record.state is StoreState.FROZEN:
            self._left_epoch = None
            self._settled.clear()
        elif self._left_epoch is None:
            self._settled.set()

    def controller_is(self, epoch: int) -> None:
        """The metadata names a controller of this epoch."""
        if self._left_epoch is not None and epoch > self._left_epoch:
            self._left_epoch = None
            self._settled.set()

    async def _try(self, move: str, other: StoreLocation, member: str, session: Session) -> None:
        """Connect to the store that the cluster is to move to, and say in the present one how it went."""
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
            error = (
                f"it finds another store there than the controller ({wrong}); every broker has to reach the same one"
            )
            log.warning("the store to move to cannot be used", extra={"reason": error})
        except (CoordinationError, TimeoutError) as wrong:
            error = str(wrong) or f"no answer in {OPEN_MAX_S:g} s"
            log.warning("the store to move to cannot be used", extra={"reason": error})
        said = json.dumps({"move": move, "error": error}).encode()
        with suppress(CoordinationError):  # it is the driver that waits for it, and gives up if it does not come
            await self._say(Put(f"{READY_FOLDER}{member}", said, session))

    async def _say(self, what: Put) -> None:
        """Write it as soon as the store answers."""
        while True:
            try:
                await Writer(self.store.backend, self._rng).commit([], [what])
                return
            except Retriable:
                await asyncio.sleep(RETRY_S)

    async def go_on_elsewhere(self, controller_epoch: int) -> None:
        """The store has moved: from now on ``store`` is the one in charge. Tries until it answers.

        ``controller_epoch`` is the highest known: that of the controller that goes with the old store.
        """
        self._left_epoch = controller_epoch
        self._settled.clear()
        while True:
            try:
                found = await find_successor(self.store, self._backend_at, rng=self._rng)
                break
            except Retriable as error:
                log.warning("the new coordination store does not answer", extra={"reason": str(error)})
                await asyncio.sleep(RETRY_S)
        await self._remember(found.identity)
        old, self.store = self.store, found
        if found.backend is not old.backend:
            self._farewells.start(self._leave(old), name="leave the old coordination store")
        log.info("moved to another coordination store", extra={"from": old.identity, "to": found.identity})

    @staticmethod
    async def _leave(store: StoreInCharge) -> None:
        with suppress(CoordinationError, TimeoutError):
            async with asyncio.timeout(CLOSE_MAX_S):
                await store.close()

    async def close(self) -> None:
        """Leave the store in charge, and whichever was in charge before."""
        await self.store.close()
        await self._farewells.close()

    async def abandon(self) -> None:
        """Let go of the stores as a process that is killed does."""
        await self.store.abandon()
        await self._farewells.close()

    async def unfreeze_after(self, epoch: int) -> None:
        """The controller of this term is dead: if it was driving a move, others need not wait for its session."""
        with suppress(CoordinationError):
            record, revision = await read_record(self.store.backend)
            if record.state is StoreState.FROZEN and revision is not None:
                await unfreeze(self.store.backend, record, revision, f"given up: controller {epoch} is gone")

    # -- as the controller -----------------------------------------------------------------------------------------

    async def start(self, url: str) -> str:
        """Begin a move to the store at this address; the id of the move. How it goes, ``progress`` says.

        Raises NOT_CONTROLLER, INVALID_REQUEST.
        """
        self._require_office()
        try:
            await self._backend_at(url)
        except BadConfig as wrong:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The address cannot be used: {wrong}") from wrong
        self._require_office()
        if self._is_busy:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A move to another store is under way already.")
        request = _Request(url, f"{self._rng.getrandbits(64):016x}")
        self._progress = Progress(request.move, "under way", "begin")
        self._is_busy = True
        self._requests.put_nowait(request)
        return request.move

    def abort(self) -> None:
        """Give up the move under way, if it is not too late. Raises NOT_CONTROLLER, INVALID_REQUEST."""
        self._require_office()
        if self._driving is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "No move is under way.")
        self._driving.cancel()

    async def progress(self) -> Progress:
        """How the latest move stands. Raises NOT_CONTROLLER, COORDINATOR_NOT_AVAILABLE."""
        self._require_office()
        if self._progress.state != "none":
            return self._progress
        try:
            record, _ = await read_record(self.store.backend)
        except CoordinationError as error:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        if not record.move:
            return self._progress
        return Progress(record.move, "done" if record.is_move_done else "failed", detail=record.note)

    def _require_office(self) -> None:
        if not self._is_in_office:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller of the cluster.")

    async def drive(self, groups: Groups) -> None:
        """Do what is asked for, one move after another, until cancelled: as long as this broker is the controller."""
        await self._give_up_left_over()
        self._requests = asyncio.Queue()
        self._progress = Progress("", "none")
        self._is_in_office, self._is_busy = True, False
        tasks = TaskSet()
        try:
            while True:
                request = await self._requests.get()
                self._driving = tasks.start(self._move(request, groups), name="move to another store")
                await asyncio.wait({self._driving})
                self._driving, self._is_busy = None, False
        finally:
            self._is_in_office = False
            self._driving = None
            await tasks.close()

    async def _give_up_left_over(self) -> None:
        """What an earlier controller had begun: it can neither go on, nor be gone on with."""
        if await give_up_left_over(self.store, "given up: another broker became the controller; begin again"):
            log.warning("a move to another store is given up: the controller has changed")

    async def _move(self, request: _Request, groups: Groups) -> None:
        def on_step(step: Step, detail: str) -> None:
            log.info("moving to another store", extra={"move": request.move, "step": step.value, "detail": detail})
            self._progress = Progress(request.move, "under way", step.value, detail)

        async def members() -> list[str]:
            return list(await groups.members(BROKERS_GROUP))

        target: Backend | None = None
        migration: Migration | None = None
        try:
            target = await self._backend_at(request.url)
            async with asyncio.timeout(OPEN_MAX_S):
                await target.open()
            migration = Migration(
                self.store,
                groups.session,
                target,
                request.url,
                move=request.move,
                members=members,
                on_step=on_step,
                rng=self._rng,
            )
            await migration.run()
        except (CoordinationError, TimeoutError) as error:
            self._progress = Progress(request.move, "failed", self._progress.step, str(error) or "no answer")
        finally:
            self._conclude(request.move, migration)
            if target is not None:
                await target.close()

    def _conclude(self, move: str, migration: Migration | None) -> None:
        if migration is not None and migration.is_committed:
            return  # the controller that is elected in the other store tells of the end
        if self._progress.state == "under way":
            self._progress = Progress(move, "failed", self._progress.step, "given up")
        reason = self._progress.detail
        log.warning("the cluster has not moved to another store", extra={"move": move, "reason": reason})
