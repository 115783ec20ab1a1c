"""The usage of quotas, for each user and client id that share one.

Clients choose their client ids, so there may be any number of them. An entry that has not been used for an hour is
removed, as in Kafka. There are at most ``ENTRIES_MAX`` entries: beyond that, the least recently used entry is removed.
A client that keeps using its quota keeps its entry, whatever ids another client invents.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Final, Generic, TypeVar

from parley.broker.quotas.precedence import Limit

ENTRIES_MAX: Final = 10_000
"""The maximum number of entries of one kind of quota."""
EXPIRED_S: Final = 3600.0
"""An entry is removed after this many seconds without use."""
NAME_MAX: Final = 256
"""The maximum length of a name in an entry, in characters. A digest of the whole name distinguishes longer names."""

M = TypeVar("M")


class Usage(Generic[M]):
    """The usage of a quota by the clients that share it."""

    __slots__ = ("last_used_s", "limit", "measure", "throttle_seconds", "throttles", "used")

    def __init__(self, measure: M) -> None:
        self.measure = measure
        self.limit = 0.0
        """The value of the quota at the last use."""
        self.last_used_s = 0.0
        self.used = 0.0
        """The sum of all amounts since the entry was created."""
        self.throttles = 0
        self.throttle_seconds = 0.0

    def throttled(self, seconds: float) -> None:
        """Record that a client was throttled for ``seconds`` because of this quota."""
        self.throttles += 1
        self.throttle_seconds += seconds


class UsageTable(Generic[M]):
    """The usage entries of one kind of quota."""

    def __init__(self, make: Callable[[], M], entries_max: int = ENTRIES_MAX) -> None:
        """``make()`` returns the measure of a new entry."""
        self._make = make
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[str, str], Usage[M]] = OrderedDict()  # the least recently used first

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, limit: Limit, now_s: float) -> Usage[M]:
        """Return the entry of the clients that share the limit, and record that it is used now. Creates the entry if
        there is none, which may remove the least recently used entry."""
        user, client_id = limit.shared_by
        key = limit.shared_by
        if len(user) > NAME_MAX or len(client_id) > NAME_MAX:
            key = _shortened(user), _shortened(client_id)
        usage = self._entries.get(key)
        if usage is None:
            self._make_room(now_s)
            usage = self._entries[key] = Usage(self._make())
        else:
            self._entries.move_to_end(key)
        usage.limit = limit.rate
        usage.last_used_s = now_s
        return usage

    def forget_unused(self, now_s: float) -> None:
        """Remove the entries that have not been used for ``EXPIRED_S``."""
        entries = self._entries
        while entries and now_s - entries[next(iter(entries))].last_used_s >= EXPIRED_S:
            entries.popitem(last=False)

    def _make_room(self, now_s: float) -> None:
        self.forget_unused(now_s)
        if len(self._entries) >= self._entries_max:
            self._entries.popitem(last=False)

    def latest(self, count: int) -> Iterator[tuple[tuple[str, str], Usage[M]]]:
        """Yield up to ``count`` entries, the most recently used first."""
        return islice(reversed(self._entries.items()), count)


def _shortened(name: str) -> str:
    if len(name) <= NAME_MAX:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: NAME_MAX - len(digest)]}{digest}"
