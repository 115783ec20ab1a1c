"""Claiming a store, so that it can be filled, without taking it from a cluster that begins in it just then.

A cluster that begins in an empty store writes the store's record (``parley.consensus.store_record``), and every
transaction of the cluster checks it. So:

* where there is no record nobody has written, and nobody can any more once the claim, which expects none, is there;
* where the record says that the store holds nothing in charge (``claimed``, ``moved``) nobody writes;
* where there is a record of a store in charge somebody may be about to write the first key. Then the store is *held*
  first, as a move holds the one it leaves: ``frozen``, with a driver. Nobody writes while it is held, so a second look
  holds until the claim. If something is there by then the record is put back, and the other cluster goes
  on; it waited, and was told nothing. If the claimant dies, its driver's session ends, and the others put it back.

Claims are in order: those of one line of stores have ever higher numbers (``StoreRecord.begun``), and none replaces
a higher one. So the claimant of an earlier move that slept, and wakes up, changes nothing any more.

A record once made stays, and each write of it makes another revision: so what was sent on the ground of an earlier one,
and is still on its way, is refused whenever it arrives. That is how a claim is given up of which nobody knows whether
it was made: whoever looks into the store later must not be led into the cluster that wanted it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from parley.consensus.backend import Backend, Check, Delete, Entry, Op, Put, Revision
from parley.consensus.errors import CannotMove, CoordinationError, PreconditionFailed
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.store_copy import carry_out, everything, leftovers
from parley.consensus.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    RECORD_FOLDER,
    StoreRecord,
    StoreState,
    expected,
    read_record,
    write_record,
)

HELD = "given up: whoever wanted to fill this store is gone"

Decide = Callable[[StoreRecord, list[Entry]], StoreRecord]
"""From a store's record and its keys to the claim; raises where it must not be claimed."""


class Claim:
    """A claim of one store.

    :param move: an id that no other claim has.
    :param ttl_ms: how long those who write to the store may be held, should we be gone, in milliseconds.
    """

    def __init__(self, backend: Backend, move: str, *, ttl_ms: int, rng: random.Random, settle_s: float) -> None:
        self._backend = backend
        self._move = move
        self._ttl_ms = ttl_ms
        self._writer = Writer(backend, rng, settle_s)
        self._before = StoreRecord()
        self._record: StoreRecord | None = None
        self._revision: Revision | None = None
        self._is_sent = False
        self._replaced: Revision | None = None
        """Of the record that the write replaces which was sent last."""

    @property
    def check(self) -> Check:
        """What every write to the claimed store has to check."""
        assert self._revision is not None
        return expected(self._revision)

    async def make(self, decide: Decide) -> None:
        """Claim the store.

        :raises CannotMove: somebody else was faster; the store is as it was, as it is where ``decide`` raises.
        :raises MaybeApplied: nobody knows; ``release`` it.
        """
        was, revision = await read_record(self._backend)
        self._record = decide(was, await _keys(self._backend))
        self._before = was
        try:
            if revision is not None and was.state in IN_CHARGE_STATES:
                await self._make_held(decide, was, revision)
            else:
                self._revision = await self._send(self._record, revision)
        except PreconditionFailed as error:
            raise CannotMove("somebody else has just begun to use this store") from error

    async def take(self, note: str) -> None:
        """Enter that the store is in charge, which is decided already.

        :raises PreconditionFailed: somebody else did, and may have gone on.
        """
        assert self._record is not None
        await write_record(self._writer, self._record.taken(note), self._revision)

    async def release(self) -> None:
        """Empty the store again, and give it back as it was; one without a record gets that of one just begun.

        Where it was nobody's, being ``claimed`` or ``moved`` before, the claim stays, to lead who looks there on.
        When this returns, a claim that was sent and not seen is not made any more.

        :raises Retriable: call it again: until it returns the claim may stand, or arrive, and lead who looks there on.
        :raises CoordinationError: others have the store by now, or nobody can say; what is left there means nothing.
        """
        if not await self._is_made():
            return
        await carry_out(self._backend, [Delete(key) for key in await leftovers(self._backend)], self.check)
        if self._before.state in IN_CHARGE_STATES:
            await write_record(self._writer, self._before, self._revision)

    async def _make_held(self, decide: Decide, was: StoreRecord, revision: Revision) -> None:
        if was.state is StoreState.FROZEN:
            if await self._backend.get(DRIVER_KEY) is not None:
                raise CannotMove("somebody else is about to fill this store, or to move out of it; try again")
            was = self._before = was.given_up(HELD)
        session = await self._backend.open_session(self._ttl_ms)
        try:
            driver = Put(DRIVER_KEY, self._move.encode(), session)
            held = await self._send(was.frozen(), revision, driver)
            try:
                record = decide(was, await _keys(self._backend))
            except Exception:
                with suppress(PreconditionFailed):  # others thought us gone
                    await write_record(self._writer, was, held, Delete(DRIVER_KEY))
                raise
            self._revision = await self._send(record, held, Delete(DRIVER_KEY))
            self._record = record
        finally:
            with suppress(CoordinationError):  # it ends by itself
                await session.close()

    async def _send(self, record: StoreRecord, was: Revision | None, *others: Op) -> Revision:
        self._is_sent, self._replaced = True, was
        return await write_record(self._writer, record, was, *others)

    async def _is_made(self) -> bool:
        """Whether the store bears our claim, whose answer may have been lost; if not, it does not come to it any more.

        A hold that was made and not seen is left to whoever comes next, as that of a claimant who died.
        """
        while self._is_sent and self._revision is None:
            record, revision = await read_record(self._backend)
            if record.move == self._move and record.state is StoreState.CLAIMED:
                self._revision = revision
            elif revision != self._replaced:
                return False
            else:
                with suppress(PreconditionFailed):  # it has just arrived, or somebody else was faster
                    await write_record(self._writer, self._before, revision)
                    return False
        return self._revision is not None


async def _keys(backend: Backend) -> list[Entry]:
    return [each for each in await everything(backend) if not each.key.startswith(RECORD_FOLDER)]
