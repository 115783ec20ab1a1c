"""Layer 1: the interface of a coordination store. One class per store implements ``Backend``.

The rules, for callers and for authors of backends:

* Every read and write is linearizable, unless the caller asks for ``Read.STALE``.
* A revision is opaque: it can only be compared for equality. A key that is deleted and created again never gets an
  earlier revision. Data that must survive a change of store (epochs, ids) is kept in values.
* A write with an unknown outcome raises ``MaybeApplied``. A write that was certainly not applied raises
  ``Unavailable``.
* The store itself rejects a write bound to a session that has ended, in the same transaction, with ``SessionLost``.
* Nothing is silently split or truncated: a call beyond a limit of ``Capabilities`` raises ``LimitExceeded``.
* A store that was wiped or replaced raises ``WrongStore`` and loses all sessions; it never counts as empty.
* Every call may be cancelled; a cancelled write may have been applied.

Make all calls on the event loop on which ``open`` ran. Points in time are values of that loop's ``time()``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
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
from parley.consensus.protection import Protection, unknown_protection
from parley.consensus.session import Session, SessionState
from parley.consensus.store_config import NO_CONFIG, StoreConfig
from parley.light_dataclasses import dataclass

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
    """How up to date a read must be."""

    LINEARIZABLE = "linearizable"
    """Sees every write, of any client, that was confirmed before the read began."""
    STALE = "stale"
    """Returns a value that the key had at some time. Cheaper if the store has replicas; later reads may return older
    values."""


LINEARIZABLE = Read.LINEARIZABLE
STALE = Read.STALE


class Revision:
    """Identifies the write that created an entry. Revisions have no order; do not store them.

    For backends: ``token`` is any hashable value that distinguishes one write of a key from every other write of it.
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
    """What a caller expects of a key, regardless of its revision: anything, absence or presence."""

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
    """The number of watches that a store's servers have open for all their clients, for display."""

    open: int | None
    """The number, or None if it is unknown."""
    source: str
    """Where the number comes from, or why it is unknown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key, its value and its revision.

    ``session`` is the id of the session to which the key is bound, or None for a persistent key.
    """

    key: str
    value: bytes
    revision: Revision
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, sorted by key. ``next_after`` is the ``after`` of the next page, or None on the last page.

    Each page shows one consistent state. Two pages may show two different states.
    """

    entries: tuple[Entry, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of a transaction. ``fences`` marks a guard: if it does not hold, the transaction raises ``Fenced``
    instead of an error such as ``Conflict``."""

    key: str
    expect: Expectation
    fences: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write a value, regardless of the key's previous value. ``session`` binds the key to a session; without a session
    the key is persistent.

    Every put sets the binding: it takes a key over from another session, or turns a bound key into a persistent one.
    """

    key: str
    value: bytes
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key. Does nothing if it is absent."""

    key: str


Op: TypeAlias = Put | Delete


