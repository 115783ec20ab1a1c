"""Keeping the log short: whoever adds every so many-th entry deletes the old ones."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Delete, GetChildren

from parley.consensus.errors import CoordinationError
from parley.consensus.zookeeper.connection import Connection, LostAnswer
from parley.consensus.zookeeper.key_layout import Layout, number_of

_KEPT = 1024
_EVERY = 128


class Trimmer:
    """Deletes entries that are far behind the end; a client that had not read them begins anew with Snapshots."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
        self._layout = layout

    def due(self, entry: int) -> bool:
        """Whether the writer of this entry has to trim."""
        return entry >= _KEPT and entry % _EVERY == 0

    async def trim(self, entry: int) -> None:
        """Delete what is old as seen from this entry. What fails is left to the next one."""
        with suppress(CoordinationError, KazooException, LostAnswer):
            names = await self._connection.call(GetChildren(self._layout.log, None), 0)
            old = [name for name in names if number_of(name) < entry - _KEPT]
            for start in range(0, len(old), 32):
                calls = (self._delete(name) for name in old[start : start + 32])
                await asyncio.gather(*calls)

    async def _delete(self, name: str) -> None:
        with suppress(CoordinationError, KazooException, LostAnswer):
            await self._connection.call(Delete(f"{self._layout.log}/{name}", -1), 0)
