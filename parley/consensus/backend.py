"""Layer 1: what a coordination store has to do for Parley. One class per store implements ``Backend``.

The rules, for callers and for authors of backends:

* Every read and write is linearizable, unless ``Read.STALE`` is asked for.
* A revision is opaque: it can be compared for equality and nothing else. A key deleted and created again never gets
  a revision it had before. Whatever must survive a change of store (epochs, ids) is kept in values.
* A write whose fate is unknown raises ``MaybeApplied``; one that was certainly not applied raises ``Unavailable``.
* A write bound to a session that is over is refused by the store itself with ``SessionLost``, in the same
  transaction, whatever the client believed when it sent it.
* Nothing is split, truncated or dropped silently: beyond a limit of ``Capabilities`` a call raises ``LimitExceeded``.
* A store that was wiped or replaced raises ``WrongStore`` and loses all sessions; it is never taken for an empty one.
* Every call may be cancelled; a cancelled write may have been applied.

All the calls belong to the event loop that ``open`` ran on. Time is that loop's ``time()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import ClassVar, Self, TypeAlias

from parley.consensus.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    CoordinationError,
    Fenced,
    NotFound,
    TooLarge,
    TooManyOps,
)
from parley.consensus.keys import check_key
from parley.consensus.session import Session, SessionState
from parley.consensus.store_config import NO_CONFIG, StoreConfig

__all__ = [
    "ABSENT",
    "ANY",
    "LINEARIZABLE",
    "PRESENT",
    "STALE",
    "At",
    "Backend",
    "Capabilities",
    "Change",
    "Changed",
    "Check",
    "Delete",
    "Entry",
    "Event",
    "Expectation",
    "Op",
    "Page",
    "Presence",
    "Put",
    "Read",
    "Removed",
    "Revision",
    "Session",
    "SessionState",
    "Snapshot",
    "TxnResult",
    "Watch",
    "violation",
]


class Read(Enum):
    """How fresh a read has to be."""

    LINEARIZABLE = "linearizable"
    """Sees every write that was answered, to anybody, before the read began."""
    STALE = "stale"
    """Some value the key had; cheaper where the store has replicas. May go backwards between two calls."""


LINEARIZABLE = Read.LINEARIZABLE
STALE = Read.STALE


class Revision:
    """Which write an entry comes from. Equal or not equal; no order, no arithmetic, not to be stored.

    For backends: ``token`` is whatever hashable value tells one write of a key from every other write of it.
    """

    __slots__ = ("token",)

    def __init__(self, token: object) -> None:
        self.token = token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Revision) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __repr__(self) -> str:
        return f"Revision({self.token!r})"


class Presence(Enum):
    """What is expected of a key whatever its revision."""

    ANY = "any"
    ABSENT = "absent"
    PRESENT = "present"


ANY = Presence.ANY
ABSENT = Presence.ABSENT
PRESENT = Presence.PRESENT


@dataclass(frozen=True, slots=True)
class At:
    """The key is expected to be present at exactly this revision."""

    revision: Revision


Expectation: TypeAlias = Presence | At


@dataclass(frozen=True, slots=True)
class WatchCount:
    """How many watches a store's servers have open, of all their clients, whoever these are; for people.

    :ivar open: the number, ``None`` where nobody counts.
    :ivar source: who says so, or why nobody does.
    """

    open: int | None
    source: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value and the write it comes from.

    ``session`` is the id of the session the key is bound to, ``None`` for a key that stays.
    """

    key: str
    value: bytes
    revision: Revision
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, sorted by key. ``next_after`` is the ``after`` of the next page, ``None`` on the last one.

    A page is one consistent state; two pages may be of two states.
    """

    entries: tuple[Entry, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of a transaction. ``fences`` marks a guard: where it does not hold, the error is ``Fenced``."""

    key: str
    expect: Expectation
    fences: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value, whatever was there. ``session`` binds the key to that session; without one the key stays.

    A put decides the binding anew: it takes a key over from another session, or makes a bound key a lasting one.
    """

    key: str
    value: bytes
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key; nothing happens if it is absent."""

    key: str