@dataclass(frozen=True, slots=True)
class TxnResult:
    """The result of an applied transaction: the new revision for each operation in order, or None for a delete."""

    revisions: tuple[Revision | None, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries below the watched prefix at one moment, sorted by key. A key that is not in the snapshot does not
    exist."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The key was put. Earlier puts and deletes of the key may have been skipped."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Removed:
    """The key was deleted, either by a call or because its session ended."""

    key: str


Change: TypeAlias = Changed | Removed
Event: TypeAlias = Snapshot | Changed | Removed


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The limits and guarantees of a store, as numbers. The conformance kit tests each of them."""

    name: str
    """The store's name in error messages and reports."""
    key_bytes_max: int
    """The maximum size of a key, in bytes, like all sizes here."""
    value_bytes_max: int
    """The maximum size of one value."""
    txn_ops_max: int
    """The maximum number of checks plus operations in one transaction."""
    txn_bytes_max: int
    """The maximum total size of the keys and values in one transaction."""
    list_limit_max: int
    """The maximum ``limit`` of one ``list`` call; a larger limit is lowered to it."""
    ttl_ms_min: int
    """The minimum session TTL; a shorter TTL is raised to it (see ``Session.ttl_ms``)."""
    ttl_ms_max: int
    """The maximum session TTL; a longer TTL is lowered to it."""
    expiry_factor_max: float
    """The store deletes the keys of a silent session after at most this many TTLs."""
    crash_seen_ms_max: int | None
    """The store deletes the keys of a killed process's session after at most this time; None if such a session ends
    only by its TTL."""

    def admit(self, checks: Sequence[Check], ops: Sequence[Op]) -> None:
        """Check that the store can accept a transaction. Backends call this before they send anything.

        Raises ValueError for an illegal key or two operations on one key, TooLarge if a key, a value or their total is
        over the limit, and TooManyOps if there are too many checks and operations.
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
        """Split operations, in order, into as few transactions as the limits allow, each with ``checks`` checks.

        An operation that is too large by itself is not rejected here: it gets a part of its own.

        :param key_extra_bytes: the number of bytes that the caller adds to each key
        :param value_extra_bytes: the number of bytes that the caller adds to each value

        Raises ValueError if that many checks leave no room for an operation.
        """
        room, bytes_max = self.txn_ops_max - checks, self.txn_bytes_max - checks * self.key_bytes_max
        if room < 1 or bytes_max < 1:
            raise ValueError(f"{checks} checks leave no room for an operation")
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
        """Return the size of a legal key in bytes.

        Raises ValueError if the key is illegal (see ``parley.consensus.keys``), and TooLarge if it is too long.
        """
        check_key(key)
        if len(key) > self.key_bytes_max:
            raise TooLarge(f"the key {key[:40]}...", len(key), self.key_bytes_max)
        return len(key)

    def admit_limit(self, limit: int) -> int:
        """Return the limit of a ``list`` call, lowered to the store's maximum. Raises ValueError if it is less than
        1."""
        if limit < 1:
            raise ValueError("the limit must be at least 1")
        return min(limit, self.list_limit_max)

    def ttl(self, ttl_ms: int) -> int:
        """Return the TTL in milliseconds that the store grants if the caller requests ``ttl_ms``."""
        return max(self.ttl_ms_min, min(ttl_ms, self.ttl_ms_max))


def violation(check: Check, found: Revision | None) -> CoordinationError | None:
    """For backends: return the error of a failed check (Fenced if it is a guard), or None if the check holds.

    ``found`` is the key's revision, or None if the key is absent.
    """
    error: CoordinationError
    match check.expect:
        case Presence.ABSENT if found is not None:
            error = AlreadyExists(check.key, f"{check.key} already exists")
        case Presence.PRESENT if found is None:
            error = NotFound(check.key, f"{check.key} does not exist")
        case At(revision) if found != revision:
            state = "no longer exists" if found is None else "is not at the expected revision"
            error = Conflict(check.key, f"{check.key} {state}")
        case _:
            return None
    return Fenced(check.key) if check.fences else error


class Watch(ABC):
    """The state below a prefix and then every change to it, as an asynchronous context manager and iterator.

    * The first event is a ``Snapshot``. ``Changed`` and ``Removed`` follow, in order for each key.
    * If a key changes several times, only the last of these changes may arrive. The last change always arrives.
    * If changes may have been missed (reconnect, compaction, slow consumer), another ``Snapshot`` arrives. It replaces
      everything that the consumer knew.
    * The memory of a watch is limited even if no consumer iterates.
    * A watch survives every disconnection. It ends with exactly one exception, raised by the iteration: ``Closed``,
      ``Unauthorized`` or ``WrongStore``. Further iteration stops immediately.
    * ``anext`` may be cancelled without losing an event. One consumer at a time.
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
        """For backends: return the next event. Retries after retriable errors, and raises only errors that end the
        watch."""

    @abstractmethod
    async def close(self) -> None:
        """Stop watching. A pending ``anext`` raises ``Closed``. Idempotent."""


class Backend(ABC):
    """A coordination store. Call ``open``, then the other methods, then ``close``; or use ``async with``.

    In addition to the errors that a method documents, every call may raise ``Unavailable`` (not applied),
    ``Unauthorized``, ``WrongStore``, and ``Closed`` (before ``open`` and after ``close``); every write may raise
    ``MaybeApplied``. A call with a key raises ValueError if the key is illegal, and ``TooLarge`` if it is too long.
    ``parley.consensus.errors`` explains what to do in each case.
    """

    config: ClassVar[StoreConfig] = NO_CONFIG
    """The keys that the store adds to a broker's configuration."""
    _identity: str | None = None
    """For backends: the identity, set by ``open`` (``parley.consensus.store_identity``)."""

    @classmethod
    @abstractmethod
    def from_url(cls, url: str, **options: object) -> Self:
        """Return a backend for this address, not yet open. Does not connect, but may read files that the address names.

        Raises BadConfig if the address or an option is malformed, or if such a file cannot be used.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """The limits of this store. Known before ``open``."""

    @property
    def identity(self) -> str:
        """The random name that the store received when it was initialized. It never changes.

        A caller that keeps state about this store must keep the identity with that state, and pass it to ``open``.
        Raises Closed if the backend has never been opened.
        """
        if self._identity is None:
            raise Closed("the backend has not been opened")
        return self._identity

    @property
    def is_shared(self) -> bool:
        """True if another client with the same address finds the same store, at least in this process."""
        return True

    @abstractmethod
    async def open(self, *, expect_identity: str | None = None) -> None:
        """Connect, verify that reading and writing work, and initialize the store if it is empty.

        :param expect_identity: the identity that the store must have; an empty store is then rejected.

        Raises WrongStore if the store has another identity (``WrongStore.found``), or is empty although an identity is
        expected, Unauthorized if the credentials may not read or write here, Unsupported if the server lacks a needed
        feature, Unavailable if the store does not respond (calling again is safe), and BadConfig if the address cannot
        work (no such directory, or keys that are not Parley's).
        """

    @abstractmethod
    async def close(self) -> None:
        """End all sessions opened here, all watches and the connection. Idempotent; succeeds even if the store is
        unreachable."""

    async def abandon(self) -> None:
        """Disconnect from the store as a killed process does: without ending its sessions, which expire in the store.

        For tests that simulate a client's death inside one process. A store whose sessions cannot outlive a client ends
        them.
        """
        await self.close()

    @abstractmethod
    async def open_session(self, ttl_ms: int) -> Session:
        """Open a session. The backend renews it until it is closed or lost. The TTL is adjusted to the store's limits.

        After LOST, open another session. Nothing carries over to it.
        """

    @abstractmethod
    async def get(self, key: str, *, read: Read = LINEARIZABLE) -> Entry | None:
        """Return the entry of a key, or None if the key is absent."""

    async def put(
        self, key: str, value: bytes, *, expect: Expectation = ANY, session: Session | None = None
    ) -> Revision:
        """Write one value if the key is as expected, bound to the session if one is given (see ``Put``).

        Raises AlreadyExists if ABSENT was expected and the key is present, NotFound if PRESENT was expected and it is
        absent, Conflict if it is not at the expected revision, SessionLost if the session has ended, and TooLarge if
        the key or the value is over the limit.
        """
        revision = (await self.txn([Check(key, expect)], [Put(key, value, session)])).revisions[0]
        assert revision is not None
        return revision

    async def delete(self, key: str, *, expect: Expectation = ANY) -> bool:
        """Delete one key if it is as expected. Returns False if ANY was expected and the key was already absent.

        Raises NotFound if PRESENT was expected and the key is absent, Conflict if it is not at the expected revision,
        and ValueError if ABSENT was expected.
        """
        if expect is ABSENT:
            raise ValueError("a delete cannot expect ABSENT")
        return await self._delete(Check(key, expect), Delete(key))

    async def _delete(self, check: Check, delete: Delete) -> bool:
        """For backends: carry out ``delete``. Override this if the store reports whether the key existed."""
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
        """Return at most ``limit`` entries whose keys start with ``prefix`` (any text, "" for all), sorted bytewise.

        :param after: start after this key: the ``next_after`` of the previous page.

        Raises ValueError if the limit is less than 1.
        """

    @abstractmethod
    async def txn(self, checks: Sequence[Check], ops: Sequence[Op]) -> TxnResult:
        """Apply all operations in one atomic step if all checks hold, otherwise none.

        A transaction may check and write the same key, but may write it only once. Checks see the state before the
        transaction.

        If a check does not hold, raises the same error as ``put``, for the first such check in order, or Fenced if that
        check is a guard. Raises SessionLost if a put is bound to a session that has ended, and TooLarge or TooManyOps
        beyond the limits (``Capabilities.parts`` splits work that need not be atomic).
        """

    @abstractmethod
    def watch(self, prefix: str) -> Watch:
        """Return a watch of all keys that start with ``prefix`` (any text, "" for all)."""

    async def watch_count(self) -> WatchCount:
        """Return the number of watches that the servers report. Raises only ``Closed``."""
        return WatchCount(None, "this kind of store does not count them")

    async def protection(self) -> Protection:
        """Return how the store is protected from other clients.

        Raises ``Closed``, and ``Unavailable`` if the store does not respond.
        """
        return unknown_protection()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
