"""Decisions of a coordinator, and the state that they are about.

A *shard* is the state machine of one partition of an internal topic. An event reaches it as a function of its state and
of the time; the function returns a ``Decision``: what to write, what to reply, which timers to set. It changes nothing
itself. The lasting state changes in ``ShardState.replay`` alone, both when a record is written and when it is read back
after an election, so the two cannot differ.

State that is not stored may live beside the lasting state, and other code changes it on the event loop: the handlers
change the members of groups, for example (``groups/membership.py``, ``groups/rebalance.py``). ``Decision.then`` is for
what must wait until the records are replicated, such as sending markers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

KeyValue = tuple[bytes, bytes | None]
"""A record of an internal topic. A value of None is a tombstone: it deletes the key."""


class ProducerIdentity(NamedTuple):
    """A producer id with an epoch."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Timer:
    """An event that is submitted to the shard after ``delay_ms``, unless its key is set again or cancelled before.

    If the event fails, for example because too few replicas are in sync, it is submitted again after a short pause. It
    must therefore look at the state, and decide nothing if there is nothing left to do.
    """

    delay_ms: float
    event: Callable[[Any, int], Decision[Any]]


_NO_TIMERS: Mapping[Hashable, Timer | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """The outcome of one event."""

    reply: T
    """Given to the caller when all in-sync replicas have the records of this decision and of all before it."""
    records: Sequence[KeyValue] = ()
    producer: ProducerIdentity | None = None
    """If given, the records are one transactional batch of this producer, which a marker later commits or aborts."""
    timers: Mapping[Hashable, Timer | None] = field(default_factory=lambda: _NO_TIMERS)
    """Timers to set, or to cancel (None), by key. They take effect when the records are applied."""
    then: Callable[[], None] | None = None
    """Called when the in-sync replicas have the records, however long that takes; not called if the shard is lost
    before."""


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
        was. Requests that wait for something other than a submitted event must fail with NOT_COORDINATOR."""
        ...
