"""A key that is held: bound to a session, and lost with it, or as soon as somebody deletes or replaces the key."""

from __future__ import annotations

import asyncio

from parley.consensus.backend import At, Backend, Check, Delete, Revision, Session, SessionState
from parley.consensus.errors import CoordinationError, PreconditionFailed
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer


class HeldKey:
    """What holding a key has in common, whatever it means to hold it.

    :ivar lost: set as soon as this process knows that the key is not its own any more, whatever ended it.
    """

    def __init__(self, key: str, revision: Revision, backend: Backend, session: Session, writer: Writer) -> None:
        """``revision`` is that of the write which made the key."""
        self.lost = asyncio.Event()
        self._key = key
        self._revision = revision
        self._backend = backend
        self._session = session
        self._writer = writer
        name = f"{type(self).__name__.lower()} {key}"
        self._task = asyncio.get_running_loop().create_task(self._watch(), name=name)
        session.add_callback(self._on_session)
        self._on_session(session.state)

    def guard(self) -> Check:
        """The check that makes the store answer ``Fenced`` to a write once the key is held no longer."""
        return Check(self._key, At(self._revision), fences=True)

    async def _release(self) -> None:
        """Delete the key, at once, unless it is lost already. ``lost`` is set in any case.

        :raises Retriable: the store cannot be reached; the key may stay until the session ends.
        """
        if self.lost.is_set():
            return
        try:
            await self._writer.commit([Check(self._key, At(self._revision))], [Delete(self._key)])
        except PreconditionFailed:
            pass  # another's in the meantime
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
            async with self._backend.watch(self._key) as watch:
                async for event in watch:
                    view.apply(event)
                    entry = view.entries.get(self._key)
                    if entry is None or entry.revision != self._revision:
                        break
        except CoordinationError:
            pass  # closed, or not the store we knew: either way nothing can be held here
        self._end()
