"""From the address in a configuration to the store that is in charge now.

A store that has moved on names the next one, and one that is being filled, or was to be, names the one it is filled
from: so whoever knows any store of a cluster finds the one in charge, however many moves it slept through. On the way
a store is taken into charge whose move was committed and not finished (see ``parley.consensus.store_record``).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from parley.consensus.backend import Backend, Revision
from parley.consensus.errors import EmptyStore, PreconditionFailed, WrongStore
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import BackendFactory
from parley.consensus.store_in_charge import StoreInCharge
from parley.consensus.store_record import (
    IN_CHARGE_STATES,
    MOVED_HERE,
    StoreLocation,
    StoreRecord,
    StoreState,
    read_record,
    write_record,
)

HOPS_MAX = 64
"""Stores looked at before the search is given up: nobody moves that often, they must go round in circles."""


async def find_store(
    url: str, backend_at: BackendFactory, *, known: Sequence[str] = (), rng: random.Random | None = None
) -> StoreInCharge:
    """The store in charge, opened, beginning with the store at ``url``. An empty store there begins a new cluster.

    :param known: the identities of the stores that the caller's data belongs to, latest first. With some, the store
        found is the latest of them, or one that took over from it.
    :raises WrongStore: it is neither; or a store on the way is not the one it should be.
    :raises CoordinationError: as ``Backend.open``, of a store on the way.
    """
    opened = [
        await (open_existing(url, backend_at, expected=known[0]) if known else _opened(await backend_at(url), None))
    ]
    found: Backend | None = None
    try:
        location, record = await _follow(StoreLocation(url, opened[0].identity), opened, backend_at)
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
    """The store in charge, found from one that was; that one stays open.

    :raises CoordinationError: as :func:`find_store`.
    """
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
    """A store as it is found, opened, whichever it is; an empty one is refused, and stays empty.

    :param expected: the identity it probably has; with another one it only takes longer.
    :raises WrongStore: there is none.
    """
    backend = await backend_at(url)
    try:
        return await _opened(backend, expected)
    except WrongStore as wrong:
        if wrong.found is None:
            raise EmptyStore("nothing of Parley's is stored there") from wrong
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
    """Go from store to store, beginning with the last one opened, until it is the one in charge."""
    before: StoreRecord | None = None
    while True:
        record, revision = await read_record(opened[-1])
        if _is_due(record, before):
            record = await _take(opened[-1], record, revision)
        if record.state in IN_CHARGE_STATES:
            return location, record
        if record.other is None or len(opened) == HOPS_MAX:
            raise WrongStore(
                f"the store {location.identity} is {record.state.value}, and does not lead to one in charge"
            )
        location, before = record.other, record
        opened.append(await _opened(await backend_at(location.url), location.identity))


def _is_due(record: StoreRecord, before: StoreRecord | None) -> bool:
    """Whether a claimed store is in charge, by the tombstone that led to it."""
    return (
        record.state is StoreState.CLAIMED
        and before is not None
        and before.state is StoreState.MOVED
        and before.move == record.move
    )


async def _take(backend: Backend, record: StoreRecord, revision: Revision | None) -> StoreRecord:
    """Enter into the record of a store that it is in charge, as is decided already."""
    try:
        await write_record(Writer(backend), record.taken(MOVED_HERE), revision)
    except PreconditionFailed:
        return (await read_record(backend))[0]  # somebody else did, or has moved on since
    return record.taken(MOVED_HERE)
