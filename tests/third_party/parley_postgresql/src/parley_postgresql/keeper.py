"""Listens for changes over one connection, and checks all sessions periodically.

A session is ended if its counter has not changed for its TTL since this client first saw that value, and the store
still has the value then. Only this process's monotonic clock counts, from a moment after the owner's last renewal: so
the measured time is never longer than the true one. A client that was itself stopped or cut off starts measuring again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from parley.consensus.errors import CoordinationError, Retriable, WrongStore
from parley_postgresql.address import Address
from parley_postgresql.connection import REQUEST_S, Lane, NotSent, Row
from parley_postgresql.schema import Statements, channel

LOOK_S_MAX = 3.0
LOOKS_PER_TTL = 4
_RETRY_S = 0.05


class Client(Protocol):
    """What a keeper calls on its client."""

    def on_up(self) -> None:
        """Changes are reported from now on; earlier ones may have been missed."""

    def on_down(self) -> None:
        """Changes are no longer reported."""

    def on_news(self, keys: Sequence[str] | None) -> None:
        """These keys have changed; None: any key may have changed."""

    def own_sessions(self) -> frozenset[str]:
        """The ids of this client's sessions."""

    def on_over(self, session_id: str) -> None:
        """One of these sessions is no longer in the store."""

    def heed(self, row: Row, reached: int) -> None:
        """Check the identity and the revision in a response. Raises WrongStore if it is from another store."""

    @property
    def reached(self) -> int:
        """The highest revision seen."""

    @property
    def identity(self) -> str:
        """The identity of the store."""

    def on_wrong(self, error: CoordinationError) -> None:
        """The store has been replaced, or refuses this client."""


@dataclass(frozen=True, slots=True)
class _Seen:
    beat: int
    deadline: float


class Keeper:
    """Listens for changes and ends silent sessions, until it is closed."""

    def __init__(self, client: Client, address: Address, statements: Statements) -> None:
        self._client = client
        self._lane = Lane(address)
        self._channel = channel(address.schema)
        self._statements = statements
        self._seen: Mapping[str, _Seen] = {}
        self._look_now = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="postgresql keeper")

    async def close(self) -> None:
        """Stop the keeper."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._lane.drop()

    async def _keep(self) -> None:
        while True:
            up = False
            try:
                await self._lane.listen(self._channel, self._on_notice, lambda _: self._look_now.set())
                up = True
                self._client.on_up()
                await self._look_on()
            except (Retriable, NotSent):
                pass
            except CoordinationError as error:
                self._client.on_wrong(error)
                if isinstance(error, WrongStore):
                    return
            finally:
                self._lane.drop()
                if up:
                    self._client.on_down()
            await asyncio.sleep(_RETRY_S)

    def _on_notice(self, connection: Any, pid: int, of: str, payload: str) -> None:
        if not payload:
            self._look_now.set()
        else:
            self._client.on_news(None if payload == "*" else payload.split(" "))

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        self._seen = {}
        while True:
            next_at = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_at):
                    await self._look_now.wait()
            if loop.time() > next_at + LOOK_S_MAX:
                self._seen = {}  # this process was stopped: measure again
            self._look_now.clear()

    async def _look(self) -> float:
        """Look at all sessions, and end the silent ones. Returns the loop time of the next look."""
        loop = asyncio.get_running_loop()
        own, reached = self._client.own_sessions(), self._client.reached
        rows = await self._lane.ask(self._statements.look, (), loop.time() + REQUEST_S, writes=False)
        self._client.heed(rows[0] if rows else None, reached)
        now = loop.time()
        found = {row["id"]: row for row in rows if row["id"] is not None}
        for session_id in own - found.keys():
            self._client.on_over(session_id)
        for session_id, seen in self._seen.items():
            row = found.get(session_id)
            if row is not None and row["beat"] == seen.beat and seen.deadline <= now:
                await self._end(session_id, seen.beat)
                del found[session_id]
        self._seen = {session_id: self._still(row, now) for session_id, row in found.items()}
        look_s = min([LOOK_S_MAX, *(row["ttl_ms"] / 1000 / LOOKS_PER_TTL for row in found.values())])
        next_at: float = min([now + look_s, *(seen.deadline for seen in self._seen.values())])
        return next_at

    def _still(self, row: Row, now: float) -> _Seen:
        seen = self._seen.get(row["id"])
        if seen is not None and seen.beat == row["beat"]:
            return seen
        return _Seen(row["beat"], now + row["ttl_ms"] / 1000)

    async def _end(self, session_id: str, beat: int) -> None:
        arguments = (self._client.identity, self._client.reached, session_id, beat)
        deadline = asyncio.get_running_loop().time() + REQUEST_S
        await self._lane.ask(self._statements.end_session, arguments, deadline, writes=False)
