"""The conformance harness for the embedded store. Peers are processes; faults are injected between a client and SQLite
or the disk."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parley.consensus.backend import Backend
from parley.consensus.conformance.processes import ProcessHarness
from parley.consensus.errors import MaybeApplied, Unavailable
from parley.consensus.local import LocalBackend
from parley.consensus.local.database import Database


class LocalHarness(ProcessHarness):
    """The harness for ``local:``, with the store in a temporary directory."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[Backend] = []

    @property
    def url(self) -> str:
        return f"local://{self.directory}/coordination"

    @property
    def backend(self) -> str:
        return "parley.consensus.local:LocalBackend"

    def client(self) -> Backend:
        client = super().client()
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        self._clients.clear()
        await super().stop()

    async def cut(self, client: Backend) -> None:
        _faults(client).cut = True

    async def restore(self, client: Backend) -> None:
        if _database(client) is not None:
            _faults(client).cut = False

    async def lose_response(self, client: Backend, *, applied: bool) -> None:
        _faults(client).lose = applied

    async def wipe(self) -> None:
        shutil.rmtree(self.directory / "coordination")

    async def restart(self) -> None:
        """Disconnect all clients briefly, because there is no server, and let SQLite move its log into the file."""
        opened = [client for client in self._clients if _database(client) is not None]
        for client in opened:
            await self.cut(client)
        with sqlite3.connect(Path(self.directory, "coordination", "store.db")) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        for client in opened:
            await self.restore(client)


@dataclass(slots=True)
class _Faults:
    """The faults between a client and its file."""

    execute: Callable[..., tuple[Sequence[Any], int]]
    sync: Callable[[], None]
    cut: bool = False
    lose: bool | None = None
    _lost: bool = False

    def faulty_execute(self, sql: str, parameters: Sequence[Any], *, writing: bool) -> tuple[Sequence[Any], int]:
        if self.cut:
            raise Unavailable("cut off")
        if "INTO request" in sql and self.lose is not None:
            applied, self.lose = self.lose, None
            if not applied:
                raise MaybeApplied("the disk failed while writing")
            self._lost = True
        return self.execute(sql, parameters, writing=writing)

    def faulty_sync(self) -> None:
        self.sync()
        if self._lost:
            self._lost = False
            raise MaybeApplied("the disk failed while syncing")


def _database(client: Backend) -> Database | None:
    assert isinstance(client, LocalBackend)
    return client._thread._database if client._thread is not None else None


def _faults(client: Backend) -> _Faults:
    database = _database(client)
    assert database is not None
    execute: Any = database._execute
    if not isinstance(found := getattr(execute, "__self__", None), _Faults):
        found = _Faults(execute, database.sync)
        database._execute = found.faulty_execute  # type: ignore[method-assign]
        database.sync = found.faulty_sync  # type: ignore[method-assign]
    return found
