"""Leader election with epochs that only rise.

Keys of the election ``name``: ``elections/<name>/leader``, bound to the leader's session, and
``elections/<name>/epoch``, which stays. A campaign is won by one transaction: leader absent (or at the revision of the
leader being deposed) and epoch unchanged -> put leader, put a higher epoch. So no epoch is ever held by two, and the
epoch is data that outlives the leaders and can be carried to another store.

A leader that has been replaced may not know it yet. Therefore every write it makes carries ``Leadership.guard()``, and
is refused with ``Fenced`` from the moment of the replacement on. That is also why deposing a leader that does not
answer is safe at any time: ``safe_until`` and ``lost`` are for giving up early, not for safety.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from parley.consensus.backend import ABSENT, At, Backend, Check, Entry, Put, Revision, Session
from parley.consensus.errors import (
    AlreadyExists,
    Conflict,
    LeadershipLost,
)
from parley.consensus.keys import segment
from parley.consensus.recipes.held_key import HeldKey
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap

FOLDER = "elections/"


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as the store says: what the candidate said of itself, its epoch, and the write that elected it."""

    candidate: bytes
    epoch: int
    revision: Revision


class Leadership(HeldKey):
    """An election won. It ends by ``resign``, by being deposed, or with the session.

    :ivar epoch: higher than that of every leader before, and at least the ``min_epoch`` asked for.
    :ivar lost: set as soon as this process knows that the leadership is over, whatever ended it.
    """

    def __init__(self, elections: Elections, key: str, leader: Leader) -> None:
        super().__init__(key, leader.revision, elections.backend, elections.session, elections.writer)
        self.epoch = leader.epoch
        self.candidate = leader.candidate

    @property
    def safe_until(self) -> float:
        """The loop time until which nobody takes over for silence alone; being deposed is possible before."""
        return self._session.safe_until

    def require(self) -> None:
        """Do nothing unless this process knows that the leadership is over.

        :raises LeadershipLost: it is.
        """
        if self.lost.is_set():
            raise LeadershipLost(f"epoch {self.epoch} of {self._key} is over")

    async def resign(self) -> None:
        """Let another lead, at once. Nothing happens if the leadership is over already. ``lost`` is set in any case.

        :raises Retriable: the store cannot be reached; the key may stay until the session ends.
        """
        await self._release()


class Elections:
    """Campaigning, deposing and observing, in one session.

    :param session: what leaderships are bound to. After it is LOST make another ``Elections`` with another session.
    :param rng: source of nonces and jitter.
    """

    def __init__(self, backend: Backend, session: Session, rng: random.Random | None = None) -> None:
        self.backend = backend
        self.session = session
        self.writer = Writer(backend, rng)

    async def campaign(
        self,
        name: str,
        candidate: bytes,
        *,
        min_epoch: int = 0,
        depose: Leader | None = None,
        wait: bool = True,
    ) -> Leadership:
        """Become the leader.

        Cancelling it may leave this session leading without anybody here knowing; close the session, or campaign again.

        :param candidate: what others need to know of the winner, such as id and address.
        :param min_epoch: the epoch will be at least this. Pass one more than the highest epoch ever seen, so that
            epochs rise even where the store's own memory of them was lost.
        :param depose: replace this leader, as ``leader`` or ``observe`` gave it, without waiting for its session to
            end. If it does not lead any more, this is an ordinary campaign.
        :param wait: stay in the race until won. False: give up at once if another leads.
        :raises AlreadyExists: another leads, and ``wait`` is False.
        :raises SessionLost: the session ended before the election was won.
        :raises Retriable: the store cannot be reached; campaign again. Should this one have been won without our
            knowledge, the next in the same session replaces it: one session runs one campaign of a name at a time.
        """
        key = _leader_key(name)
        while True:
            self.session.require()
            leader = await self.backend.get(key)
            deposed = leader is not None and (
                leader.session == self.session.id or (depose is not None and leader.revision == depose.revision)
            )
            if leader is None or deposed:
                try:
                    return await self._win(name, candidate, min_epoch, leader)
                except (AlreadyExists, Conflict):
                    continue  # somebody was faster, here or at the epoch
            if not wait:
                raise AlreadyExists(key, f"{key} is held by epoch {_leader(leader).epoch}")
            await self._vacancy(key, leader.revision)

    async def leader(self, name: str) -> Leader | None:
        """Who leads now; ``None`` if nobody does."""
        entry = await self.backend.get(_leader_key(name))
        return _leader(entry) if entry else None

    async def epoch(self, name: str) -> int:
        """The highest epoch that was ever given, 0 if none was."""
        entry = await self.backend.get(_epoch_key(name))
        return int(unwrap(entry).value) if entry else 0

    async def observe(self, name: str) -> AsyncIterator[Leader | None]:
        """Who leads now, and then each change of it; leaders in quick succession may be left out, never the last one.

        :raises CoordinationError: what ended the watch.
        """
        key = _leader_key(name)
        view = View()
        first = True
        async with self.backend.watch(key) as watch:
            async for event in watch:
                if any(change.key == key for change in view.apply(event)) or first:
                    first = False
                    entry = view.entries.get(key)
                    yield _leader(entry) if entry else None

    async def _win(self, name: str, candidate: bytes, min_epoch: int, deposed: Entry | None) -> Leadership:
        key, epoch_key = _leader_key(name), _epoch_key(name)
        stored = await self.backend.get(epoch_key)
        old = unwrap(stored) if stored else None
        epoch = max(int(old.value) + 1 if old else 1, min_epoch)
        value = json.dumps({"epoch": epoch, "candidate": candidate.decode("latin-1")}).encode()
        result = await self.writer.commit(
            [
                Check(key, At(deposed.revision) if deposed else ABSENT),
                Check(epoch_key, At(stored.revision) if stored else ABSENT),
            ],
            [Put(key, value, self.session), Put(epoch_key, b"%d" % epoch)],
            replaced={epoch_key: old.nonces} if old else {},
        )
        revision = result.revisions[0]
        assert revision is not None
        return Leadership(self, key, Leader(candidate, epoch, revision))

    async def _vacancy(self, key: str, seen: Revision) -> None:
        """Wait until the leader's key is no longer as seen, or the session is lost."""

        async def replaced() -> None:
            view = View()
            async with self.backend.watch(key) as watch:
                async for event in watch:
                    view.apply(event)
                    entry = view.entries.get(key)
                    if entry is None or entry.revision != seen:
                        return

        waiting = [asyncio.ensure_future(replaced()), asyncio.ensure_future(self.session.lost.wait())]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                future.result()
        finally:
            for future in waiting:
                future.cancel()


def _leader_key(name: str) -> str:
    return f"{FOLDER}{segment(name)}/leader"


def _epoch_key(name: str) -> str:
    return f"{FOLDER}{segment(name)}/epoch"


def _leader(entry: Entry) -> Leader:
    fields = json.loads(unwrap(entry).value)
    return Leader(fields["candidate"].encode("latin-1"), fields["epoch"], entry.revision)
