"""Reads of several znodes in one state, and of key ranges in one state although they take several requests.

Each read includes the identity, so that a wiped store is noticed, and the sessions, so that a key whose session has
ended counts as absent. While a range is being read, the change log shows which keys have changed. These are read again,
until none has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from kazoo.exceptions import NoAuthError, UnimplementedError

from parley.consensus.backend import Entry, Revision
from parley.consensus.errors import Unauthorized, Unavailable, Unsupported, WrongStore
from parley.consensus.zookeeper.connection import Connection, ResponseLost
from parley.consensus.zookeeper.key_layout import KeyLayout, decode, decode_changes, entries_made, key_of
from parley.consensus.zookeeper.multi_requests import NO_AUTH, NO_NODE, Children, Data, Failed, MultiRead, Stat
from parley.light_dataclasses import dataclass

_REPLY_BYTES = 1 << 20
_KEYS_MIN, _KEYS_MAX = 16, 1000
_LOOKAHEAD = 16
_BATCH = 128
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """The znode of a key. ``owner`` is the id of the session to which it is bound.

    ``alive`` is True if the key counts as present: it is not bound, or its session exists.
    """

    key: str
    value: bytes
    stat: Stat
    owner: str | None
    alive: bool

    def entry(self) -> Entry:
        """Return the entry that callers see."""
        return Entry(self.key, self.value, Revision(self.stat.mzxid), self.owner)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the change log: its number, the write it belongs to, and the keys changed."""

    number: int
    mzxid: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class State:
    """The result of one read.

    ``sessions`` contains the ids of the sessions that are alive. ``keys`` contains the znode of each requested key,
    including dead keys, or None if there is none. ``versions`` contains the version of each requested bucket.
    ``changes`` contains the requested log entries, up to the first that does not exist. ``log_end`` is the number of
    the log's next entry.
    """

    sessions: frozenset[str]
    keys: dict[str, Stored | None]
    versions: dict[str, int]
    changes: tuple[Change, ...]
    log_end: int


@dataclass(slots=True)
class Range:
    """The sorted keys of a range, all read in one state of the store.

    ``position`` is the number of the log's next entry in that state. ``more`` is True if the range continues after
    these keys. ``dead`` contains the keys whose sessions have ended; ``stored`` does not contain them.
    """

    stored: list[Stored]
    position: int
    more: bool
    dead: list[str] = field(default_factory=list)


class Reader:
    """Reads one store over one connection. Each read waits at most ``within_s`` seconds for the connection."""

    def __init__(self, connection: Connection, layout: KeyLayout, identity: str, within_s: float) -> None:
        self._connection = connection
        self._layout = layout
        self._identity = identity
        self._within_s = within_s

    async def state(
        self,
        keys: Sequence[str] = (),
        *,
        fresh: bool,
        buckets: Sequence[str] = (),
        entries: range = range(0),
    ) -> State:
        """Read these keys, buckets and log entries. A ``fresh`` read sees every write confirmed before it.

        Raises WrongStore if the store is no longer the one that was opened, Unauthorized if these credentials may not
        read the tree, and Unavailable if there is no response.
        """
        layout = self._layout
        paths = [*map(layout.key, keys), *buckets, *map(layout.entry, entries)]
        common: list[Data | Children] = [
            Data(f"{layout.identities}/{self._identity}"),
            Children(layout.sessions),
            Data(layout.log),
        ]
        results = await self.read([*common, *map(Data, paths)], fresh=fresh)
        sessions, (_, log_stat) = frozenset(results[1]), results[2]
        rest = results[len(common) :]
        found: dict[str, Stored | None] = {}
        for key, result in zip(keys, rest, strict=False):
            found[key] = None if isinstance(result, Failed) else _stored(key, result, sessions)
        rest = rest[len(keys) :]
        versions = {path: result[1].version for path, result in zip(buckets, rest, strict=False)}
        changes: list[Change] = []
        for number, result in zip(entries, rest[len(buckets) :], strict=True):
            if isinstance(result, Failed):
                break
            changes.append(Change(number, result[1].mzxid, decode_changes(result[0])))
        end = entries_made(log_stat.cversion, log_stat.children)
        return State(sessions, found, versions, tuple(changes), end)

    async def read(self, reads: Sequence[Data | Children], *, fresh: bool) -> list[Any]:
        """Return the results of these reads. The first one must read the identity."""
        try:
            results: list[Any] = await self._call(MultiRead(reads), fresh=fresh)
        except UnimplementedError as error:
            raise Unsupported(
                "this ZooKeeper server does not support multiRead; version 3.6 or later is required"
            ) from error
        except NoAuthError as error:
            raise Unauthorized("these credentials may not read the tree") from error
        for result in results:
            if isinstance(result, Failed) and result.code == NO_AUTH:
                raise Unauthorized("these credentials may not read the tree")
        if isinstance(results[0], Failed) and results[0].code == NO_NODE:
            raise store_deleted(self._identity)
        return results

    async def _call(self, request: MultiRead, *, fresh: bool) -> list[Any]:
        """Send a request. Send it again if the connection broke, which is harmless for a read."""
        call = self._connection.sync_and_call if fresh else self._connection.call
        for _ in range(_ATTEMPTS - 1):
            with suppress(ResponseLost):
                first: list[Any] = await call(request, self._within_s)
                return first
        try:
            last: list[Any] = await call(request, self._within_s)
        except ResponseLost as error:
            raise Unavailable(str(error)) from error
        return last

    async def names(self, *, fresh: bool) -> tuple[list[str], int]:
        """Return all keys that have a znode, unsorted, and the number of the log's next entry."""
        reads: list[Data | Children] = [Data(f"{self._layout.identities}/{self._identity}"), Data(self._layout.log)]
        reads += map(Children, self._layout.buckets())
        results = await self.read(reads, fresh=fresh)
        stat: Stat = results[1][1]
        names = [key_of(name) for bucket in results[2:] for name in bucket]
        return names, entries_made(stat.cversion, stat.children)

    async def changes(self, position: int) -> State:
        """Read at most ``_BATCH`` log entries, from this number on."""
        return await self.state(fresh=False, entries=range(position, position + _BATCH))

    async def range(self, prefix: str, *, fresh: bool, limit: int | None = None, after: str | None = None) -> Range:
        """Read at most ``limit`` keys that start with the prefix and come after ``after``, in one state.

        Raises the errors of ``state``, and Unavailable if the store changes faster than it can be read.
        """
        names, position = await self.names(fresh=fresh)
        wanted = {key for key in names if key.startswith(prefix) and (after is None or key > after)}
        view = _View(self, prefix, after, position)
        count = limit  # None: all, including those added during the read
        while True:
            chosen = sorted(wanted)[:count]
            await view.cover(chosen)
            wanted |= view.seen.keys()
            chosen = sorted(wanted)[:count]
            if not view.covers(chosen):
                continue
            stored = [view.seen[key] for key in chosen]
            there = [each for each in stored if each is not None]
            alive = [each for each in there if each.owner is None or each.owner in view.sessions]
            more = count is not None and count < len(wanted)
            if limit is None or not more or len(alive) >= limit:
                dead = [each.key for each in there if each.owner is not None and each.owner not in view.sessions]
                # A key that was dead at first may be alive now, so that there are more than asked for.
                more = more or (limit is not None and len(alive) > limit)
                return Range(alive[:limit], view.position, more, dead)
            count = len(chosen) + limit - len(alive)


