"""Decisions of a coordinator, and the state that they read.

A *shard* is the state machine of one partition of an internal topic. An event is a function of the shard's state and
the time. It returns a ``Decision``: what to write, what to reply, which timers to set. It changes nothing itself. The
stored state changes only in ``ShardState.replay``, both when a record is written and when it is read back after an
election. Both therefore result in the same state.

A state may also contain data that is not stored, such as a group's rebalance in progress. A decision returns a function
that changes this data (``Decision.change``). The data is lost with the shard, and ``loaded`` rebuilds it from the
records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from parley.protocol.errors import KafkaError

T = TypeVar("T")

KeyValue = tuple[bytes, bytes | None]
"""A record of an internal topic. A value of None is a tombstone: it deletes the key."""

UNEXPECTED: Final = (Exception, asyncio.CancelledError)
"""The exceptions to catch around code that a turn calls, besides the errors that the code documents. CancelledError,
which a cancelled future raises, is listed separately because it is not an Exception."""


class ProducerIdentity(NamedTuple):
    """A producer id with an epoch."""

    producer_id: int
    producer_epoch: int


class Timer(NamedTuple):
    """An event that is submitted to the shard after ``delay_ms``, unless its key is set again or cancelled first.

    If the event fails, for example because too few replicas are in sync, it is submitted again after a short pause. The
    event must therefore check the state, and return a decision without any effect if there is nothing left to do.
    """

    delay_ms: float
    event: Callable[[Any, int], Decision[Any]]
    is_patient: bool = False
    """True if the event removes or fences a client that has sent nothing. It is then postponed until the event loop is
    no longer late. Any other event is postponed at most once, because clients are waiting for its result."""


class Held(NamedTuple):
    """A placeholder for a reply: the caller waits until a later decision releases a reply under this key. If the shard
    is closed first, the caller's request fails with NOT_COORDINATOR."""

    key: Hashable


_NONE: Mapping[Hashable, Any] = MappingProxyType({})


class Decision(NamedTuple, Generic[T]):
    """The outcome of one event.

    ``timers`` and ``change`` take effect as soon as the records are applied to the state. ``reply``, ``released`` and
    ``then`` wait until the in-sync replicas have the records.
    """

    reply: T | Held
    """The caller's reply. It is sent when all in-sync replicas have the records of this decision and of all earlier
    decisions."""
    records: Sequence[KeyValue] = ()
    producer: ProducerIdentity | None = None
    """If set, the records are one transactional batch of this producer. A marker later commits or aborts them."""
    is_divisible: bool = False
    """True if records that do not fit in one batch may be split into several, within one turn. If the broker dies
    between two batches, only the first ones take effect."""
    timers: Mapping[Hashable, Timer | None] = _NONE
    """Timers to set, or to cancel (None), by key. They take effect when the records are applied."""
    released: Mapping[Hashable, object] = _NONE
    """Replies to callers whose earlier decision was ``Held``, by key. They are sent when the in-sync replicas have the
    records of this decision, or immediately if it has no records."""
    change: Callable[[], None] | None = None
    """A function that changes the part of the state that is not stored. Called immediately after the records are
    applied, before the in-sync replicas have them. Not called if the log rejects the records."""
    then: Callable[[], None] | None = None
    """A function that starts work outside the shard that must not precede the records, such as writing markers. Called
    when the in-sync replicas have the records, however long that takes. Not called if the shard is closed first."""
    refused: Callable[[Any, int, KafkaError], Decision[Any]] | None = None
    """Called as ``refused(state, now_ms, error)`` if the log rejects the records. The decision that it returns replaces
    this one. It must not contain records, and its reply is ignored: the caller gets the error."""


class ShardState(Protocol):
    """The state of one shard, built only by applying its records.

    While the shard is loaded, ``replay`` and ``replay_marker`` are called in a thread, before other code sees the
    state. Every other call is made on the event loop.
    """

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record; a ``value`` of None deletes the key. ``producer`` is set for a record of a transaction that
        no marker has ended yet. ``offset`` is the offset of the record in the log.

        Raises MalformedMessage, and changes nothing, if the record cannot be decoded. The caller then skips it.
        """
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """Apply the marker that commits a producer's transaction in this partition, or aborts it if ``committed`` is
        False. ``offset`` is the offset of the marker in the log."""
        ...

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        """Start serving, after the whole log has been read back. Returns the timers to set."""
        ...

    def unloaded(self) -> None:
        """Stop serving: another broker coordinates the shard, or it is about to be read back.

        Called only after ``loaded``, and after the held callers have failed with NOT_COORDINATOR.
        """
        ...
