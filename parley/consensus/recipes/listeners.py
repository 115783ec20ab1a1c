"""Change listeners: each change with the entry before and after it.

A watch may start over with a Snapshot at any time. A ``View`` compares each event with a copy of the state, so a
listener sees no change twice and never misses the last change to a key, even across reconnects::

    async for changes in Listeners(backend).follow("data/topics/"):
        for change in changes: ...

or with a callback: ``listener = listeners.listen("data/topics/", on_changes)``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from parley.consensus.backend import Backend, Changed, Entry, Event, Removed, Snapshot
from parley.consensus.recipes.settled_write import unwrap
from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The change to one key: created (``old`` is None), put again, or deleted (``new`` is None)."""

    key: str
    old: Entry | None
    new: Entry | None


class View:
    """A copy of the state below a prefix, updated by the events of a watch."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        """The entries by whole key, with their values in envelopes, as stored."""

    def apply(self, event: Event) -> list[KeyChange]:
        """Apply an event. Returns the changes, deletions first."""
        match event:
            case Changed(entry):
                new = {entry.key: entry}
                gone: list[str] = []
            case Removed(key):
                new, gone = {}, [key]
            case Snapshot(entries):
                new = {entry.key: entry for entry in entries}
                gone = [key for key in self.entries if key not in new]
        changes = [KeyChange(key, self.entries.pop(key), None) for key in gone if key in self.entries]
        for key, entry in new.items():
            old = self.entries.get(key)
            if old is None or old.revision != entry.revision:
                self.entries[key] = entry
                changes.append(KeyChange(key, old, entry))
        return changes


class Listener:
    """A running listener, created by ``Listeners.listen``. It calls its function until ``close``, or until it fails."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    async def wait(self) -> None:
        """Wait for the end. Returns after ``close``. Raises the error that ended the watch, or that the function
        raised."""
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if not self._task.cancelled():
                raise

    async def close(self) -> None:
        """Stop calling the function. Idempotent."""
        self._task.cancel()
        await asyncio.wait([self._task])


class Listeners:
    """Listens to the keys of a backend.

    :param unwrapped: True to take values out of their envelopes, False for keys that are not written by the recipes.
    """

    def __init__(self, backend: Backend, *, unwrapped: bool = True) -> None:
        self._backend = backend
        self._unwrapped = unwrapped

    async def follow(self, prefix: str) -> AsyncIterator[list[KeyChange]]:
        """Yield a list with a change for each current entry (may be empty), then a list for each event that changed
        something.

        Raises the CoordinationError that ended the watch.
        """
        view = View()
        first = True
        async with self._backend.watch(prefix) as watch:
            async for event in watch:
                changes = view.apply(event)
                if changes or first:
                    first = False
                    yield [self._out(change) for change in changes]

    def listen(self, prefix: str, on_changes: Callable[[Sequence[KeyChange]], None]) -> Listener:
        """Call ``on_changes`` with each list from ``follow``, in the background, until the returned listener is closed.

        If ``on_changes`` raises, the listener ends, and ``Listener.wait`` raises the error.
        """

        async def run() -> None:
            async for changes in self.follow(prefix):
                on_changes(changes)

        return Listener(asyncio.get_running_loop().create_task(run(), name=f"listen {prefix}"))

    def _out(self, change: KeyChange) -> KeyChange:
        if not self._unwrapped:
            return change
        return KeyChange(change.key, _unwrapped(change.old), _unwrapped(change.new))


def _unwrapped(entry: Entry | None) -> Entry | None:
    return entry and Entry(entry.key, unwrap(entry).value, entry.revision, entry.session)