class _View:
    """The keys of a range that have been read so far, all as of ``position``."""

    def __init__(self, reader: Reader, prefix: str, after: str | None, position: int) -> None:
        self.seen: dict[str, Stored | None] = {}
        self.position = position
        self.sessions: frozenset[str] = frozenset()
        self._reader = reader
        self._prefix = prefix
        self._after = after
        self._hot: dict[str, None] = {}  # keys that have changed: each further read includes them, so that it ends
        self._size = _REPLY_BYTES // 64
        self._dirty: set[str] = set()

    def covers(self, keys: Iterable[str]) -> bool:
        """Return True if all of these keys have been read."""
        return not self._dirty and all(key in self.seen for key in keys)

    async def cover(self, keys: Sequence[str]) -> None:
        """Read the keys that have not been read yet, and reread the keys that change in the meantime."""
        pending = dict.fromkeys(key for key in keys if key not in self.seen)
        pending.update(dict.fromkeys(self._dirty))
        while pending:
            count = max(_KEYS_MIN, min(_REPLY_BYTES // max(self._size, 1), _KEYS_MAX))
            chunk = list(dict.fromkeys([*self._hot, *pending]))[: max(count, len(self._hot) + 1)]
            changed = await self._read(chunk)
            for key in chunk:
                pending.pop(key, None)
            pending.update(dict.fromkeys(changed))
        self._dirty.clear()

    async def _read(self, chunk: list[str]) -> list[str]:
        """Read these keys. Returns the keys of the range that changed in the meantime and must be read again."""
        ahead = range(self.position, self.position + _LOOKAHEAD)
        state = await self._reader.state(chunk, fresh=False, entries=ahead)
        found = [stored for stored in state.keys.values() if stored is not None]
        if found:
            self._size = sum(len(stored.value) + 100 for stored in found) // len(found)
        self.seen.update(state.keys)
        self.sessions = state.sessions
        just_read = set(chunk)
        changes = list(state.changes)
        reached = self.position + len(changes)
        while reached != state.log_end:  # there are more changes than this read included
            just_read = set()
            state = await self._reader.changes(reached)
            if not state.changes and reached != state.log_end:
                raise Unavailable("the store changes faster than it can be read")
            self.sessions = state.sessions
            changes += state.changes
            reached += len(state.changes)
        self.position = reached
        changed = {key for change in changes for key in change.keys if self._includes(key)} - just_read
        self._hot.update(dict.fromkeys(changed))
        return sorted(changed)

    def _includes(self, key: str) -> bool:
        return key.startswith(self._prefix) and (self._after is None or key > self._after)


def _stored(key: str, result: tuple[bytes, Stat], sessions: frozenset[str]) -> Stored:
    value, owner = decode(result[0])
    return Stored(key, value, result[1], owner, owner is None or owner in sessions)


def store_deleted(identity: str, found: str | None = None) -> WrongStore:
    """Return the error for a store that no longer exists, or was replaced by the store ``found``."""
    return WrongStore(f"the store {identity} no longer exists; was ZooKeeper's data deleted?", found=found)
