"""Purgatory: responses that wait for an event, keyed by what they wait for.

A produce request waits until its replicas have its records, and a fetch waits until there is enough data to send. Each
is a ``Delayed`` future with one timer, and watches the partitions that it names; no coroutine is parked for it. Code
that changes a partition calls ``Purgatory.notify``; each ``Delayed`` then decides whether it is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable
from typing import Any, Protocol, TypeVar

from parley.broker.logging.unexpected_errors import FailureLog

T = TypeVar("T")

_log = logging.getLogger(__name__)

WAIT_MAX_S = 24 * 3600.0
"""The maximum wait, in seconds, even if the client requests a longer timeout: a wait must end even if its client has
disconnected."""


class Delayed(asyncio.Future[T]):
    """A pending response. A subclass completes it in ``on_change`` or ``expired``.

    Cancelling it, because its client has disconnected, removes it from its purgatory.
    """

    _purgatory: Purgatory | None = None
    _keys: tuple[Hashable, ...] = ()
    _timer: asyncio.TimerHandle | None = None

    def on_change(self, key: Hashable, amount: int) -> bool:
        """React to a change in a watched key: call ``complete`` if the response can now be sent.

        ``amount`` is the value passed to ``notify`` (bytes, for fetches). Returns False if later watchers of the same
        key need not be notified, because they wait for more than this watcher.
        """
        raise NotImplementedError

    def expired(self) -> None:
        """React to the timeout. Must call ``complete``."""
        raise NotImplementedError

    def next_request_arrived(self) -> None:
        """React to the arrival of the connection's next request. By default, that request waits for this response."""

    def complete(self, result: T) -> None:
        """Set the response and leave the purgatory. Does nothing if the response is already set."""
        if not self.done():
            self._leave()
            self.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set an error and leave the purgatory. Does nothing if the response is already set."""
        if not self.done():
            self._leave()
            self.set_exception(error)

    def cancel(self, msg: object = None) -> bool:
        self._leave()
        return super().cancel(msg)

    def _leave(self) -> None:
        if self._purgatory is not None:
            self._purgatory._remove(self)
            self._purgatory = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Subscriber(Protocol):
    """An observer that is notified of every change in a key until it unsubscribes. Hashed by identity."""

    def on_change(self, key: Hashable, amount: int) -> None:
        """React to a change in a key. ``amount`` is the value passed to ``notify``."""


class Purgatory:
    """The delayed responses of one kind."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, dict[Delayed[Any], None]] = {}
        self._subscribers: dict[Hashable, dict[Subscriber, None]] = {}
        self._failures = FailureLog(_log)
        self.waiting = 0
        """The number of delayed responses."""

    def watch(self, delayed: Delayed[T], keys: Iterable[Hashable], timeout_s: float) -> None:
        """Hold ``delayed`` until it completes. Call its ``expired`` after ``timeout_s`` seconds, but after
        ``WAIT_MAX_S`` at the latest. The hash of a key must not change in the meantime."""
        delayed._purgatory = self
        delayed._keys = tuple(keys)
        for key in delayed._keys:
            self._watchers.setdefault(key, {})[delayed] = None
        delayed._timer = delayed.get_loop().call_later(min(timeout_s, WAIT_MAX_S), delayed.expired)
        self.waiting += 1

    def subscribe(self, key: Hashable, subscriber: Subscriber) -> None:
        """Notify ``subscriber`` of every subsequent change in ``key``."""
        self._subscribers.setdefault(key, {})[subscriber] = None

    def unsubscribe(self, key: Hashable, subscriber: Subscriber) -> None:
        """Stop notifying ``subscriber`` of ``key``."""
        subscribers = self._subscribers.get(key)
        if subscribers is not None:
            subscribers.pop(subscriber, None)
            if not subscribers:
                del self._subscribers[key]

    def notify(self, key: Hashable, amount: int = 0) -> None:
        """Notify the subscribers of ``key``, then its watchers in order of arrival. ``amount`` is passed on to them. If
        a watcher raises, its response fails, and the error is logged instead of raised."""
        subscribers = self._subscribers.get(key)
        if subscribers is not None:
            for subscriber in tuple(subscribers):
                subscriber.on_change(key, amount)
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for delayed in tuple(watchers):
            try:
                go_on = delayed.on_change(key, amount)
            except Exception as error:  # the notifier has completed its own work, which must not fail because of this
                self._failures.report("a delayed response failed", error, delayed.get_loop().time())
                delayed.fail(error)
                go_on = True
            if not go_on:
                break

    def expire_all(self) -> None:
        """Call ``expired`` of every delayed response now, because the broker is stopping."""
        for delayed in dict.fromkeys(delayed for watchers in self._watchers.values() for delayed in watchers):
            delayed.expired()

    def _remove(self, delayed: Delayed[T]) -> None:
        self.waiting -= 1
        for key in delayed._keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(delayed, None)
                if not watchers:
                    del self._watchers[key]
