"""Which store a backend has opened: find its identity, or give one to an empty store. One procedure for all backends.

Every backend with a server provides an ``IdentityStorage``. A backend without one calls ``require_identity``.
"""

from __future__ import annotations

import random
from typing import Protocol

from parley.consensus.errors import Unavailable, WrongStore


class IdentityStorage(Protocol):
    """Where one kind of store keeps its identity."""

    @property
    def place(self) -> str:
        """Where the store is, for error messages."""

    async def read_identity(self) -> str | None:
        """Return the identity, or None if nothing is there.

        Raises BadConfig if something other than a store of Parley's is there.
        """

    async def initialise(self, identity: str) -> None:
        """Create an empty store with this identity. Do nothing if another client has just created one."""


async def open_identity(storage: IdentityStorage, expected: str | None, rng: random.Random) -> str:
    """Return the identity of the store. An empty place becomes a new store, unless a certain store is expected.

    Raises WrongStore if the store is not the expected one, or if there is none although one is expected.
    Raises Unavailable if a store was not created, or deleted at once.
    """
    found = await storage.read_identity()
    if found is None and expected is None:
        await storage.initialise(new_identity(rng))
        found = await storage.read_identity()
        if found is None:
            raise Unavailable(f"no store could be created at {storage.place}, or it was deleted at once; try again")
    return require_identity(found, expected, storage.place)


def require_identity(found: str | None, expected: str | None, place: str) -> str:
    """Return the identity that was found at a place; any identity will do if ``expected`` is None.

    Raises WrongStore if there is none, or another one than expected.
    """
    if found is None or expected not in (None, found):
        raise wrong_store(found, expected, place)
    return found


def wrong_store(found: str | None, expected: str | None, place: str) -> WrongStore:
    """The error for a place that holds another store than the expected one, or no store (``found`` is None)."""
    wanted = f"the store {expected}" if expected is not None else "a store"
    return WrongStore(f"expected {wanted} at {place}, found {found or 'none'}", found=found)


def new_identity(rng: random.Random) -> str:
    """A random name for a store: 32 hexadecimal digits."""
    return f"{rng.getrandbits(128):032x}"
