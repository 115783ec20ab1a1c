"""The conformance harness for the memory store: peers are tasks, and the store itself injects the faults."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from parley.consensus.backend import Backend
from parley.consensus.conformance.harness import Harness, Peer
from parley.consensus.conformance.tasks import TaskPeer
from parley.consensus.errors import CoordinationError
from parley.consensus.memory import MemoryBackend, MemoryStore


class MemoryHarness(Harness):
    """The harness for ``memory:``. Override ``new_store`` and ``new_client`` to try the kit on a modified store."""

    def __init__(self) -> None:
        self._store: MemoryStore | None = None
        self._rng = random.Random(0)
        self._clients: list[MemoryBackend] = []
        self._true_time: tuple[Callable[[], float], Callable[[], int]] | None = None

    def new_store(self) -> MemoryStore:
        """Return a fresh store."""
        return MemoryStore()

    def new_client(self, store: MemoryStore) -> MemoryBackend:
        """Return a client of the store."""
        return MemoryBackend(store)

    async def start(self) -> None:
        self._store = self.new_store()

    async def stop(self) -> None:
        await self.move_wall_clock(0)
        for client in self._clients:
            with suppress(CoordinationError):
                await client.close()
        self._clients.clear()
        self._store = None

    @property
    def store(self) -> MemoryStore:
        """The started store."""
        assert self._store is not None
        return self._store

    def client(self) -> Backend:
        self._clients.append(self.new_client(self.store))
        return self._clients[-1]

    async def peer(self, role: str, arguments: Mapping[str, Any]) -> Peer:
        client = self.new_client(self.store)
        self._clients.append(client)
        client.delay_s = lambda: self._rng.choice((0.0, 0.0, 0.0005))  # so that peers take turns
        await client.open()
        return TaskPeer(client, role, arguments, client.disconnect, client.reconnect)

    async def cut(self, client: Backend) -> None:
        _memory(client).disconnect()

    async def restore(self, client: Backend) -> None:
        if not _memory(client).connected:
            _memory(client).reconnect()

    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        _memory(client).lose_next_response(applied=applied)

    async def wipe(self) -> None:
        self.store.wipe()

    async def restart(self) -> None:
        for client in self._clients:
            client.disconnect()
        for client in self._clients:
            client.reconnect()

    async def move_wall_clock(self, seconds: float) -> None:
        true_time, true_time_ns = self._true_time = self._true_time or (time.time, time.time_ns)
        if seconds:
            time.time = lambda: true_time() + seconds
            time.time_ns = lambda: true_time_ns() + round(seconds * 1e9)
        else:
            time.time, time.time_ns = true_time, true_time_ns
            self._true_time = None


def _memory(client: Backend) -> MemoryBackend:
    assert isinstance(client, MemoryBackend)
    return client
