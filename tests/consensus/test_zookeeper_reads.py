"""A range of ZooKeeper's keys is read in one state, although it takes several requests between which keys change. The
tree is simulated here."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from parley.consensus.zookeeper.consistent_reads import Change, Reader, State, Stored
from parley.consensus.zookeeper.multi_requests import Stat

DEAD, ALIVE, ABSENT = "dead", "alive", "absent"

Kinds = dict[str, str]
"""The keys of a tree, and what they are: bound to a session that has ended, present, or absent."""


Changes = Sequence[tuple[str, str] | None]
"""For each request, the key that changes after it and what it becomes; None if no key changes."""


class ChangingTree(Reader):
    """Reads a tree of which a key may change after each request. ``states`` has the tree before and after each
    change."""

    def __init__(self, first: Kinds, changes: Changes) -> None:
        self.states = [first]
        self._log: list[str] = []
        self._changes = list(changes)

    def _change(self) -> None:
        if self._changes and (change := self._changes.pop(0)):
            key, kind = change
            self.states.append(self.states[-1] | {key: kind})
            self._log.append(key)

    async def names(self, *, fresh: bool) -> tuple[list[str], int]:
        found = [key for key, kind in self.states[-1].items() if kind != ABSENT], len(self._log)
        self._change()
        return found

    async def state(
        self, keys: Sequence[str] = (), *, fresh: bool, buckets: Sequence[str] = (), entries: range = range(0)
    ) -> State:
        end = len(self._log)
        found = {key: self._stored(key) for key in keys}
        changes = tuple(Change(number, number, (self._log[number],)) for number in entries if number < end)
        self._change()
        return State(frozenset(), found, {}, changes, end)

    def _stored(self, key: str) -> Stored | None:
        kind = self.states[-1].get(key, ABSENT)
        stat = Stat(mzxid=0, version=0, cversion=0, children=0)
        return None if kind == ABSENT else Stored(key, b"", stat, DEAD if kind == DEAD else None, kind == ALIVE)


keys, kinds = st.sampled_from("abcdef"), st.sampled_from((DEAD, ALIVE, ABSENT))


@example(1, {"a": DEAD, "b": ALIVE}, [None, ("a", ALIVE)])
@given(st.integers(1, 4), st.dictionaries(keys, kinds), st.lists(st.none() | st.tuples(keys, kinds), max_size=12))
async def test_a_page_is_the_beginning_of_one_state(limit: int, first: Kinds, changes: Changes) -> None:
    """Also if a key is dead when it is read, and alive when the page has been extended to replace it."""
    tree = ChangingTree(first, changes)
    found = await tree.range("", fresh=True, limit=limit)
    there = sorted(key for key, kind in tree.states[found.position].items() if kind == ALIVE)
    assert [stored.key for stored in found.stored] == there[:limit]
    assert found.more or len(there) <= limit
