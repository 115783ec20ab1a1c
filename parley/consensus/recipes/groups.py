"""Group membership: the members of a group, each with some data about itself, until its session ends.

A member has two keys: ``groups/<group>/<member>``, bound to its session, and ``incarnations/<group>/<member>``, a
persistent counter. One transaction joins a group and writes both keys, so each time a member joins, its incarnation is
higher than ever before.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping

from parley.consensus.backend import Entry, Revision
from parley.consensus.errors import AlreadyExists, Conflict
from parley.consensus.keys import segment, text_of
from parley.consensus.recipes.held_key import HeldKey, KeyHolder
from parley.consensus.recipes.listeners import View
from parley.consensus.recipes.settled_write import unwrap
from parley.light_dataclasses import dataclass

FOLDER = "groups/"
INCARNATIONS = "incarnations/"


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group: its id, its data, its incarnation (a number that increases with every join under this id),
    and the revision of the joining write."""

    id: str
    data: bytes
    incarnation: int
    revision: Revision


class Membership(HeldKey):
    """The membership of this process in a group. It ends when the member leaves or is replaced, or when its session
    ends.

    ``lost`` is set as soon as this process knows that the membership has ended.
    """

    def __init__(self, groups: Groups, key: str, member: Member) -> None:
        super().__init__(key, member.revision, groups)
        self.member = member
        self.incarnation = member.incarnation
        """The number of this join. It is higher than for any earlier join of this member, and at least the
        ``min_incarnation`` of this join."""

    async def leave(self) -> None:
        """Leave the group now. Does nothing if the membership has already ended. ``lost`` is set either way.

        Raises Retriable if the store cannot be reached. The key may then remain until the session ends.
        """
        await self._release()


class Groups(KeyHolder):
    """Joins groups and watches their members, in one session."""

    async def join(
        self, group: str, member: str, data: bytes, *, replace: Member | None = None, min_incarnation: int = 1
    ) -> Membership:
        """Become a member of the group, and return the membership. Replaces a member with the same id that has joined
        in this session.

        :param replace: a member (from ``members`` or ``watch``) that is known to be dead, to replace it without waiting
            for its session to end.
        :param min_incarnation: the lowest incarnation to take. Pass the highest one ever seen plus one, so that
            incarnations increase even if the store has lost the latest ones.

        Raises AlreadyExists if the id is taken by another session (wait until that ends, or ``replace`` the member),
        SessionLost if the session has ended, and Retriable if the store cannot be reached: join again.
        """
        key, counter = _member_key(group, member), _counter_key(group, member)
        while True:
            self.session.require()
            present = await self.backend.get(key)
            if present is not None and not self._may_replace(present, replace.revision if replace else None):
                present = (
                    None  # expect absence, so that the store rejects the write unless the key has just become absent
                )
            try:
                incarnation, revision = await self._take(
                    key,
                    counter,
                    lambda incarnation: _member_value(data, incarnation),
                    present,
                    number_min=min_incarnation,
                )
            except Conflict:
                continue  # another client wrote between the read and the write
            except AlreadyExists as error:
                if error.key == counter:
                    continue
                raise
            return Membership(self, key, Member(member, data, incarnation, revision))

    async def members(self, group: str) -> dict[str, Member]:
        """Return the current members by id."""
        found: dict[str, Member] = {}
        after: str | None = None
        while True:
            page = await self.backend.list(_group_prefix(group), limit=1000, after=after)
            found.update((member.id, member) for member in map(_member, page.entries))
            if (after := page.next_after) is None:
                return found

    async def latest_incarnation(self, group: str, member: str) -> int:
        """Return the incarnation of the latest join under this member id; 0 if there was none."""
        stored = await self.backend.get(_counter_key(group, member))
        return 0 if stored is None else int(unwrap(stored).value)

    async def watch(self, group: str) -> AsyncIterator[Mapping[str, Member]]:
        """Yield the members now and after each change. May skip states in quick succession, but never the last one.

        Raises the CoordinationError that ended the watch.
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


def _counter_key(group: str, member: str) -> str:
    return f"{INCARNATIONS}{segment(group)}/{segment(member)}"


def _member_value(data: bytes, incarnation: int) -> bytes:
    return json.dumps({"incarnation": incarnation, "data": data.decode("latin-1")}).encode()


def _member(entry: Entry) -> Member:
    fields = json.loads(unwrap(entry).value)
    member_id = text_of(entry.key.rpartition("/")[2])
    return Member(member_id, fields["data"].encode("latin-1"), fields["incarnation"], entry.revision)