Op: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """A transaction that was applied: for each operation in order its new revision, ``None`` for a delete."""

    revisions: tuple[Revision | None, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything below the watched prefix at one moment, sorted by key. What is not in it does not exist."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The key was put. Puts and deletes before this one may have been left out."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Removed:
    """The key was deleted: by a call, or because its session ended."""

    key: str


Change: TypeAlias = Changed | Removed
Event: TypeAlias = Snapshot | Changed | Removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The limits and promises of a store, as numbers. The conformance kit tests every one of them.

    :ivar name: the store's name in messages.
    :ivar key_bytes_max: longest key.
    :ivar value_bytes_max: largest value of one key.
    :ivar txn_ops_max: most checks plus operations of one transaction.
    :ivar txn_bytes_max: largest sum of keys and values of one transaction.
    :ivar list_limit_max: largest ``limit`` of one ``list`` call; a larger one is lowered to it.
    :ivar ttl_ms_min: shortest session TTL; a shorter one is raised to it (see ``Session.ttl_ms``).
    :ivar ttl_ms_max: longest session TTL; a longer one is lowered to it.
    :ivar expiry_factor_max: the keys of a silent session are gone after at most this many TTLs.
    :ivar crash_seen_ms_max: the keys of a session whose process was killed are gone after at most this long;
        ``None`` where only the TTL ends it.
    """

    name: str
    key_bytes_max: int
    value_bytes_max: int
    txn_ops_max: int
    txn_bytes_max: int
    list_limit_max: int
    ttl_ms_min: int
    ttl_ms_max: int
    expiry_factor_max: float
    crash_seen_ms_max: int | None

    def admit(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Accept a transaction that the store can take; backends call this before sending anything.

        :raises ValueError: an illegal key, or two operations on one key.
        :raises TooLarge: a key, a value or the sum of both is over the limit.
        :raises TooManyOps: more checks and operations than one transaction takes.
        """
        if len(checks) + len(ops) > self.txn_ops_max:
            raise TooManyOps(len(checks) + len(ops), self.txn_ops_max)
        if len({op.key for op in ops}) != len(ops):
            raise ValueError("a transaction has at most one operation on a key")
        size = 0
        for check in checks:
            size += self.admit_key(check.key)
        for op in ops:
            size += self.admit_key(op.key)
            if isinstance(op, Put):
                size += len(op.value)
                if len(op.value) > self.value_bytes_max:
                    raise TooLarge(f"the value of {op.key}", len(op.value), self.value_bytes_max)
        if size > self.txn_bytes_max:
            raise TooLarge("the transaction", size, self.txn_bytes_max)

    def parts(
        self, ops: Sequence[Op], *, checks: int = 1, key_extra_bytes: int = 0, value_extra_bytes: int = 0
    ) -> Iterator[Sequence[Op]]:
        """Cut operations, in order, into as few transactions as the store takes at once beside that many checks each.

        Whoever will lengthen keys or values before he sends them says by how many bytes.

        :raises ValueError: there is no room beside that many checks.
        """
        room, bytes_max = self.txn_ops_max - checks, self.txn_bytes_max - checks * self.key_bytes_max
        if room < 1 or bytes_max < 1:
            raise ValueError(f"no room for an operation beside {checks} checks")
        part: list[Op] = []
        size = 0
        for op in ops:
            op_size = key_extra_bytes + len(op.key)
            if isinstance(op, Put):
                op_size += len(op.value) + value_extra_bytes
            if part and (len(part) == room or size + op_size > bytes_max):
                yield part
                part, size = [], 0
            part.append(op)
            size += op_size
        if part:
            yield part

    def admit_key(self, key: str) -> int:
        """The size in bytes of a legal key.

        :raises ValueError: the key is illegal (see ``parley.consensus.keys``).
        :raises TooLarge: it is too long.
        """
        check_key(key)
        if len(key) > self.key_bytes_max:
            raise TooLarge(f"the key {key[:40]}...", len(key), self.key_bytes_max)
        return len(key)

    def admit_limit(self, limit: int) -> int:
        """The limit of a ``list`` call, lowered to what the store allows. Raises ValueError if it is less than 1."""
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        return min(limit, self.list_limit_max)

    def ttl(self, ttl_ms: int) -> int:
        """The TTL in milliseconds that the store will give for the one asked for."""
        return max(self.ttl_ms_min, min(ttl_ms, self.ttl_ms_max))


def violation(check: Check, found: Revision | None) -> CoordinationError | None:
    """For backends: the error of a check whose key is at this revision (``None``: absent); ``None`` if it holds."""
    error: CoordinationError
    match check.expect:
        case Presence.ABSENT if found is not None:
            error = AlreadyExists(check.key, f"{check.key} exists already")
        case Presence.PRESENT if found is None:
            error = NotFound(check.key, f"{check.key} does not exist")
        case At(revision) if found != revision:
            state = "does not exist any more" if found is None else "is at another revision than expected"
            error = Conflict(check.key, f"{check.key} {state}")
        case _:
            return None
    return Fenced(check.key) if check.fences else error


class Watch(ABC):
    """The state below a prefix, and then every change to it, as an asynchronous context manager and iterator.

    * The first event is a ``Snapshot``; then come ``Changed`` and ``Removed``, in order for each key.
    * Several changes to one key may come as the last of them; the last one always comes.
    * Whenever changes may have been missed (reconnect, compaction, a consumer far behind) another ``Snapshot`` comes.
      Replace all you know by it.
    * Nothing grows without bound while nobody iterates.
    * It outlives every disconnection. It ends with exactly one exception, raised by the iteration: ``Closed``,
      ``Unauthorized`` or ``WrongStore``; iterating on stops at once.
    * ``anext`` may be cancelled; no event is lost by that. One consumer at a time.
    """

    _ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self._ended:
            raise StopAsyncIteration
        try:
            return await self._next()
        except CoordinationError:
            self._ended = True
            raise

    @abstractmethod
    async def _next(self) -> Event:
        """For backends: the next event. Raises only what ends the watch; waits out what is retriable."""

    @abstractmethod
    async def close(self) -> None:
        """Stop watching; a pending ``anext`` raises ``Closed``. Idempotent."""


class Backend(ABC):
    """A coordination store. Use: ``open``, calls, ``close``; or ``async with``.

    Beside what each call says, every call raises ``Closed`` after ``close`` and before ``open``, ``Unauthorized``,
    ``WrongStore``, ``Unavailable`` (not applied); every write ``MaybeApplied``. ``parley.consensus.errors`` says what
    to do.

    :cvar config: the keys that the store adds to a broker's configuration.
    """

    config: ClassVar[StoreConfig] = NO_CONFIG
    _identity: str | None = None
    """For backends: set by ``open`` (``parley.consensus.store_identity``)."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, **options: object) -> Self:
        """A backend for this address, not yet opened; reads nothing and connects to nothing.

        :raises BadConfig: the address or an option makes no sense.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The limits of this store; known before ``open``."""

    @property
    def identity(self) -> str:
        """The random name that the store was given when it was initialised and keeps for ever; known after ``open``.

        A caller that keeps state of its own about this store must keep the identity beside it and pass it to ``open``.
        """
        if self._identity is None:
            raise Closed("the backend has not been opened")
        return self._identity

    @property
    def is_shared(self) -> bool:
        """Whether another client with the same address finds the same store, at least in this process."""
        return True

    @abstractmethod
    async def open(self, *, expect_identity: str | None = None) -> None:
        """Connect, prove that reading and writing work, and initialise an empty store.

        :param expect_identity: the store must be this one; an empty store is then refused, not initialised.
        :raises WrongStore: the store has another identity (``WrongStore.found``), or none although one is expected.
        :raises Unauthorized: these credentials may not read or write here.
        :raises Unsupported: the server lacks something that is needed.
        :raises Unavailable: no answer; calling again is safe.
        :raises BadConfig: the address cannot work (no such directory, not a store of ours).
        """

    @abstractmethod
    async def close(self) -> None:
        """End all sessions opened here, all watches and the connection. Idempotent; an absent store is no error."""

    async def abandon(self) -> None:
        """Let go of the store as a process that is killed does: its sessions are not ended, they run out there.

        For whoever embeds a client and wants to see it die. A store whose sessions nobody can leave behind ends them.
        """
        await self.close()

    @abstractmethod
    async def open_session(self, ttl_ms: int) -> Session:
        """A session that is renewed until it is closed or lost. The TTL is fitted to the store's bounds.

        After LOST open another one; nothing of the old one carries over.
        """

    @abstractmethod
    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        """The entry of a key, ``None`` if there is none."""

    async def put(
        self, key: str, value: bytes, *, expect: Expectation = ANY, session: Session | None = None
    ) -> Revision:
        """Write one value if the key is as expected; bound to the session if one is given (see ``Put``).

        :raises AlreadyExists: ABSENT was expected and it is there.
        :raises NotFound: PRESENT was expected and it is absent.
        :raises Conflict: it is not at the expected revision.
        :raises SessionLost: the session is over.
        :raises TooLarge: key or value is over the limit.
        """
        revision = (await self.txn([Check(key, expect)], [Put(key, value, session)])).revisions[0]
        assert revision is not None
        return revision

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        """Delete one key if it is as expected. False: it was absent already, and that was not unexpected.

        :raises NotFound: PRESENT was expected and it is absent.
        :raises Conflict: it is not at the expected revision.
        :raises ValueError: ABSENT was expected, which makes no sense.
        """
        if expect is ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        return await self._delete(Check(key, expect), Delete(key))

    async def _delete(self, check: Check, delete: Delete) -> bool:
        """For backends: carry out ``delete``. Override it if the store reports whether the key was there."""
        key, expect = check.key, check.expect
        try:
            await self.txn([Check(key, PRESENT if expect is ANY else expect)], [delete])
        except NotFound:
            if expect is ANY:
                return False
            raise
        return True

    @abstractmethod
    async def list(self, prefix: str, *, limit: int, after: str | None = None, read: Read = LINEARIZABLE) -> Page:
        """The entries whose keys start with ``prefix`` (any text, "" for all), sorted bytewise, at most ``limit``.

        :param after: begin behind this key; the ``next_after`` of the page before.
        :raises ValueError: the limit is less than 1.
        """

    @abstractmethod
    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Apply all operations if all checks hold, in one step that nobody sees half done; else nothing.

        A key may be checked and written in one transaction, but written only once. Checks see the state before it.

        :raises PreconditionFailed: the error ``put`` would raise, for the first check in order that does not hold.
        :raises Fenced: that check was a guard.
        :raises SessionLost: a put is bound to a session that is over.
        :raises TooLarge: see ``Capabilities``; split the work yourself where it need not be one step.
        :raises TooManyOps: likewise.
        """

    @abstractmethod
    def watch(self, prefix: str) -> Watch:
        """Watch all the keys that start with ``prefix`` (any text, "" for all)."""

    async def watch_count(self) -> WatchCount:
        """What the servers say of their watches; raises nothing but ``Closed``."""
        return WatchCount(None, "this kind of store does not count them")

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
