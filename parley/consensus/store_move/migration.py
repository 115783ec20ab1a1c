"""Moves a running cluster from one store to another. At every moment exactly one of the two is in charge.

The controller drives the move, in the steps of ``Step``; ``NEXT_STEPS`` defines the legal transitions. The records of
both stores (``store_record.py``) prevent harm by a second or late driver: every write checks the revision of a record.
Before COMMIT, which is one transaction, any failure leaves the old store in charge. After COMMIT the new store is in
charge and complete, and the old store's record refers to it. docs/coordination.md, "How a cluster moves", explains the
steps, the states of both stores, and why the move is safe.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum

from parley.consensus.backend import Backend, Delete, Entry, Put, Session
from parley.consensus.errors import CannotMove, CoordinationError, IllegalStep, PreconditionFailed, Retriable
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap
from parley.consensus.store_move.store_claim import Claim
from parley.consensus.store_move.store_copy import carry_out, content, difference, everything, too_large
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    MOVED_HERE,
    NO_RECORD,
    READY_FOLDER,
    RECORD_FOLDER,
    StoreEvent,
    StoreLocation,
    StoreRecord,
    StoreState,
    abandon_move,
    read_record,
    write_record,
)

CONNECT_MAX_S = 60.0
"""How long to wait for the members to connect to the new store, in seconds."""
FROZEN_MAX_S = 10.0
"""The maximum time for which writers wait, in seconds. After that, the move is abandoned."""
UNDO_MAX_S = 10.0
"""How long to try to empty and release the new store after a failure. Any data left there has no meaning, except that
it directs a broker that is started with that address to the store in charge."""
_RETRY_S = 0.1

_log = logging.getLogger(__name__)

Expected = Callable[[], Awaitable[Iterable[str]]]
"""Returns the current members. Each of them must be able to use the new store."""


class Step(Enum):
    """The steps of a move. Each is entered before it is carried out."""

    PREPARE = "prepare"
    """Record the move in the old store, which invalidates every earlier move out of it."""
    CLAIM = "claim"
    """Claim the new store, which must be empty or a store that the cluster has left."""
    CONNECT = "connect"
    """Wait until every member reports that it can use the new store."""
    COPY = "copy"
    """Copy all persistent content, while writes to the old store continue."""
    FREEZE = "freeze"
    """Make the writers wait. From now on, the content of the old store does not change."""
    COPY_REST = "copy the rest"
    """Copy the changes since then, and compare both stores."""
    COMMIT = "commit"
    """Put the new store in charge, in one transaction on the old store."""
    TAKE = "take"
    """Record in the new store that it is in charge. Any client can do that."""
    DONE = "done"
    UNDO = "undo"
    """After a failure: find out whether the move was committed. If not, abandon it."""


REPORTED_STEPS = tuple(step for step in Step if step is not Step.UNDO)
"""The steps with which ``on_step`` is called."""
NEXT_STEPS: Mapping[Step | None, frozenset[Step]] = {
    None: frozenset({Step.PREPARE}),
    Step.PREPARE: frozenset({Step.CLAIM, Step.UNDO}),
    Step.CLAIM: frozenset({Step.CONNECT, Step.UNDO}),
    Step.CONNECT: frozenset({Step.CONNECT, Step.COPY, Step.UNDO}),
    Step.COPY: frozenset({Step.FREEZE, Step.UNDO}),
    Step.FREEZE: frozenset({Step.COPY_REST, Step.UNDO}),
    Step.COPY_REST: frozenset({Step.COMMIT, Step.UNDO}),
    Step.COMMIT: frozenset({Step.TAKE, Step.UNDO}),
    Step.UNDO: frozenset({Step.TAKE}),  # the response to the commit was lost, but the store has applied it
    Step.TAKE: frozenset({Step.DONE}),
    Step.DONE: frozenset(),
}


class Migration:
    """One move, driven from this process.

    :param session: the driver's session in the old store. Writers may have to wait until this session expires.
    :param target: the new store, already open. The caller closes it.
    :param move: an id that no other move uses.
    :param on_step: called with each step except UNDO before it is carried out, and with a short string about progress.
    """

    def __init__(
        self,
        source: StoreInCharge,
        session: Session,
        target: Backend,
        target_url: str,
        *,
        move: str,
        members: Expected,
        on_step: Callable[[Step, str], None],
        rng: random.Random,
    ) -> None:
        self._source = source
        self._session = session
        self._target = target
        self._to = StoreLocation(target_url, target.identity)
        self._move = move
        self._members = members
        self._on_step = on_step
        self._writer = Writer(source.backend, rng, FROZEN_MAX_S)
        self._claim = Claim(target, move, ttl_ms=session.ttl_ms, rng=rng, settle_s=FROZEN_MAX_S)
        self._stored = NO_RECORD
        """The record of the old store, as last read or written by this driver."""
        self._step: Step | None = None
        self._has_begun = False
        self.frozen_s = 0.0
        """How long the writers had to wait, in seconds."""
        self.is_committed = False
        """True if the new store is known to be in charge."""

    async def run(self) -> None:
        """Move the cluster. When this returns, the new store is in charge.

        Raises CannotMove if the move failed: the old store is in charge. Raises another CoordinationError if the
        outcome is unknown because the old store cannot be reached. One of the two stores is then in charge, and a
        client that reaches the old store can find out which. May be cancelled; ``is_committed`` then shows the outcome.
        """
        loop = asyncio.get_running_loop()
        try:
            await self._prepare()
            await self._claim_target()
            await self._connect()
            await self._copy(Step.COPY)
            async with asyncio.timeout(FROZEN_MAX_S):
                since = loop.time()
                await self._freeze()
                await self._copy(Step.COPY_REST)
                await self._commit()
                self.frozen_s = loop.time() - since
            self.is_committed = True
        except BaseException as error:
            reason = _reason(error)
            self._enter(Step.UNDO)
            self.is_committed = await self._is_committed_else_undone(reason)
            if not self.is_committed:
                if isinstance(error, Exception):
                    raise CannotMove(reason) from error
                raise
            if not isinstance(error, Exception):
                raise
        await self._take()
        self._enter(Step.DONE, f"writers waited {self.frozen_s * 1000:.0f} ms")

    def _enter(self, step: Step, detail: str = "") -> None:
        if step not in NEXT_STEPS[self._step]:
            raise IllegalStep("move to another store", step.name, self._step.name if self._step else "not begun")
        self._step = step
        if step in REPORTED_STEPS:
            self._on_step(step, detail)

    # --- The steps ---

    async def _prepare(self) -> None:
        self._enter(Step.PREPARE)
        if self._to.identity == self._source.identity:
            raise CannotMove("the cluster already uses this store")
        if not self._target.is_shared:
            raise CannotMove(
                f"every client that opens {self._to.url} gets a separate store, so no two brokers would find the "
                "same one. Name a store that every broker reaches, such as local:///directory for brokers on one "
                "machine, or memory://name for brokers in one process"
            )
        self._stored = await read_record(self._source.backend)
        self._source.require(self._stored.record)
        self._has_begun = True
        await self._write(StoreEvent.PREPARE, self._stored.record.preparing(self._move, self._to), Delete(DRIVER_KEY))

    async def _claim_target(self) -> None:
        self._enter(Step.CLAIM)
        wanted = await content(self._source.backend)

        def decide(was: StoreRecord, there: list[Entry]) -> StoreRecord:
            left = [each.key for each in there]
            reason = refusal(was, self._to.identity, self._source.identity, self._stored.record, left)
            if reason is not None:
                raise CannotMove(reason)
            return self._stored.record.claim(self._move, self._source.location)

        if (wrong := too_large(self._target.capabilities, wanted)) is not None:
            raise CannotMove(f"the new store cannot take it: {wrong}") from wrong
        await self._claim.make(decide)

    async def _connect(self) -> None:
        """Wait until every member reports that it can use the new store.

        Raises CannotMove if a member cannot use it, or if the members take longer than ``CONNECT_MAX_S``.
        """
        self._enter(Step.CONNECT)
        view = View()
        try:
            async with asyncio.timeout(CONNECT_MAX_S), self._source.watch(READY_FOLDER) as watch:
                while missing := await self._missing(view):
                    self._enter(Step.CONNECT, f"waiting for {', '.join(missing)}")
                    with suppress(TimeoutError):  # then check again: members may have joined or left
                        async with asyncio.timeout(1.0):
                            view.apply(await anext(watch))
        except TimeoutError:
            missing = await self._missing(view)
            late = ", ".join(missing)
            raise CannotMove(f"brokers did not connect to the new store in {CONNECT_MAX_S:g} s: {late}") from None

    async def _missing(self, view: View) -> list[str]:
        ready = set()
        for key, entry in view.entries.items():
            report = json.loads(unwrap(entry).value)
            member = key.removeprefix(READY_FOLDER)
            if report["move"] == self._move:
                if report["error"]:
                    raise CannotMove(f"broker {member} cannot use the new store: {report['error']}")
                ready.add(member)
        return sorted(set(await self._members()) - ready)

    async def _copy(self, step: Step) -> None:
        """Make the content of the new store equal to the content of the old store. After the last copy, compare the
        two."""
        wanted = await content(self._source.backend)
        found = await everything(self._target)
        has = {each.key: each.value for each in found if not each.key.startswith(RECORD_FOLDER)}
        changes = difference(has, wanted)
        self._enter(step, f"{len(changes)} of {len(wanted)} keys")
        await carry_out(self._target, changes, self._claim.check)
        if step is Step.COPY_REST and await content(self._target) != wanted:
            raise CannotMove("the new store does not contain what was written to it")

    async def _freeze(self) -> None:
        self._enter(Step.FREEZE)
        driver = Put(DRIVER_KEY, self._move.encode(), self._session)
        await self._write(StoreEvent.FREEZE, self._stored.record.frozen(), driver)

    async def _commit(self) -> None:
        self._enter(Step.COMMIT)
        await self._write(StoreEvent.COMMIT, self._stored.record.moved(), Delete(DRIVER_KEY))

    async def _take(self) -> None:
        self._enter(Step.TAKE)
        with suppress(PreconditionFailed, Retriable):  # another client has recorded this, or will
            await self._claim.take(MOVED_HERE)

    async def _write(self, event: StoreEvent, record: StoreRecord, *others: Put | Delete) -> None:
        self._stored = await write_record(self._writer, self._stored, event, record, *others)

    # --- The way back ---

    async def _is_committed_else_undone(self, reason: str) -> bool:
        """Return True if the move was committed. If not, abandon it and remove the copy."""
        if self._has_begun and await self._is_committed_else_abandoned(reason):
            return True
        try:
            async with asyncio.timeout(UNDO_MAX_S):
                await self._release_target()
        except TimeoutError:
            _log.info("the copy in the other store was not removed", extra={"reason": "the store does not respond"})
        except CoordinationError as error:
            _log.info("the copy in the other store was not removed", extra={"reason": _reason(error)})
        return False

    async def _release_target(self) -> None:
        while True:
            try:
                return await self._claim.release()
            except Retriable:
                await asyncio.sleep(_RETRY_S)

    async def _is_committed_else_abandoned(self, reason: str) -> bool:
        """Return True if the move was committed, otherwise abandon it. Retry until the old store reveals the outcome.

        Writes the old store's record again even if it does not mention this move, so that the store rejects a write of
        this driver that is still on its way.
        """
        while True:
            try:
                stored = await read_record(self._source.backend)
                record = stored.record
                if record.move == self._move and record.state is StoreState.MOVED:
                    return True
                if record.move == self._move and record.state is not StoreState.IN_CHARGE:
                    abandoned = record.abandoned(reason)
                    await write_record(self._writer, stored, StoreEvent.ABANDON, abandoned, Delete(DRIVER_KEY))
                elif stored.revision == self._stored.revision:
                    await write_record(self._writer, stored, StoreEvent.RESTORE, record)
                return False
            except PreconditionFailed:
                continue
            except Retriable:
                self._session.require()
                await asyncio.sleep(_RETRY_S)


async def abandon_left_over(store: StoreInCharge, note: str) -> bool:
    """Abandon a move that an earlier driver has started but not committed. Returns False if there is none.

    Raises Retriable if the store does not respond.
    """
    stored = await read_record(store.backend)
    if stored.record.state not in (StoreState.PREPARING, StoreState.FROZEN):
        return False
    await abandon_move(store.backend, stored, note)
    return True


def refusal(was: StoreRecord, target: str, source: str, record: StoreRecord, left: list[str]) -> str | None:
    """Return the reason why a move must not fill a store, or None if it may.

    :param was: the record of the store.
    :param target: the identity of the store.
    :param source: the identity of the store in charge; ``record`` is the record of that store.
    :param left: the keys in the store to fill.
    """
    if was.state in IN_CHARGE_STATES:
        return f"it is not empty: it contains keys such as {left[0]} ({len(left)} in total)" if left else None
    lineage = (source, *record.past)
    if was.state is StoreState.MOVED:
        is_ours = target in lineage
    else:
        is_ours = was.other is not None and was.other.identity in lineage
    if not is_ours:
        return "it belongs to another cluster, or a move of another cluster fills it"
    return None if was.begun < record.begun else "a later move of this cluster has claimed it"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"copying the remaining keys took longer than {FROZEN_MAX_S:g} s"
    if isinstance(error, asyncio.CancelledError):
        return "abandoned"
    return str(error) or type(error).__name__
