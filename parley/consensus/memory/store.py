"""The server side of the memory store: entries, sessions and the order of changes.

Its methods take effect immediately. Delays, disconnections and lost responses are simulated on the client side.
"""

from __future__ import annotations

import asyncio
import random
import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from contextvars import copy_context
from typing import Protocol, Self

from parley.consensus.backend import (
    Capabilities,
    Changed,
    Check,
    Delete,
    Entry,
    Event,
    Op,
    Page,
    Put,
    Removed,
    Revision,
    Snapshot,
    TxnResult,
    violation,
)
from parley.consensus.errors import BadConfig, SessionLost
from parley.consensus.store_identity import new_identity

CAPABILITIES = Capabilities(
    name="memory",
    key_bytes_max=1024,
    value_bytes_max=1 << 20,
    txn_ops_max=1024,
    txn_bytes_max=8 << 20,
    list_limit_max=10_000,
    ttl_ms_min=10,
    ttl_ms_max=24 * 3600 * 1000,
    expiry_factor_max=1.5,
    crash_seen_ms_max=None,
)


class StoreClient(Protocol):
    """The interface that the store calls on each attached client."""

    @property
    def watches(self) -> int:
        """The number of open watches of the client."""
        ...

    def expired(self, session_id: str) -> None:
        """Handle the end of a session, possibly of another client."""
        ...

    def wiped(self) -> None:
        """Handle the loss of all data. The store has a new identity."""
        ...

    def wake(self) -> None:
        """Record that the content of the store may have changed."""
        ...


_stores: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()


