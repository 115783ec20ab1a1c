"""Group membership: who is there, each with some data about itself, for as long as its session lives.

Keys: ``groups/<group>/<member>``, bound to the member's session, and ``incarnations/<group>/<member>``, a counter that
stays. Joining is one transaction over both, so each time a member joins its incarnation is higher than ever before.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from parley.consensus.backend import ABSENT, At, Backend, Check, Entry, Put, Revision, Session
from parley.consensus.errors import Conflict, PreconditionFailed
from parley.consensus.keys import segment, text_of
from parley.consensus.recipes.held_key import HeldKey
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import Writer, unwrap

FOLDER = "groups/"
INCARNATIONS = "incarnations/"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group: its id, what it said of itself, how often that id has joined, and the write it joined by."""

    id: str
    data: bytes
    incarnation: int
    revision: Revision


class Membership(HeldKey):
    """Being in a group. It ends by ``leave``, by another joining in its place, or with the session.

    :ivar incarnation: higher than at every earlier joining of this member.
    :ivar lost: set as soon as this process knows that the membership is over, whatever ended it.
    """

    def __init__(self, groups: Groups, key: str, member: Member) -> None:
        super().__init__(key, member.revision, groups.backend, groups.session, groups.writer)
        self.member = member
        self.incarnation = member.incarnation

    async def leave(self) -> None:
        """Leave the group, at once. Nothing happens if the membership is over already. ``lost`` is set in any case.

        :raises Retriable: the store cannot be reached; the key may stay until the session ends.
        """
        await self._release()


class Groups:
    """Joining and watching groups, in one session.

    :param session: what memberships are bound to. After it is LOST make another ``Groups`` with another session.
    :param rng: source of nonces and jitter.
    """

    def __init__(self, backend: Backend, session: Session, rng: random.Random | None = None) -> None:
        self.backend = backend
        self.session = session
        self.writer = Writer(backend, rng)

    async def join(self, group: str, member: str, data: bytes, *, replace: Member | None = None) -> Membership:
        """Become a member. An id that joined in this same session before is replaced.

        :param replace: take the place of this member, as ``members`` or ``watch`` gave it, without waiting for
            its session to end: an id's new incarnation, or a member known to be dead.
        :raises AlreadyExists: the id is taken by another session. Wait until it is gone, or ``replace`` it.
        :raises SessionLost: the session is over.
        :raises Retriable: the store cannot be reached; join again.
        """
        key, counter = _member_key(group, member), f"{INCARNATIONS}{segment(group)}/{segment(member)}"
        while True:
            self.session.require()
            present = await self.backend.get(key)
            stored = await self.backend.get(counter)
            old = unwrap(stored) if stored else None
            incarnation = int(old.value) + 1 if old else 1
            value = json.dumps({"incarnation": incarnation, "data": data.decode("latin-1")}).encode()
            replaceable = present is not None and (
                present.session == self.session.id or (replace is not None and replace.revision == present.revision)
            )
            try:
                result = await self.writer.commit(
                    [
                        Check(key, At(present.revision) if present and replaceable else ABSENT),
                        Check(counter, At(stored.revision) if stored else ABSENT),
                    ],
                    [Put(key, value, self.session), Put(counter, b"%d" % incarnation)],
                    replaced={counter: old.nonces} if old else {},
                )
            except PreconditionFailed as error:
                if error.key == counter or isinstance(error, Conflict):
                    continue  # somebody moved between reading and writing
                raise
            revision = result.revisions[0]
            assert revision is not None
            return Membership(self, key, Member(member, data, incarnation, revision))

    async def members(self, group: str) -> dict[str, Member]:
        """Who is there now, by id."""
        found: dict[str, Member] = {}
        after: str | None = None
        while True:
            page = await self.backend.list(_group_prefix(group), limit=1000, after=after)
            found.update((member.id, member) for member in map(_member, page.entries))
            if (after := page.next_after) is None:
                return found

    async def watch(self, group: str) -> AsyncIterator[Mapping[str, Member]]:
        """Who is there now, and again after each change; states in quick succession may be left out, never the last.

        :raises CoordinationError: what ended the watch.
        """
        view = View()
        first = True
        async with self.backend.watch(_group_prefix(group)) as watch:
            async for event in watch:
                if view.apply(event) or first:
                    first = False
                    members = map(_member, view.entries.values())
                    yield {member.id: member for member in members}


def _group_prefix(group: str) -> str:
    return f"{FOLDER}{segment(group)}/"


def _member_key(group: str, member: str) -> str:
    return f"{_group_prefix(group)}{segment(member)}"


def _member(entry: Entry) -> Member:
    fields = json.loads(unwrap(entry).value)
    member_id = text_of(entry.key.rpartition("/")[2])
    return Member(member_id, fields["data"].encode("latin-1"), fields["incarnation"], entry.revision)
