"""Finds the store that is in charge, starting from the address in a configuration.

A store that a cluster has left names the next store, and a claimed store names the store from which it is filled. So a
broker that knows any store of a cluster finds the store in charge, however many moves it has missed. If a move was
committed but its new store does not yet contain that information, the search records it there
(``parley.consensus.store_move.store_record``).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from parley.consensus.backend import Backend
from parley.consensus.errors import DamagedStore, EmptyStore, PreconditionFailed, WrongStore
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import BackendFactory
from parley.consensus.store_move.store_in_charge import StoreInCharge
from parley.consensus.store_move.store_record import (
    IN_CHARGE_STATES,
    MOVED_HERE,
    StoredRecord,
    StoreEvent,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)

HOPS_MAX = 64
"""The maximum number of stores to visit. No cluster moves that often: if more stores must be visited, their records
form a cycle."""


async def find_store(
    url: str, backend_at: BackendFactory, *, known: Sequence[str] = (), rng: random.Random | None = None
) -> StoreInCharge:
    """Find and open the store in charge, starting at ``url``. If the store there is empty, a new cluster starts in it.

    :param known: the identities of the stores to which the caller's data belongs, latest first. The store found must
        then be the latest of them, or a store that took over from it.

    Raises WrongStore if the store found is neither of these, if a store on the way does not have the identity by which
    it was named, or if no store on the way is in charge. Also raises the errors of ``backend_at`` and ``Backend.open``.
    """
    if known:
        first = await open_existing(url, backend_at, expected=known[0])
    else:
        first = await _opened(await backend_at(url), None)
    opened = [first]
    found: Backend | None = None
    try:
        location, record = await _follow(StoreLocation(url, first.identity), opened, backend_at)
        if known and known[0] not in (*record.past, *(each.identity for each in opened)):
            raise WrongStore(f"expected the store {known[0]}, found {location.identity}", found=location.identity)
        found = opened[-1]
        return StoreInCharge(found, location.url, rng, term=record.term)
    finally:
        for each in opened:
            if each is not found:
                await each.close()


async def find_successor(
    store: StoreInCharge, backend_at: BackendFactory, *, rng: random.Random | None = None
) -> StoreInCharge:
    """Find the store in charge, starting from a store that was in charge before and remains open. Raises the same
    errors as ``find_store``."""
    opened = [store.backend]
    found: Backend | None = None
    try:
        location, record = await _follow(store.location, opened, backend_at)
        found = opened[-1]
        return StoreInCharge(found, location.url, rng, term=record.term)
    finally:
        for each in opened[1:]:
            if each is not found:
                await each.close()


async def open_existing(url: str, backend_at: BackendFactory, *, expected: str = "any that is there") -> Backend:
    """Open the store at an address, regardless of its identity. An empty store stays empty.

    :param expected: the identity that the store probably has. If it has another identity, opening takes longer.

    Raises EmptyStore if there is no store, DamagedStore if the store cannot be read, and the errors of ``backend_at``
    and ``Backend.open``.
    """
    backend = await backend_at(url)
    try:
        return await _opened(backend, expected)
    except DamagedStore:
        raise
    except WrongStore as wrong:
        if wrong.found is None:
            raise EmptyStore("it contains no Parley data") from wrong
        return await _opened(await backend_at(url), wrong.found)


async def _opened(backend: Backend, identity: str | None) -> Backend:
    try:
        await backend.open(expect_identity=identity)
    except BaseException:
        await backend.close()
        raise
    return backend


async def _follow(
    location: StoreLocation, opened: list[Backend], backend_at: BackendFactory
) -> tuple[StoreLocation, StoreRecord]:
    """Go from store to store, starting with the last one in ``opened``, until the store in charge is found."""
    before: StoreRecord | None = None
    while True:
        stored = await read_record(opened[-1])
        record = stored.record
        if _is_due(record, before):
            record = await _take(opened[-1], stored)
        if record.state in IN_CHARGE_STATES:
            return location, record
        if record.other is None or len(opened) == HOPS_MAX:
            state = record.state.value
            raise WrongStore(f"the store {location.identity} is {state}, and names no store that is in charge")
        location, before = record.other, record
        opened.append(await _opened(await backend_at(location.url), location.identity))


def _is_due(record: StoreRecord, before: StoreRecord | None) -> bool:
    """Return True if a claimed store is actually in charge, according to the tombstone that led to it."""
    return (
        record.state is StoreState.CLAIMED
        and before is not None
        and before.state is StoreState.MOVED
        and before.move == record.move
    )


async def _take(backend: Backend, claimed: StoredRecord) -> StoreRecord:
    """Record that a claimed store is in charge, as the commit of its move has already decided."""
    taken = claimed.record.taken(MOVED_HERE)
    try:
        await write_record(Writer(backend), claimed, StoreEvent.TAKE, taken)
    except PreconditionFailed:
        return (await read_record(backend)).record  # another client has recorded this, or the cluster has moved again
    return taken
