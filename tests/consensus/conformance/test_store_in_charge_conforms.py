"""Runs the conformance kit on a store in charge: callers do not notice the store record and its check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from parley.consensus.backend import Backend
from parley.consensus.conformance.harness import Peer
from parley.consensus.conformance.lab import Check
from parley.consensus.conformance.runner import all_checks, run_check
from parley.consensus.conformance.stores.memory import MemoryHarness
from parley.consensus.conformance.tasks import TaskPeer
from parley.consensus.store_move.store_in_charge import StoreInCharge

PARTS = ("history", "ambiguous", "election", "group")
"""The checks to run. The other checks list whole stores, so they would find the store record."""
CHECKS = [check for check in all_checks() if check.name.partition("-")[0] in PARTS and check.run is not None]


class ChargeHarness(MemoryHarness):
    """A harness whose clients are stores in charge."""

    def client(self) -> Backend:
        return StoreInCharge(super().client(), "memory:")

    async def cut(self, client: Backend) -> None:
        await super().cut(_below(client))

    async def restore(self, client: Backend) -> None:
        await super().restore(_below(client))

    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        await super().lose_response(_below(client), applied=applied)

    async def peer(self, role: str, arguments: Mapping[str, Any]) -> Peer:
        client = self.new_client(self.store)
        self._clients.append(client)
        client.delay_s = lambda: self._rng.choice((0.0, 0.0, 0.0005))
        store = StoreInCharge(client, "memory:")
        await store.open()
        return TaskPeer(store, role, arguments, client.disconnect, client.reconnect)


def _below(client: Backend) -> Backend:
    assert isinstance(client, StoreInCharge)
    return client.backend


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_it_keeps_the_promises_of_stores(check: Check) -> None:
    run_check(check, ChargeHarness())
