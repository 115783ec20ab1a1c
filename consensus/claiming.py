"""Claiming a store, so that it can be filled, without taking it from a cluster that begins in it just then.

Whoever begins in an empty store makes its record (``consensus.charge``) and checks that in each transaction. So:

* where there is no record nobody has written, and nobody can any more once the claim, which expects none, is there;
* where the record says that the store holds nothing in charge (``claimed``, ``moved``) nobody writes;
* where there is a record of a store in charge somebody may be about to write the first key. Then the store is *held*
  first, as a move holds the one it leaves: ``frozen``, with a driver. Nobody writes while it is held, so a second look
  holds until the claim. If something is there by then the record is put back, and the other cluster goes
  on; it waited, and was told nothing. If the claimant dies, its driver's session ends, and the others put it back.

Claims are in order: those of one line of stores have ever higher numbers (``Charge.begun``), and none replaces a higher
one. So the claimant of an earlier move that slept, and wakes up, changes nothing any more.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from consensus.backend import Backend, Check, Delete, Entry, Put, Revision
from consensus.charge import DRIVER, FOLDER, HOLDS_STATE, STATE, Charge, State, expected, read_charge, write_charge
from consensus.copying import carry_out, everything, leftovers
from consensus.errors import CannotMove, CoordinationError, PreconditionFailed
from consensus.recipes.writing import Writer

HELD = "given up: whoever wanted to fill this store is gone"

Decide = Callable[[Charge, list[Entry]], Charge]
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
        self._before: Charge | None = None
        self._charge: Charge | None = None
        self._revision: Revision | None = None

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
        was, revision = await read_charge(self._backend)
        self._charge = decide(was, await _keys(self._backend))
        self._before = was if revision else None
        try:
            if revision is not None and was.state in HOLDS_STATE:
                await self._make_held(decide, was, revision)
            else:
                self._revision = await write_charge(self._writer, self._charge, revision)
        except PreconditionFailed as error:
            raise CannotMove("somebody else has just begun to use this store") from error

    async def take(self, note: str) -> None:
        """Enter that the store is in charge, which is decided already.

        :raises PreconditionFailed: somebody else did, and may have gone on.
        """
        assert self._charge is not None
        await write_charge(self._writer, self._charge.taken(note), self._revision)

    async def release(self) -> None:
        """Empty the store again, and give it back as it was.

        Where it was nobody's, being ``claimed`` or ``moved`` before, the claim stays, to lead who looks there on.

        :raises CoordinationError: what is left there means nothing.
        """
        if self._charge is None or not await self._find():
            return
        await carry_out(self._backend, [Delete(key) for key in await leftovers(self._backend)], self.check)
        if self._before is None:
            await carry_out(self._backend, [Delete(STATE)], self.check)
        elif self._before.state in HOLDS_STATE:
            await write_charge(self._writer, self._before, self._revision)

    async def _make_held(self, decide: Decide, was: Charge, revision: Revision) -> None:
        if was.state is State.FROZEN:
            if await self._backend.get(DRIVER) is not None:
                raise CannotMove("somebody else is about to fill this store, or to move out of it; try again")
            was = self._before = was.given_up(HELD)
        session = await self._backend.open_session(self._ttl_ms)
        try:
            driver = Put(DRIVER, self._move.encode(), session)
            held = await write_charge(self._writer, was.frozen(), revision, driver)
            try:
                charge = decide(was, await _keys(self._backend))
            except Exception:
                with suppress(PreconditionFailed):  # others thought us gone
                    await write_charge(self._writer, was, held, Delete(DRIVER))
                raise
            self._revision = await write_charge(self._writer, charge, held, Delete(DRIVER))
            self._charge = charge
        finally:
            with suppress(CoordinationError):  # it ends by itself
                await session.close()

    async def _find(self) -> bool:
        """Whether the store bears our claim, whose answer may have been lost."""
        if self._revision is None:
            charge, revision = await read_charge(self._backend)
            if charge.move == self._move and charge.state is State.CLAIMED:
                self._revision = revision
        return self._revision is not None


async def _keys(backend: Backend) -> list[Entry]:
    return [each for each in await everything(backend) if not each.key.startswith(FOLDER)]