class MemoryStore:
    """The state that all clients of one name share.

    :param capabilities: the limits to enforce; a test may pass the limits of another store.
    :param rng: source of the identity.
    :param removed_max: how many deletions to remember for watches. A watch that is further behind gets a Snapshot.
    """

    def __init__(
        self,
        capabilities: Capabilities = CAPABILITIES,
        rng: random.Random | None = None,
        removed_max: int = 10_000,
    ) -> None:
        self.capabilities = capabilities
        self._rng = rng or random.Random()
        self._removed_max = removed_max
        self.identity = new_identity(self._rng)
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []
        self._sequence = 0
        self._order: dict[str, int] = {}  # key -> sequence of its last change, oldest change first
        self._removed = 0  # the number of keys in _order that are absent
        self._floor = 0  # a watch before this sequence may have missed a deletion
        self._deadlines: dict[str, float] = {}  # session -> loop time
        self._session_count = 0
        self._clients: dict[StoreClient, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._context = copy_context()  # the timer belongs to the server, whichever client's call sets it
        self._loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def named(cls, name: str) -> MemoryStore:
        """Return the store with this name, which is created on first use. It exists while it is referenced."""
        store = _stores.get(name)
        if store is None:
            store = _stores[name] = cls()
        return store

    def known_as(self, name: str) -> Self:
        """Make ``memory://name`` refer to this store while the store is referenced."""
        _stores[name] = self
        return self

    @property
    def sessions(self) -> tuple[str, ...]:
        """The ids of the sessions that have not ended."""
        return tuple(self._deadlines)

    @property
    def watches(self) -> int:
        """The number of open watches of all clients."""
        return sum(client.watches for client in self._clients)

    def expire(self, session_id: str) -> None:
        """End a session as if its TTL had passed: delete its keys, and notify its client if it is connected.

        Does nothing if the session has already ended.
        """
        if self._deadlines.pop(session_id, None) is None:
            return
        for key in [key for key, entry in self._entries.items() if entry.session == session_id]:
            self._remove(key)
        for client in tuple(self._clients):
            self._tell_expired(client, session_id)
        self._wake()

    def _tell_expired(self, client: StoreClient, session_id: str) -> None:
        client.expired(session_id)

    def wipe(self) -> None:
        """Lose all data, like a server whose disk was emptied. The store is then empty and has another identity."""
        self.identity = new_identity(self._rng)
        self._entries.clear()
        self._keys.clear()
        self._order.clear()
        self._removed = 0
        self._floor = self._sequence
        self._deadlines.clear()
        for client in tuple(self._clients):
            client.wiped()

    def attach(self, client: StoreClient) -> None:
        """Attach a client. Raises BadConfig if another event loop uses the store."""
        loop = asyncio.get_running_loop()
        if self._clients and self._loop is not loop:
            raise BadConfig("a memory store belongs to one event loop; use local:// to share one between threads")
        self._loop = loop
        self._clients[client] = None
        self._expire_due()
        self._arm()

    def detach(self, client: StoreClient) -> None:
        """Detach a client. It is no longer notified."""
        self._clients.pop(client, None)
        if not self._clients and self._timer:
            self._timer.cancel()
            self._timer = None

    def new_session(self, deadline: float) -> str:
        """Start a session that expires at this loop time unless it is renewed. Returns its id."""
        self._session_count += 1
        session_id = f"session-{self._session_count}"
        self._deadlines[session_id] = deadline
        self._arm()
        return session_id

    def renew(self, session_id: str, deadline: float) -> bool:
        """Extend a session until this loop time. Returns False if the session does not exist."""
        if session_id not in self._deadlines:
            return False
        self._deadlines[session_id] = deadline
        return True

    def get(self, key: str) -> Entry | None:
        """Return the entry of a key, or None if the key is absent."""
        return self._entries.get(key)

    def list(self, prefix: str, limit: int, after: str | None) -> Page:
        """Return at most ``limit`` entries whose keys start with a prefix and come after ``after``, sorted."""
        start = bisect_left(self._keys, prefix)
        if after is not None:
            start = max(start, bisect_right(self._keys, after))
        end = start
        while end < len(self._keys) and end - start <= limit and self._keys[end].startswith(prefix):
            end += 1
        keys = self._keys[start : min(end, start + limit)]
        return Page(tuple(self._entries[key] for key in keys), keys[-1] if end - start > limit else None)

    def apply(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Apply a transaction, like ``Backend.txn``, but without checking the limits."""
        self._expire_due()
        for op in ops:
            if isinstance(op, Put) and op.session and op.session.id not in self._deadlines:
                raise SessionLost(f"session {op.session.id} has ended")
        for check in checks:
            entry = self._entries.get(check.key)
            if error := violation(check, entry.revision if entry else None):
                raise error
        revisions: list[Revision | None] = []
        for op in ops:
            if isinstance(op, Delete):
                if op.key in self._entries:
                    self._remove(op.key)
                revisions.append(None)
            else:
                revisions.append(self._put(op))
        self._wake()
        return TxnResult(tuple(revisions))

    def changes(self, prefix: str, position: int) -> tuple[int, Sequence[Event]]:
        """Return the current position, and the last change to each key below a prefix since ``position``.

        Returns a Snapshot instead of changes if deletions since ``position`` may have been forgotten.
        """
        if position < self._floor:
            entries = (self._entries[key] for key in self._keys if key.startswith(prefix))
            return self._sequence, [Snapshot(tuple(entries))]
        events: list[Event] = []
        for key, sequence in reversed(self._order.items()):
            if sequence <= position:
                break
            if key.startswith(prefix):
                entry = self._entries.get(key)
                events.append(Changed(entry) if entry else Removed(key))
        return self._sequence, events[::-1]

    def _put(self, op: Put) -> Revision:
        if op.key not in self._entries:
            insort(self._keys, op.key)
            self._removed -= op.key in self._order
        sequence = self._touch(op.key)
        entry = Entry(op.key, bytes(op.value), Revision(sequence), op.session.id if op.session else None)
        self._entries[op.key] = entry
        return entry.revision

    def _remove(self, key: str) -> None:
        del self._entries[key]
        del self._keys[bisect_left(self._keys, key)]
        self._touch(key)
        self._removed += 1
        if self._removed > 2 * self._removed_max:
            self._forget_removed()

    def _touch(self, key: str) -> int:
        self._sequence += 1
        self._order.pop(key, None)
        self._order[key] = self._sequence
        return self._sequence

    def _forget_removed(self) -> None:
        removed = [key for key in self._order if key not in self._entries]
        for key in removed[: -self._removed_max]:
            self._floor = self._order.pop(key)
            self._removed -= 1

    def _wake(self) -> None:
        for client in tuple(self._clients):
            client.wake()

    def _expire_due(self) -> None:
        now = asyncio.get_running_loop().time()
        for session_id in [session for session, deadline in self._deadlines.items() if deadline <= now]:
            self.expire(session_id)

    def _on_timer(self) -> None:
        self._timer = None
        self._expire_due()
        self._arm()

    def _arm(self) -> None:
        if not self._deadlines:
            return
        due = min(self._deadlines.values())
        if self._timer is not None and self._timer.when() <= due:
            return  # when it fires it sets itself again
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._on_timer, context=self._context)
