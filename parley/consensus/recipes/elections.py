"""Leader election with epochs that only increase.

An election has two keys: ``elections/<name>/leader``, bound to the leader's session, and ``elections/<name>/epoch``,
which is persistent. One transaction wins a campaign: if the leader key is absent (or at the revision of the leader to
depose) and the epoch is unchanged, it writes the leader and a higher epoch. So no two leaders ever have the same epoch.

A replaced leader may not know yet that it was replaced. Its writes carry ``Leadership.guard()``, and the store rejects
them with ``Fenced`` from the moment of the replacement. So it is always safe to depose a leader that does not respond:
``safe_until`` and ``lost`` let a leader stop early, but safety does not depend on them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from parley.consensus.backend import Entry, Revision
from parley.consensus.errors import AlreadyExists, Conflict, LeadershipLost
from parley.consensus.keys import segment
from parley.consensus.recipes.held_key import HeldKey, KeyHolder
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import unwrap
from parley.light_dataclasses import dataclass

FOLDER = "elections/"


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader named in the store: the candidate's data, the epoch, and the revision of the winning write."""

    candidate: bytes
    epoch: int
    revision: Revision


class Leadership(HeldKey):
    """A won election. It ends when the leader resigns or is deposed, or when its session ends.

    ``lost`` is set as soon as this process knows that the leadership has ended.
    """

    def __init__(self, elections: Elections, key: str, leader: Leader) -> None:
        super().__init__(key, leader.revision, elections)
        self.epoch = leader.epoch
        """The leader's epoch. It is higher than the epoch of every earlier leader, and at least the ``min_epoch`` of
        the campaign."""
        self.candidate = leader.candidate

    @property
    def safe_until(self) -> float:
        """The loop time until which this leadership cannot expire; another candidate may depose the leader earlier."""
        return self._session.safe_until

    def require(self) -> None:
        """Raise LeadershipLost if this process knows that the leadership has ended."""
        if self.lost.is_set():
            raise LeadershipLost(f"epoch {self.epoch} of {self._key} has ended")

    async def resign(self) -> None:
        """Give up the leadership now. Does nothing if it has already ended. ``lost`` is set either way.

        Raises Retriable if the store cannot be reached. The key may then remain until the session ends.
        """
        await self._release()


class Elections(KeyHolder):
    """Campaigns in elections, deposes leaders and observes them, in one session."""

    async def campaign(
        self,
        name: str,
        candidate: bytes,
        *,
        min_epoch: int = 0,
        depose: Leader | None = None,
        wait: bool = True,
    ) -> Leadership:
        """Become the leader of the election ``name``, and return the leadership.

        If the call is cancelled, this session may lead without this process knowing: close the session, or campaign
        again. Run at most one campaign of a name at a time in a session.

        :param candidate: what other processes need to know about the leader, such as id and address.
        :param min_epoch: the lowest epoch to take. Pass the highest epoch ever seen plus one, so that epochs increase
            even if the store has lost the latest ones.
        :param depose: a leader (from ``leader`` or ``observe``) to replace without waiting for its session to end. If
            it no longer leads, this is an ordinary campaign.
        :param wait: True: keep trying until the campaign is won. False: fail immediately if there is a leader.

        Raises AlreadyExists if there is a leader and ``wait`` is False, SessionLost if the session ends first, and
        Retriable if the store cannot be reached: campaign again; that also replaces a leadership won unnoticed.
        """
        key, epoch_key = _leader_key(name), _epoch_key(name)
        while True:
            self.session.require()
            entry = await self.backend.get(key)
            if entry is None or self._may_replace(entry, depose.revision if depose else None):
                try:
                    epoch, revision = await self._take(
                        key, epoch_key, lambda epoch: _leader_value(candidate, epoch), entry, number_min=min_epoch
                    )
                except (AlreadyExists, Conflict):
                    continue  # another candidate was faster, at the leader key or at the epoch
                return Leadership(self, key, Leader(candidate, epoch, revision))
            if not wait:
                raise AlreadyExists(key, f"{key} is held by epoch {_leader(entry).epoch}")
            await self._wait_for_change(key, entry.revision)

    async def leader(self, name: str) -> Leader | None:
        """Return the current leader, or None."""
        entry = await self.backend.get(_leader_key(name))
        return _leader(entry) if entry else None

    async def epoch(self, name: str) -> int:
        """Return the highest epoch of this election so far, or 0 if there has been no leader yet."""
        entry = await self.backend.get(_epoch_key(name))
        return int(unwrap(entry).value) if entry else 0

    async def observe(self, name: str) -> AsyncIterator[Leader | None]:
        """Yield the current leader, and then each change; None if there is no leader.

        May skip leaders in quick succession, but never the last one.

        Raises the CoordinationError that ended the watch.
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

    async def _wait_for_change(self, key: str, seen: Revision) -> None:
        """Wait until the leader key is no longer at the revision ``seen``, or the session is lost."""

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


def _leader_value(candidate: bytes, epoch: int) -> bytes:
    return json.dumps({"epoch": epoch, "candidate": candidate.decode("latin-1")}).encode()


def _leader(entry: Entry) -> Leader:
    fields = json.loads(unwrap(entry).value)
    return Leader(fields["candidate"].encode("latin-1"), fields["epoch"], entry.revision)
