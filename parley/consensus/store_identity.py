"""Finds the identity of the store that a backend opens, or gives an identity to an empty store. All backends share this
procedure.

Every backend with a server provides an ``IdentityStorage``. A backend without a server calls ``require_identity``.
"""

from __future__ import annotations

import random
from typing import Protocol

from parley.consensus.errors import Unavailable, WrongStore


class IdentityStorage(Protocol):
    """Reads and writes the identity of one kind of store."""

    @property
    def place(self) -> str:
        """The location of the store, for error messages."""

    async def read_identity(self) -> str | None:
        """Return the identity, or None if the location is empty.

        Raises BadConfig if the location contains something other than a Parley store.
        """

    async def initialize(self, identity: str) -> None:
        """Create an empty store with this identity. Does nothing if another client has just created one."""


async def open_identity(storage: IdentityStorage, expected: str | None, rng: random.Random) -> str:
    """Return the identity of the store. An empty location becomes a new store, unless a particular store is expected.

    Raises WrongStore if the store is not the expected one, or if there is none although one is expected. Raises
    Unavailable if the store could not be created, or was deleted immediately afterwards.
    """
    found = await storage.read_identity()
    if found is None and expected is None:
        await storage.initialize(new_identity(rng))
        found = await storage.read_identity()
        if found is None:
            raise Unavailable(f"could not create a store at {storage.place}, or it was deleted immediately; try again")
    return require_identity(found, expected, storage.place)


def require_identity(found: str | None, expected: str | None, place: str) -> str:
    """Return the identity that was found at a location. If ``expected`` is None, any identity is accepted.

    Raises WrongStore if there is no identity, or not the expected one.
    """
    if found is None or expected not in (None, found):
        raise wrong_store(found, expected, place)
    return found


def wrong_store(found: str | None, expected: str | None, place: str) -> WrongStore:
    """Return the error for a location that contains a store other than the expected one, or no store (``found`` is
    None)."""
    wanted = f"the store {expected}" if expected is not None else "a store"
    return WrongStore(f"expected {wanted} at {place}, found {found or 'none'}", found=found)


def new_identity(rng: random.Random) -> str:
    """Return a random name for a store: 32 hexadecimal digits."""
    return f"{rng.getrandbits(128):032x}"
