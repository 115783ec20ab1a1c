"""A watch: a Snapshot, then the keys that the change feed reports, read when the consumer requests the next event.

It keeps names, not values: the changed keys not yet delivered, and the delivered keys bound to a session, because the
change log does not contain the ends of sessions. ZooKeeper's own watches are in ``rearmed_watches.py``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from parley.consensus.backend import Changed, Event, Removed, Snapshot, Watch
from parley.consensus.errors import Closed, Retriable
from parley.consensus.zookeeper.change_feed import ChangeFeed
from parley.consensus.zookeeper.consistent_reads import Range, Reader, State, Stored

_CHUNK_BYTES = 1 << 20
_CHUNK_MIN, _CHUNK_MAX = 8, 500
_RETRY_S = 0.1


class ZookeeperWatch(Watch):
    """The watch of one prefix in ZooKeeper.

    It calls ``on_dead`` with keys whose sessions have ended, and ``on_close`` when it is closed.
    """

    def __init__(
        self,
        prefix: str,
        reader: Reader,
        feed: ChangeFeed,
        on_dead: Callable[[list[str]], None],
        on_close: Callable[[ZookeeperWatch], None],
    ) -> None:
        self._prefix = prefix
        self._reader = reader
        self._feed = feed
        self._on_dead = on_dead
        self._on_close = on_close
        self._woken = asyncio.Event()
        self._closed = False
        self._events: deque[Event] = deque()
        self._cursor: int | None = None
        self._reads = -1
        self._from = 0  # log entries below this number are in the Snapshot
        self._changed: dict[str, None] = {}
        self._bound: dict[str, tuple[str, int]] = {}  # session and write of each delivered key that is bound
        self._seen: dict[str, int] = {}  # delivered writes that the feed has not reached yet
        self._size = _CHUNK_BYTES // 32

    def wake(self) -> None:
        """Look for changes again."""
        self._woken.set()

    def end(self) -> None:
        """End the watch, because the backend was closed. Takes effect at the next ``wake``."""
        self._closed = True

    async def close(self) -> None:
        self._closed = True
        self._on_close(self)
        self.wake()

    async def _next(self) -> Event:
        while True:
            if self._closed:
                raise Closed("the watch is closed")
            if self._feed.error is not None:
                raise self._feed.error
            if self._events:
                return self._events.popleft()
            self._woken.clear()
            try:
                if not await self._progress():
                    await self._woken.wait()
            except Retriable:
                await asyncio.sleep(_RETRY_S)

    async def _progress(self) -> bool:
        """Take the next step towards an event. Returns False if there is nothing to do."""
        feed = self._feed
        if self._cursor is None or self._cursor < feed.base:
            if not feed.following.is_set():
                return False
            await self._take_snapshot()
            return True
        if not self._changed and (self._cursor != feed.end or self._reads != feed.reads):
            self._collect_changes()
        if not self._changed:
            return False
        await self._read_changed()
        return True

    async def _take_snapshot(self) -> None:
        cursor, reads = self._feed.end, self._feed.reads
        found: Range = await self._reader.range(self._prefix, fresh=True)
        self._cursor, self._reads, self._from = cursor, reads, found.position
        self._changed.clear()
        self._seen.clear()
        bound = [(stored.key, stored.owner, stored.stat.mzxid) for stored in found.stored]
        self._bound = {key: (owner, mzxid) for key, owner, mzxid in bound if owner is not None}
        self._events.append(Snapshot(tuple(stored.entry() for stored in found.stored)))
        if found.dead:
            self._on_dead(found.dead)

    def _collect_changes(self) -> None:
        feed = self._feed
        assert self._cursor is not None
        last = 0
        for change in feed.since(self._cursor):
            last = change.mzxid
            if change.number < self._from:
                continue
            for key in change.keys:
                if key.startswith(self._prefix) and self._seen.get(key, 0) < change.mzxid:
                    self._changed[key] = None
        self._cursor, self._reads = feed.end, feed.reads
        self._seen = {key: mzxid for key, mzxid in self._seen.items() if mzxid > last}
        self._changed.update((key, None) for key, (owner, _) in self._bound.items() if owner not in feed.sessions)

    async def _read_changed(self) -> None:
        count = max(_CHUNK_MIN, min(_CHUNK_BYTES // self._size, _CHUNK_MAX))
        keys = list(self._changed)[:count]
        state: State = await self._reader.state(keys, fresh=False)
        sizes = [len(stored.value) + 100 for stored in state.keys.values() if stored is not None]
        self._size = max(sizes, default=self._size)
        for key in keys:
            del self._changed[key]
            self._add_event(key, state.keys[key])

    def _add_event(self, key: str, stored: Stored | None) -> None:
        known = self._bound.pop(key, None)
        if stored is None or not stored.alive:
            self._events.append(Removed(key))
            return
        mzxid = stored.stat.mzxid
        if stored.owner is not None:
            self._bound[key] = (stored.owner, mzxid)
        if known is None or known[1] != mzxid:
            self._seen[key] = mzxid
            self._events.append(Changed(stored.entry()))
