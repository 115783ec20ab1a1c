"""Moving a running cluster from one store to another, with at every moment exactly one of them in charge.

The controller drives the move. Each step is recorded (``parley.consensus.store_record``) in one or both stores:

============  ===================  ===================  ==========================================================
step          the old store        the new store        what it does
============  ===================  ===================  ==========================================================
prepare       in charge>preparing  whatever it was      voids every earlier move out of the old store
claim         preparing            ...>claimed          the new store is empty, or the cluster has moved out of it
connect       preparing            claimed              every member proves that it can work with the new store
copy          preparing            claimed              all that lasts is carried over, while writes go on
freeze        preparing>frozen     claimed              from here on nobody writes to the old store; writers wait
copy the rest frozen               claimed              what was written since the copy; then both are compared
commit        frozen>moved         claimed              ONE transaction: before it the old store is in charge,
                                                        after it the new one
take          moved                claimed>in charge    the new store says so itself; anybody can do it
============  ===================  ===================  ==========================================================

Why it is safe:

* Whoever drives, and however many: what keeps a driver from doing harm is that each of its writes checks the revision
  of a record, not that it leads. Leadership only spares the cluster two drivers that get in each other's way.
* Every write to the old store checks the revision of its record. So the copy made after ``freeze`` is what the store
  holds at ``commit``, which checks that revision too: had anybody let the writers go on, the commit would be refused.
* Every write of the copy to the new store checks the revision of the claim: a driver that was thought gone and wakes
  up cannot write over what a later one has copied, nor over what the cluster has written since.
* A claim is replaced only where its move cannot be committed any more: by a later move out of the same store, whose
  record is past that move's by then, or out of a store that took over from it. A claim of any other cluster stands,
  and so does a cluster that begins in the new store at the same moment (``parley.consensus.store_claim``).
* Whatever fails before ``commit``: the old store is in charge. The driver undoes what it did; if it is gone itself,
  writers undo the freeze once its session has ended, or as soon as somebody finds it dead, and a claim without a
  tombstone that leads to it means nothing. A ``prepare`` that arrives when its driver has given up, or is out of
  office, hinders nobody: the next driver begins from there.
* Whatever fails after ``commit``: the new store is in charge, complete, and the tombstone leads everybody to it.

What lasts includes the epochs of elections, the incarnations of members and the counters of ids, so all of them go on
rising. Sessions are not carried over: members join, and leaders are elected, anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from enum import Enum

from parley.consensus.backend import Backend, Delete, Entry, Put, Revision, Session
from parley.consensus.errors import CannotMove, CoordinationError, PreconditionFailed, Retriable
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap
from parley.consensus.store_claim import Claim
from parley.consensus.store_copy import carry_out, content, difference, everything, too_large
from parley.consensus.store_in_charge import StoreInCharge
from parley.consensus.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    MOVED_HERE,
    READY_FOLDER,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)

CONNECT_MAX_S = 60.0
"""How long members may take to connect to the new store."""
FROZEN_MAX_S = 10.0
"""How long writers are held at most; then the move is given up."""
UNDO_MAX_S = 10.0
"""How long to go on giving the new store back. What is left there then means nothing, except that it leads a
broker which is started with that address to the store in charge."""
_RETRY_S = 0.1

log = logging.getLogger(__name__)

Expected = Callable[[], Awaitable[Iterable[str]]]
"""Who must be able to work with the new store: the members there are now."""


class Step(Enum):
    """What the driver is about to do."""

    PREPARE = "prepare"
    CLAIM = "claim"
    CONNECT = "connect"
    COPY = "copy"
    FREEZE = "freeze"
    COPY_REST = "copy the rest"
    COMMIT = "commit"
    TAKE = "take"
    DONE = "done"


class Migration:
    """One move, driven from here.

    :param session: of the driver, in the old store: while it lasts the driver may hold the writers.
    :param target: the new store, open; closed by the caller.
    :param move: an id that no other move has.
    :param on_step: called with each step before it is taken, and a few words on what it waits for.
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
        self._from_writer = Writer(source.backend, rng, FROZEN_MAX_S)
        self._claim = Claim(target, move, ttl_ms=session.ttl_ms, rng=rng, settle_s=FROZEN_MAX_S)
        self._record_now = StoreRecord()
        self._revision: Revision | None = None
        self._has_begun = False
        self.frozen_s = 0.0
        """How long the writers were held."""
        self.is_committed = False
        """Whether the new store is known to be in charge."""

    async def run(self) -> None:
        """Move. When this returns, the new store is in charge.

        :raises CannotMove: it did not work out; the old store is in charge.
        :raises CoordinationError: nobody here knows whether it did, since the old store cannot be reached; one of them
            is in charge, and whoever reaches the old store sees which.
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
                self._on_step(Step.COMMIT, "")
                await self._record(self._record_now.moved(), Delete(DRIVER_KEY))
                self.frozen_s = loop.time() - since
            self.is_committed = True
        except BaseException as error:
            reason = _reason(error)
            self.is_committed = await self._is_committed_else_undone(reason)
            if not self.is_committed:
                if isinstance(error, Exception):
                    raise CannotMove(reason) from error
                raise
            if not isinstance(error, Exception):
                raise
        await self._take()
        self._on_step(Step.DONE, f"writers waited {self.frozen_s * 1000:.0f} ms")

    # The steps.

    async def _prepare(self) -> None:
        self._on_step(Step.PREPARE, "")
        if self._to.identity == self._source.identity:
            raise CannotMove("this is the store that the cluster is in")
        if not self._target.is_shared:
            raise CannotMove(
                f"{self._to.url} is a store of its own for each who opens it, and gone with him: no two brokers would "
                "find the same one. Name a store that every broker reaches, such as local:///directory for brokers on "
                "one machine, or memory://name for those in one process"
            )
        self._record_now, self._revision = await read_record(self._source.backend)
        self._source.require(self._record_now)
        self._has_begun = True
        await self._record(self._record_now.preparing(self._move, self._to), Delete(DRIVER_KEY))

    async def _claim_target(self) -> None:
        self._on_step(Step.CLAIM, "")
        wanted = await content(self._source.backend)

        def decide(was: StoreRecord, there: list[Entry]) -> StoreRecord:
            left = [each.key for each in there]
            reason = refusal(was, self._to.identity, self._source.identity, self._record_now, left)
            if reason is not None:
                raise CannotMove(reason)
            return self._record_now.claim(self._move, self._source.location)

        if (wrong := too_large(self._target.capabilities, wanted)) is not None:
            raise CannotMove(f"the new store cannot take it: {wrong}") from wrong
        await self._claim.make(decide)

    async def _connect(self) -> None:
        """Wait until every member has said that it can work with the new store; one that cannot ends the move."""
        self._on_step(Step.CONNECT, "")
        view = View()
        try:
            async with asyncio.timeout(CONNECT_MAX_S), self._source.watch(READY_FOLDER) as watch:
                while missing := await self._missing(view):
                    self._on_step(Step.CONNECT, f"waiting for {', '.join(missing)}")
                    with suppress(TimeoutError):  # members come and go too
                        async with asyncio.timeout(1.0):
                            view.apply(await anext(watch))
        except TimeoutError:
            missing = await self._missing(view)
            late = ", ".join(missing)
            raise CannotMove(f"broker {late} did not connect to the new store in {CONNECT_MAX_S:g} s") from None

    async def _missing(self, view: View) -> list[str]:
        ready = set()
        for key, entry in view.entries.items():
            said = json.loads(unwrap(entry).value)
            if said["move"] == self._move:
                if said["error"]:
                    raise CannotMove(
                        f"broker {key.removeprefix(READY_FOLDER)} cannot use the new store: {said['error']}"
                    )
                ready.add(key.removeprefix(READY_FOLDER))
        return sorted(set(await self._members()) - ready)

    async def _copy(self, step: Step) -> None:
        """Make the new store like the old one, and make sure that it is."""
        wanted = await content(self._source.backend)
        has = {each.key: each.value for each in await everything(self._target) if not each.key.startswith("charge/")}
        changes = difference(has, wanted)
        self._on_step(step, f"{len(changes)} of {len(wanted)} keys")
        await carry_out(self._target, changes, self._claim.check)
        if step is Step.COPY_REST and await content(self._target) != wanted:
            raise CannotMove("the new store does not hold what was written to it")

    async def _freeze(self) -> None:
        self._on_step(Step.FREEZE, "")
        driver = Put(DRIVER_KEY, self._move.encode(), self._session)
        await self._record(self._record_now.frozen(), driver)

    async def _record(self, record: StoreRecord, *others: Put | Delete) -> None:
        self._revision = await write_record(self._from_writer, record, self._revision, *others)
        self._record_now = record

    async def _take(self) -> None:
        self._on_step(Step.TAKE, "")
        with suppress(PreconditionFailed, Retriable):  # somebody else did, or will
            await self._claim.take(MOVED_HERE)

    # The way back.

    async def _is_committed_else_undone(self, reason: str) -> bool:
        """Find out whether the move was committed; if not, give it up, and remove what was copied."""
        if self._has_begun and await self._is_committed_else_given_up(reason):
            return True
        try:
            async with asyncio.timeout(UNDO_MAX_S):
                await self._release_target()
        except TimeoutError:
            log.info("the copy in the other store was not removed", extra={"reason": "it does not answer"})
        except CoordinationError as error:
            log.info("the copy in the other store was not removed", extra={"reason": _reason(error)})
        return False

    async def _release_target(self) -> None:
        while True:
            try:
                return await self._claim.release()
            except Retriable:
                await asyncio.sleep(_RETRY_S)

    async def _is_committed_else_given_up(self, reason: str) -> bool:
        """Goes on until the store says which.

        The record is written even where nothing of the move is in it: what is still on its way is refused then.
        """
        while True:
            try:
                record, revision = await read_record(self._source.backend)
                if record.move == self._move and record.state is StoreState.MOVED:
                    return True
                if record.move == self._move and record.state is not StoreState.IN_CHARGE:
                    await write_record(self._from_writer, record.given_up(reason), revision, Delete(DRIVER_KEY))
                elif revision == self._revision:
                    await write_record(self._from_writer, record, revision)
                return False
            except PreconditionFailed:
                continue
            except Retriable:
                self._session.require()
                await asyncio.sleep(_RETRY_S)


async def give_up_left_over(store: StoreInCharge, note: str) -> bool:
    """What an earlier driver has begun and not committed is given up; whether there was anything.

    :raises Retriable: the store does not answer.
    """
    record, revision = await read_record(store.backend)
    if record.state not in (StoreState.PREPARING, StoreState.FROZEN):
        return False
    with suppress(PreconditionFailed):  # it went on, one way or the other
        await write_record(Writer(store.backend), record.given_up(note), revision, Delete(DRIVER_KEY))
    return True


def refusal(was: StoreRecord, target: str, source: str, record: StoreRecord, left: list[str]) -> str | None:
    """Why a store may not be filled; None if it may.

    :param was: its record.
    :param target: its identity.
    :param source: the identity of the store in charge, and ``record`` its record.
    :param left: the keys there are in it.
    """
    if was.state in IN_CHARGE_STATES:
        return f"it is not empty: it has {len(left)} keys, such as {left[0]}" if left else None
    lineage = (source, *record.past)
    if was.state is StoreState.MOVED:
        is_ours = target in lineage
    else:
        is_ours = was.other is not None and was.other.identity in lineage
    if not is_ours:
        return "it belongs to another cluster, or is being filled by one"
    return None if was.begun < record.begun else "a later move of this cluster has claimed it"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"copying the rest took longer than {FROZEN_MAX_S:g} s"
    if isinstance(error, asyncio.CancelledError):
        return "given up"
    return str(error) or type(error).__name__
