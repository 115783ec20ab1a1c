"""Trimming of the change log: the client that adds every 128th entry deletes the old entries."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Delete, GetChildren

from parley.consensus.errors import CoordinationError
from parley.consensus.zookeeper.connection import Connection, ResponseLost
from parley.consensus.zookeeper.key_layout import KeyLayout, number_of

_KEPT = 1024
_EVERY = 128


class ChangeLogTrimmer:
    """Deletes the oldest entries of the log. A client that has not read them restarts its watches with Snapshots."""

    def __init__(self, connection: Connection, layout: KeyLayout) -> None:
        self._connection = connection
        self._layout = layout

    def is_due(self, entry: int) -> bool:
        """Return True if the writer of this entry must trim the log."""
        return entry >= _KEPT and entry % _EVERY == 0

    async def trim(self, entry: int) -> None:
        """Delete the entries that are more than ``_KEPT`` before this one. Ignores errors: the next trimming deletes
        what is left."""
        with suppress(CoordinationError, KazooException, ResponseLost):
            names = await self._connection.call(GetChildren(self._layout.log, None), 0)
            old = [name for name in names if number_of(name) < entry - _KEPT]
            for start in range(0, len(old), 32):
                calls = (self._delete(name) for name in old[start : start + 32])
                await asyncio.gather(*calls)

    async def _delete(self, name: str) -> None:
        with suppress(CoordinationError, KazooException, ResponseLost):
            await self._connection.call(Delete(f"{self._layout.log}/{name}", -1), 0)
