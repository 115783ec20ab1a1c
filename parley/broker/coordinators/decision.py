"""Decisions of a coordinator, and the state that they are about.

A *shard* is the state machine of one partition of an internal topic. An event reaches it as a function of its state and
of the time; the function returns a ``Decision``: what to write, what to reply, which timers to set. It changes nothing
itself. The lasting state changes in ``ShardState.replay`` alone, both when a record is written and when it is read back
after an election, so the two cannot differ.

A state may also have a part that is not stored, such as the rebalance in progress of a group. A decision outputs how
that changes, too (``Decision.change``). It is lost with the shard, and rebuilt from the records by ``loaded``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from parley.protocol.errors import KafkaError

T = TypeVar("T")

KeyValue = tuple[bytes, bytes | None]
"""A record of an internal topic. A value of None is a tombstone: it deletes the key."""


class ProducerIdentity(NamedTuple):
    """A producer id with an epoch."""

    producer_id: int
    producer_epoch: int


class Timer(NamedTuple):
    """An event that is submitted to the shard after ``delay_ms``, unless its key is set again or cancelled before.

    If the event fails, for example because too few replicas are in sync, it is submitted again after a short pause. It
    must therefore look at the state, and decide nothing if there is nothing left to do.
    """

    delay_ms: float
    event: Callable[[Any, int], Decision[Any]]
    is_patient: bool = False
    """True if the event punishes a client's silence: it waits until the event loop is no longer late. Other events
    wait once at most, however late the loop stays, since other clients wait for what they end."""


class Held(NamedTuple):
    """Instead of a reply: the caller waits until a later decision releases the reply under this key. It fails with the
    shard."""

    key: Hashable


_NONE: Mapping[Hashable, Any] = MappingProxyType({})


class Decision(NamedTuple, Generic[T]):
    """The outcome of one event."""

    reply: T | Held
    """Given to the caller when all in-sync replicas have the records of this decision and of all before it."""
    records: Sequence[KeyValue] = ()
    producer: ProducerIdentity | None = None
    """If given, the records are one transactional batch of this producer, which a marker later commits or aborts."""
    is_divisible: bool = False
    """True if records that are too large for one batch may be written in several, within one turn. If the broker dies
    in between, only the first of them take effect."""
    timers: Mapping[Hashable, Timer | None] = _NONE
    """Timers to set, or to cancel (None), by key. They take effect when the records are applied."""
    released: Mapping[Hashable, object] = _NONE
    """Replies to callers that are held, by key: given when the in-sync replicas have the records of this decision, at
    once if it has none."""
    change: Callable[[], None] | None = None
    """Changes what is not stored. Called after the records are applied; not called if they are refused."""
    then: Callable[[], None] | None = None
    """Called when the in-sync replicas have the records, however long that takes; not called if the shard is lost
    before."""
    refused: Callable[[Any, int, KafkaError], Decision[Any]] | None = None
    """Decides instead if the log refuses the records: ``refused(state, now_ms, error)``. Its decision has no records,
    and its reply does not count: the caller gets the error."""


class ShardState(Protocol):
    """The state of one shard, built by its records alone.

    Loading calls ``replay`` and ``replay_marker`` in a thread, before other code sees the state. Every other call comes
    from the event loop.
    """

    def replay(self, key: bytes, value: bytes | None, producer: ProducerIdentity | None, offset: int) -> None:
        """Apply one record. ``producer`` is set for a record of a transaction that no marker has ended yet.

        Raises MalformedMessage if the record cannot be understood. It is then skipped, and nothing has changed.
        """
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool, offset: int) -> None:
        """Apply the marker that ends a producer's transaction in this partition."""
        ...

    def loaded(self, now_ms: int) -> Mapping[Hashable, Timer]:
        """Begin to serve: the whole log has been read back. Returns the timers to set."""
        ...

    def unloaded(self) -> None:
        """Stop serving: another broker coordinates the shard, or it is about to be read back. Called only if ``loaded``
        was. The callers that are held have failed with NOT_COORDINATOR."""
        ...
