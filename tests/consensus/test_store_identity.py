"""The identity of a store: reading it, giving it to an empty store, and rejecting an unexpected one."""

from __future__ import annotations

import random

import pytest

from parley.consensus.errors import Unavailable, WrongStore
from parley.consensus.store_identity import new_identity, open_identity, require_identity


class Storage:
    """A store in memory. ``faster`` is the identity that another client writes first; ``loses`` drops the write."""

    place = "somewhere"

    def __init__(self, identity: str | None = None, *, faster: str | None = None, loses: bool = False) -> None:
        self.identity = identity
        self.faster = faster
        self.loses = loses

    async def read_identity(self) -> str | None:
        return self.identity

    async def initialize(self, identity: str) -> None:
        if not self.loses:
            self.identity = self.faster or identity


async def test_an_empty_store_gets_a_random_identity() -> None:
    storage = Storage()
    assert await open_identity(storage, None, random.Random(0)) == storage.identity == new_identity(random.Random(0))


async def test_a_store_keeps_its_identity() -> None:
    assert await open_identity(Storage("a"), None, random.Random(0)) == "a"
    assert await open_identity(Storage("a"), "a", random.Random(0)) == "a"


async def test_a_client_accepts_the_identity_that_another_client_gave_first() -> None:
    assert await open_identity(Storage(faster="theirs"), None, random.Random(0)) == "theirs"


async def test_another_store_than_the_expected_one_is_refused() -> None:
    with pytest.raises(WrongStore, match="expected the store b at somewhere, found a") as caught:
        await open_identity(Storage("a"), "b", random.Random(0))
    assert caught.value.found == "a"


async def test_an_empty_store_is_not_initialized_if_a_certain_one_is_expected() -> None:
    storage = Storage()
    with pytest.raises(WrongStore, match="found none") as caught:
        await open_identity(storage, "b", random.Random(0))
    assert (caught.value.found, storage.identity) == (None, None)


async def test_a_store_that_was_not_created_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="somewhere"):
        await open_identity(Storage(loses=True), None, random.Random(0))


def test_a_place_without_a_store_is_refused() -> None:
    with pytest.raises(WrongStore, match="expected a store at here, found none"):
        require_identity(None, None, "here")
