"""Assigns connectors and tasks to the workers of the group; the leader runs this. Decisions only.

``share_out`` is for protocol version 0: it assigns everything again, in turn. ``Sharing`` is for later versions
(KIP-415): members keep their work, and the leader assigns or revokes the difference:

1. Deleted connectors and tasks, and those that two members run, are revoked.
2. New connectors and tasks go immediately to the member with the fewest.
3. The work of a lost member is held back for ``max_delay_ms``, and then goes to new members. So a restarted worker gets
   its work back. All members join again when the delay is over.
4. If nothing is held back, members with more than their share give up the excess. The next rebalance assigns it to
   other members, once it has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from parley.pipeline.connect.distributed.protocol import NO_WORK, Work
from parley.pipeline.connect.herder_results import TaskId

T = TypeVar("T")


def share_out(members: Iterable[str], wanted: Work) -> dict[str, Work]:
    """Assign all work round-robin: connectors first, then tasks, both in the order of their names."""
    order = sorted(members)
    shares: dict[str, tuple[set[str], set[TaskId]]] = {member: (set(), set()) for member in order}
    turn = 0
    for name in sorted(wanted.connectors):
        shares[order[turn % len(order)]][0].add(name)
        turn += 1
    for task in sorted(wanted.tasks):
        shares[order[turn % len(order)]][1].add(task)
        turn += 1
    return {member: Work(frozenset(names), frozenset(tasks)) for member, (names, tasks) in shares.items()}


@dataclass(frozen=True, slots=True)
class Decision:
    """The work that each member gets and loses, and the ms until members join again to get work that was held back."""

    assigned: Mapping[str, Work]
    revoked: Mapping[str, Work]
    delay_ms: int = 0


@dataclass(slots=True)
class Sharing:
    """The state that the leader keeps between rebalances. A new leader starts without it."""

    max_delay_ms: int
    _given: Work = NO_WORK
    """The work that the members had, or were assigned, after the last rebalance."""
    _members: frozenset[str] = frozenset()
    _held_until_ms: int | None = None
    _candidates: set[str] = field(default_factory=set)
    """Members that have joined since work was held back. They get that work first."""

    def decide(self, has: Mapping[str, Work], wanted: Work, now_ms: int) -> Decision:
        """Assign ``wanted`` to the members. ``has`` is the work that each member reports."""
        doubled = _doubled(has.values())
        kept = {member: (work & wanted) - doubled for member, work in has.items()}
        revoked = {member: work - kept[member] for member, work in has.items()}
        free = wanted - Work.union(kept.values()) - doubled  # work that two members have must first be stopped by both
        lost = free & self._given
        fresh = free - lost
        self._candidates |= has.keys() - self._members if self._held_until_ms is not None else set()
        delay = self._delay(lost, now_ms)
        given = dict.fromkeys(has, NO_WORK)
        if lost and delay == 0:
            among = sorted(self._candidates & has.keys()) or sorted(has)
            _give(lost, among, kept, given)
            self._candidates.clear()
        _give(fresh, sorted(has), kept, given)
        if delay == 0 and not any(revoked.values()):
            revoked = _too_much(kept, given)
        self._given = (Work.union(kept.values()) | Work.union(given.values()) | (lost if delay else NO_WORK)) - (
            Work.union(revoked.values())
        )
        self._members = frozenset(has)
        return Decision(given, revoked, delay)

    def _delay(self, lost: Work, now_ms: int) -> int:
        """Return for how many ms lost work is still held back; 0 means that it is assigned now."""
        if not lost:
            self._held_until_ms = None
            self._candidates.clear()
            return 0
        if self._held_until_ms is None:
            self._held_until_ms = now_ms + self.max_delay_ms
        left = self._held_until_ms - now_ms
        if left <= 0:
            self._held_until_ms = None
            return 0
        return left


def _doubled(parts: Iterable[Work]) -> Work:
    seen = twice = NO_WORK
    for part in parts:
        twice |= seen & part
        seen |= part
    return twice


def _give(work: Work, among: Iterable[str], kept: Mapping[str, Work], given: dict[str, Work]) -> None:
    """Assign each connector to the member with the fewest connectors, then each task to that with the fewest tasks."""
    members = list(among)
    _give_kind(sorted(work.connectors), members, kept, given, lambda one: len(one.connectors), _as_connector)
    _give_kind(sorted(work.tasks), members, kept, given, lambda one: len(one.tasks), _as_task)


def _as_connector(name: str) -> Work:
    return Work(connectors=frozenset((name,)))


def _as_task(task: TaskId) -> Work:
    return Work(tasks=frozenset((task,)))


def _give_kind(
    items: Iterable[T],
    members: list[str],
    kept: Mapping[str, Work],
    given: dict[str, Work],
    count: Callable[[Work], int],
    as_work: Callable[[T], Work],
) -> None:
    load = {member: count(kept[member]) + count(given[member]) for member in members}
    for item in items:
        least = min(members, key=lambda member: (load[member], member))
        given[least] |= as_work(item)
        load[least] += 1


def _too_much(kept: Mapping[str, Work], given: Mapping[str, Work]) -> dict[str, Work]:
    """Return the work that each member has beyond its share of the connectors and of the tasks."""
    now = {member: kept[member] | given[member] for member in kept}
    connectors = _beyond({member: len(one.connectors) for member, one in now.items()})
    tasks = _beyond({member: len(one.tasks) for member, one in now.items()})
    return {
        member: Work(
            frozenset(sorted(kept[member].connectors, reverse=True)[: connectors[member]]),
            frozenset(sorted(kept[member].tasks, reverse=True)[: tasks[member]]),
        )
        for member in kept
    }


def _beyond(counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many each member must give up so that the members' numbers differ by at most one."""
    if max(counts.values()) - min(counts.values()) <= 1:
        return dict.fromkeys(counts, 0)
    least, over = divmod(sum(counts.values()), len(counts))
    most_first = sorted(counts, key=lambda member: (-counts[member], member))
    return {member: max(0, counts[member] - least - (place < over)) for place, member in enumerate(most_first)}
