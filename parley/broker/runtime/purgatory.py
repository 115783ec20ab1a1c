"""Answers that wait for an event, keyed by what they wait for.

A produce request waits until its replicas have its records, a fetch until there is enough to send: each is one
:class:`Delayed` future with one timer, watching the partitions it names. No coroutine is parked for it. Whoever changes
a partition calls :meth:`Purgatory.notify`; a Delayed decides for itself whether it is done.
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
"""No client waits longer, whatever timeout it names: a wait must end even if the client is gone."""


class Delayed(asyncio.Future[T]):
    """An answer to come. A subclass says when in :meth:`on_news`, and what is answered in :meth:`expired`.

    Cancelling one (its client is gone) takes it out of its purgatory.
    """

    _purgatory: Purgatory | None = None
    _keys: tuple[Hashable, ...] = ()
    _timer: asyncio.TimerHandle | None = None

    def on_news(self, key: Hashable, amount: int) -> bool:
        """A key watched has changed; ``amount`` is what the notifier says of it (bytes, for fetches).

        Calls :meth:`complete` if the answer can be given now. Answers False where later watchers of the same key
        need not be asked, since they cannot be further than this one.
        """
        raise NotImplementedError

    def expired(self) -> None:
        """The time is up: must call :meth:`complete`."""
        raise NotImplementedError

    def hurry(self) -> None:
        """The next request of the same connection has come: does nothing where an answer may let it wait."""

    def complete(self, result: T) -> None:
        """Give the answer and leave the purgatory; nothing happens if the answer was given before."""
        if not self.done():
            self._leave()
            self.set_result(result)

    def fail(self, error: Exception) -> None:
        """End with an error and leave the purgatory; nothing happens if the answer was given before."""
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
    """Who hears of every change of a key, for as long as it wants. Hashed by identity."""

    def on_news(self, key: Hashable, amount: int) -> None:
        """A key subscribed to has changed; ``amount`` is what the notifier says of it."""


class Purgatory:
    """The delayed answers of one kind."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, dict[Delayed[Any], None]] = {}
        self._subscribers: dict[Hashable, dict[Subscriber, None]] = {}
        self._failures = FailureLog(_log)
        self.waiting = 0
        """How many answers wait."""

    def watch(self, delayed: Delayed[T], keys: Iterable[Hashable], timeout_s: float) -> None:
        """Hold ``delayed`` until it completes, at the latest after ``timeout_s``; a key must be hashed by identity
        or value for as long."""
        delayed._purgatory = self
        delayed._keys = tuple(keys)
        for key in delayed._keys:
            self._watchers.setdefault(key, {})[delayed] = None
        delayed._timer = delayed.get_loop().call_later(min(timeout_s, WAIT_MAX_S), delayed.expired)
        self.waiting += 1

    def subscribe(self, key: Hashable, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` of every change of ``key`` from now on: for who would watch it again and again."""
        self._subscribers.setdefault(key, {})[subscriber] = None

    def unsubscribe(self, key: Hashable, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` no more of ``key``."""
        subscribers = self._subscribers.get(key)
        if subscribers is not None:
            subscribers.pop(subscriber, None)
            if not subscribers:
                del self._subscribers[key]

    def notify(self, key: Hashable, amount: int = 0) -> None:
        """Tell those who watch ``key``, in the order in which they came, and those who subscribed to it."""
        subscribers = self._subscribers.get(key)
        if subscribers is not None:
            for subscriber in tuple(subscribers):
                subscriber.on_news(key, amount)
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for delayed in tuple(watchers):
            try:
                go_on = delayed.on_news(key, amount)
            except Exception as error:  # whoever notifies has done its work, whatever becomes of one that waited for it
                self._failures.report("an answer that waited has failed", error, delayed.get_loop().time())
                delayed.fail(error)
                go_on = True
            if not go_on:
                break

    def expire_all(self) -> None:
        """End every wait now, as at a stop."""
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
