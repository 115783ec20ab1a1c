"""Claims a store, so that a move can fill it, unless another cluster starts to use the store at the same time.

A cluster that starts to use an empty store writes the store's record (``store_record.py``), and every transaction of
the cluster checks it. So a store without a record, or one that is not in charge, can be claimed in one step. A store
whose record shows that it is in charge is *held* (FROZEN) first: its writers wait while the claimant checks again
whether the store is empty, and continue if it is not.

Claims are ordered by ``StoreRecord.begun``; a claim never replaces the claim of a later move. See docs/coordination.md,
"How a cluster moves".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

from parley.consensus.backend import Backend, Check, Delete, Entry, Op, Put
from parley.consensus.errors import CannotMove, CoordinationError, PreconditionFailed
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.store_move.store_copy import carry_out, everything, leftovers
from parley.consensus.store_move.store_record import (
    DRIVER_KEY,
    IN_CHARGE_STATES,
    NO_RECORD,
    RECORD_FOLDER,
    StoredRecord,
    StoreEvent,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)

HELD = "abandoned: the claimant that held this store is dead"

Decide = Callable[[StoreRecord, list[Entry]], StoreRecord]
"""Returns the claim for a store with this record and these keys. Raises if the store must not be claimed."""


class Claim:
    """A claim of one store.

    :param move: an id that no other claim uses.
    :param ttl_ms: how long writers to the store may have to wait if this process dies, in milliseconds.
    """

    def __init__(self, backend: Backend, move: str, *, ttl_ms: int, rng: random.Random, settle_s: float) -> None:
        self._backend = backend
        self._move = move
        self._ttl_ms = ttl_ms
        self._writer = Writer(backend, rng, settle_s)
        self._before = NO_RECORD.record
        """The record to restore if the claim is released."""
        self._sent_over: StoredRecord | None = None
        """The record that the latest write of this claim replaces; None if no write was sent."""
        self._claimed: StoredRecord | None = None
        """The claim, if the store is known to contain it."""

    @property
    def check(self) -> Check:
        """The check that every write to the claimed store must include. Exists only after ``make`` has returned."""
        assert self._claimed is not None
        return self._claimed.unchanged

    async def make(self, decide: Decide) -> None:
        """Claim the store.

        Raises CannotMove if another client was faster, or the error that ``decide`` raises: the store is then
        unchanged. Raises MaybeApplied if the outcome is unknown: ``release`` the claim.
        """
        found = await read_record(self._backend)
        claim = decide(found.record, await _keys(self._backend))
        self._before = found.record
        try:
            if found.state in IN_CHARGE_STATES:
                await self._make_held(decide, found)
            else:
                self._claimed = await self._send(found, StoreEvent.CLAIM, claim)
        except PreconditionFailed as error:
            raise CannotMove("another cluster or another move has just begun to use this store") from error

    async def take(self, note: str) -> None:
        """Record that the store is in charge, as the commit of the move has already decided.

        Raises PreconditionFailed if another client has recorded this; the cluster may have written to the store since.
        """
        assert self._claimed is not None
        await write_record(self._writer, self._claimed, StoreEvent.TAKE, self._claimed.record.taken(note))

    async def release(self) -> None:
        """Empty the store and restore its record. A store that had no record gets the record of a new cluster.

        If the store was CLAIMED or MOVED before, the claim remains, because it directs readers of the store to the
        store in charge. When this returns, a claim that was sent but not observed can no longer arrive.

        Raises Retriable if the store does not respond. In this case call it again, because the claim may still exist or
        arrive. Raises another CoordinationError if another client took the store in the meantime; any data left there
        then has no meaning.
        """
        claimed = await self._find()
        if claimed is None:
            return
        await carry_out(self._backend, [Delete(key) for key in await leftovers(self._backend)], claimed.unchanged)
        if self._before.state in IN_CHARGE_STATES:
            await write_record(self._writer, claimed, StoreEvent.RESTORE, self._before)

    async def _make_held(self, decide: Decide, found: StoredRecord) -> None:
        if found.state is StoreState.FROZEN:
            if await self._backend.get(DRIVER_KEY) is not None:
                raise CannotMove("another move is about to fill this store, or to leave it; try again")
            self._before = found.record.abandoned(HELD)
        session = await self._backend.open_session(self._ttl_ms)
        try:
            driver = Put(DRIVER_KEY, self._move.encode(), session)
            held = await self._send(found, StoreEvent.FREEZE, self._before.frozen(), driver)
            try:
                claim = decide(self._before, await _keys(self._backend))
            except Exception:
                with suppress(PreconditionFailed):  # other clients assumed that this process was dead
                    await write_record(self._writer, held, StoreEvent.RESTORE, self._before, Delete(DRIVER_KEY))
                raise
            self._claimed = await self._send(held, StoreEvent.CLAIM, claim, Delete(DRIVER_KEY))
        finally:
            with suppress(CoordinationError):  # the session expires by itself
                await session.close()

    async def _send(self, before: StoredRecord, event: StoreEvent, record: StoreRecord, *others: Op) -> StoredRecord:
        self._sent_over = before
        return await write_record(self._writer, before, event, record, *others)

    async def _find(self) -> StoredRecord | None:
        """Return the claim if the store contains it, even if the response was lost. If this returns None, the claim can
        no longer arrive.

        If this claimant froze the store without noticing, other clients unfreeze it, as after the death of a claimant.
        """
        while self._claimed is None and self._sent_over is not None:
            found = await read_record(self._backend)
            if found.record.move == self._move and found.state is StoreState.CLAIMED:
                self._claimed = found
            elif found.revision != self._sent_over.revision:
                return None
            else:
                with suppress(PreconditionFailed):  # the claim has just arrived, or another client was faster
                    await write_record(self._writer, found, StoreEvent.RESTORE, self._before)
                    return None
        return self._claimed


async def _keys(backend: Backend) -> list[Entry]:
    return [each for each in await everything(backend) if not each.key.startswith(RECORD_FOLDER)]
