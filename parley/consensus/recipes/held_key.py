"""Keys held by one session. Each holder of a key gets a number from a counter that outlives the key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from parley.consensus.backend import ABSENT, At, Backend, Check, Delete, Entry, Put, Revision, Session, SessionState
from parley.consensus.errors import CoordinationError, PreconditionFailed
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap


class KeyHolder:
    """Takes keys for one session. The base of ``Elections`` and ``Groups``.

    :param session: holds every key taken here. After it is LOST, create another holder with another session.
    :param rng: the source of nonces and jitter.
    """

    def __init__(self, backend: Backend, session: Session, rng: random.Random | None = None) -> None:
        self.backend = backend
        self.session = session
        self.writer = Writer(backend, rng)

    def _may_replace(self, holder: Entry, replaceable: Revision | None) -> bool:
        """Return True if the holder is this session, or is still at the revision that the caller wants to replace."""
        return holder.session == self.session.id or holder.revision == replaceable

    async def _take(
        self, key: str, counter: str, value: Callable[[int], bytes], replaced: Entry | None, *, number_min: int = 1
    ) -> tuple[int, Revision]:
        """Take the key in one transaction that also increments its counter. Returns the new number and the revision.

        The number is higher than every earlier one, and at least ``number_min``. The value written is
        ``value(number)``. Raises AlreadyExists or Conflict if the key no longer has the entry ``replaced`` (None: if
        the key is present), or if another client has changed the counter (then the error's ``key`` is the counter).
        """
        stored = await self.backend.get(counter)
        old = unwrap(stored) if stored else None
        number = max(int(old.value) + 1 if old else 1, number_min)
        result = await self.writer.commit(
            [
                Check(key, At(replaced.revision) if replaced else ABSENT),
                Check(counter, At(stored.revision) if stored else ABSENT),
            ],
            [Put(key, value(number), self.session), Put(counter, b"%d" % number)],
            replaced={counter: old.nonces} if old else {},
        )
        revision = result.revisions[0]
        assert revision is not None
        return number, revision


class HeldKey:
    """A key that the session holds. The base of ``Leadership`` and ``Membership``."""

    def __init__(self, key: str, revision: Revision, holder: KeyHolder) -> None:
        """``revision`` is the revision of the write that took the key."""
        self.lost = asyncio.Event()
        """Set as soon as this process knows that it no longer holds the key."""
        self._key = key
        self._revision = revision
        self._holder = holder
        self._session = holder.session
        name = f"{type(self).__name__.lower()} {key}"
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=name)
        self._session.add_callback(self._on_session)
        self._on_session(self._session.state)

    def guard(self) -> Check:
        """Return a check for transactions: the store rejects them with ``Fenced`` once the key is no longer held."""
        return Check(self._key, At(self._revision), fences=True)

    async def _release(self) -> None:
        """Delete the key now, unless it is already lost. ``lost`` is set either way.

        Raises Retriable if the store cannot be reached. The key may then remain until the session ends.
        """
        if self.lost.is_set():
            return
        try:
            await self._holder.writer.commit([Check(self._key, At(self._revision))], [Delete(self._key)])
        except PreconditionFailed:
            pass  # another session holds the key now
        finally:
            self._end()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._end()

    def _end(self) -> None:
        self._session.remove_callback(self._on_session)
        self.lost.set()
        self._task.cancel()

    async def _watch(self) -> None:
        view = View()
        try:
            async with self._holder.backend.watch(self._key) as watch:
                async for event in watch:
                    view.apply(event)
                    entry = view.entries.get(self._key)
                    if entry is None or entry.revision != self._revision:
                        break
        except CoordinationError:
            pass  # the backend is closed, or its store was replaced: either way, no key can be held here
        self._end()
