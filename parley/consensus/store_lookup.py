"""From the address in a configuration to the store that is in charge now.

A store that has moved on names the next one, and one that is being filled, or was to be, names the one it is filled
from: so whoever knows any store of a cluster finds the one in charge, however many moves it slept through. On the way
a store is taken into charge whose move was committed and not finished (see ``parley.consensus.store_in_charge``).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from parley.consensus.backend import Backend, Revision
from parley.consensus.errors import PreconditionFailed, WrongStore
from parley.consensus.recipes.settled_write import Writer
from parley.consensus.registry import Open
from parley.consensus.store_in_charge import (
    HOLDS_STATE,
    MOVED_HERE,
    Charge,
    Place,
    State,
    StoreInCharge,
    read_charge,
    write_charge,
)

HOPS_MAX = 64
"""Stores looked at before the search is given up: nobody moves that often, they must go round in circles."""


async def find_store(
    url: str, open_url: Open, *, known: Sequence[str] = (), rng: random.Random | None = None
) -> StoreInCharge:
    """The store in charge, opened, beginning with the store at ``url``. An empty store there begins a new cluster.

    :param known: the identities of the stores that the caller's data belongs to, latest first. With some, the store
        found is the latest of them, or one that took over from it.
    :raises WrongStore: it is neither; or a store on the way is not the one it should be.
    :raises CoordinationError: as ``Backend.open``, of a store on the way.
    """
    opened = [await (open_existing(url, open_url, expected=known[0]) if known else _opened(await open_url(url), None))]
    found: Backend | None = None
    try:
        place, charge = await _follow(Place(url, opened[0].identity), opened, open_url)
        if known and known[0] not in (*charge.past, *(each.identity for each in opened)):
            raise WrongStore(f"expected the store {known[0]}, found {place.identity}", found=place.identity)
        found = opened[-1]
        return StoreInCharge(found, place.url, rng, term=charge.term)
    finally:
        for each in opened:
            if each is not found:
                await each.close()


async def follow_on(store: StoreInCharge, open_url: Open, *, rng: random.Random | None = None) -> StoreInCharge:
    """The store in charge, found from one that was; that one stays open.

    :raises CoordinationError: as :func:`find_store`.
    """
    opened = [store.backend]
    found: Backend | None = None
    try:
        place, charge = await _follow(store.place, opened, open_url)
        found = opened[-1]
        return StoreInCharge(found, place.url, rng, term=charge.term)
    finally:
        for each in opened[1:]:
            if each is not found:
                await each.close()


async def open_existing(url: str, open_url: Open, *, expected: str = "any that is there") -> Backend:
    """A store as it is found, opened, whichever it is; an empty one is refused, and stays empty.

    :param expected: the identity it probably has; with another one it only takes longer.
    :raises WrongStore: there is none.
    """
    backend = await open_url(url)
    try:
        return await _opened(backend, expected)
    except WrongStore as wrong:
        if wrong.found is None:
            raise WrongStore("nothing of Parley's is stored there") from wrong
        return await _opened(await open_url(url), wrong.found)


async def _opened(backend: Backend, identity: str | None) -> Backend:
    try:
        await backend.open(expect_identity=identity)
    except BaseException:
        await backend.close()
        raise
    return backend


async def _follow(place: Place, opened: list[Backend], open_url: Open) -> tuple[Place, Charge]:
    """Go from store to store, beginning with the last one opened, until it is the one in charge."""
    before: Charge | None = None
    while True:
        charge, revision = await read_charge(opened[-1])
        if _is_due(charge, before):
            charge = await _take(opened[-1], charge, revision)
        if charge.state in HOLDS_STATE:
            return place, charge
        if charge.other is None or len(opened) == HOPS_MAX:
            raise WrongStore(f"the store {place.identity} is {charge.state.value}, and does not lead to one in charge")
        place, before = charge.other, charge
        opened.append(await _opened(await open_url(place.url), place.identity))


def _is_due(charge: Charge, before: Charge | None) -> bool:
    """Whether a claimed store is in charge, by the tombstone that led to it."""
    return (
        charge.state is State.CLAIMED
        and before is not None
        and before.state is State.MOVED
        and before.move == charge.move
    )


async def _take(backend: Backend, charge: Charge, revision: Revision | None) -> Charge:
    """Enter into the record of a store that it is in charge, as is decided already."""
    try:
        await write_charge(Writer(backend), charge.taken(MOVED_HERE), revision)
    except PreconditionFailed:
        return (await read_charge(backend))[0]  # somebody else did, or has moved on since
    return charge.taken(MOVED_HERE)
