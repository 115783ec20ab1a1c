"""Decide which replicas and leaders move. A pure function: the same cluster and goals give the same plan.

The goals, in order of priority:

1. No replica stays on a broker that is to be emptied.
2. The replicas of a partition are in different racks if there are enough racks, and on different hosts if there are
   enough hosts. No move makes them share more racks, or more hosts in the same number of racks.
3. The skew (``loads``) is low.

A partition keeps its number of replicas, and never has two on the same broker. Every move of a plan is necessary: the
cluster would be worse without it. The search is a descent. It considers moves in an order that depends only on the
cluster, and stops when none of them lowers the skew. Therefore, after a plan has been executed, the next plan is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from parley.tools.balance.cluster import Cluster, Partition
from parley.tools.balance.layout import Layout, exchanged, led_by
from parley.tools.balance.loads import RESOURCES, Resource
from parley.tools.balance.plan import Duty, Goals, Move, Plan

_CANDIDATES: Final = 100
"""The maximum number of replicas of a broker that each step considers, spread over their sizes."""
_PARTNERS: Final = 5
"""The maximum number of brokers that each step considers as the other side of a move, per group of ``_partners``."""
_SWAPS: Final = 24
"""The maximum number of replicas on each side that each step considers for exchanges."""
_LEAST_GAIN: Final = 1e-8
"""The minimum gain of a move. A move that lowers the skew by less is not worthwhile."""
_KEPT: Final = 0.5
"""A move is made only if at least this fraction of the gain computed when it was found remains. Otherwise the next step
considers it again."""
_LEADER_COST: Final = 0.2
"""The cost of changing the preferred leader. Moving a replica of average size costs 2."""


class _Change(NamedTuple):
    """A change to the replicas of one or two partitions that moves ``load`` from the broker ``source`` to
    ``target``."""

    score: float
    """The gain divided by the cost."""
    gain: float
    source: int
    target: int
    load: Sequence[int]
    replicas: tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...]
    """For each partition: its number, its replicas before, and its replicas after."""
    reason: Resource


def plan(cluster: Cluster, goals: Goals) -> Plan:
    """Return the plan that reaches the goals as far as possible."""
    layout = Layout(cluster, goals)
    reasons: dict[int, Duty | Resource] = {}
    if goals.emptied:
        stranded = _empty(layout, reasons)
    else:
        stranded = {}
        _spread_over_racks(layout, reasons)
        _level(layout, reasons)
        while _drop_needless(layout, reasons):
            _level(layout, reasons)
    return Plan(_moves(layout, reasons), _elections(layout, reasons), stranded)


def _moves(layout: Layout, reasons: dict[int, Duty | Resource]) -> tuple[Move, ...]:
    partitions = layout.cluster.partitions
    return tuple(
        Move(one.topic, one.index, one.replicas, layout.replicas[number], one.size, reason)
        for number, reason in reasons.items()
        if (one := partitions[number]).replicas != layout.replicas[number]
    )


def _elections(layout: Layout, reasons: dict[int, Duty | Resource]) -> tuple[tuple[str, int], ...]:
    """Return the partitions that do not move, but are led by a broker other than the preferred leader, which runs."""
    return tuple(
        (one.topic, one.index)
        for number, one in enumerate(layout.cluster.partitions)
        if one.replicas == layout.replicas[number]
        and not one.is_moving
        and one.leader not in (-1, one.replicas[0])
        and one.replicas[0] in layout.costs
    )


# --- Moves that are required regardless of the loads ---


def _empty(layout: Layout, reasons: dict[int, Duty | Resource]) -> dict[tuple[str, int], str]:
    """Move all replicas off the brokers to be emptied, largest first. Adds the moves to ``reasons``. Returns the
    partitions that keep such a replica, each with the reason."""
    stranded = {}
    partitions = layout.cluster.partitions
    held = {number for number, one in enumerate(partitions) if not layout.goals.emptied.isdisjoint(one.replicas)}
    for number in sorted(held, key=lambda each: (-partitions[each].size, each)):
        one = partitions[number]
        if not one.can_move:
            stranded[one.topic, one.index] = _why_unmovable(layout, one)
            continue
        for source in [broker for broker in one.replicas if broker in layout.goals.emptied]:
            targets = [broker for broker in layout.ids if layout.may_receive(number, broker)]
            if not targets:
                stranded[one.topic, one.index] = _why_stranded(layout, number)
                continue
            layout.move(number, _replaced(layout, number, source, targets))
            reasons[number] = Duty.EMPTY
    _level_leaders(layout, list(reasons))
    return stranded


def _level_leaders(layout: Layout, numbers: Sequence[int]) -> None:
    """Lower the skew by changing the preferred leaders of these partitions, whose replicas move anyway."""
    found = True
    while found:
        found = False
        for number in numbers:
            source, *others = layout.replicas[number]
            gains = {
                target: layout.gain(source, target, layout.leader_load_of(number))
                for target in others
                if source in layout.costs and target in layout.costs
            }
            best = max(gains, key=lambda target: (gains[target], -target), default=source)
            if gains.get(best, 0.0) > _LEAST_GAIN:
                layout.move(number, led_by(layout.replicas[number], best))
                found = True


def _why_unmovable(layout: Layout, one: Partition) -> str:
    if one.is_moving:
        return "it is already being reassigned"
    down = ",".join(str(broker) for broker in one.replicas if broker not in layout.rack_of)
    start = f"start broker {down}, or see" if down else "see"
    return f"it has no leader to copy from; {start} docs/operations.md#partitions-without-a-leader"


def _why_stranded(layout: Layout, number: int) -> str:
    others = [broker for broker in layout.ids if broker not in layout.replicas[number]]
    if not others:
        return "every other broker already holds a replica" if layout.ids else "no other broker is running"
    if any(layout.has_room(number, broker) for broker in others):
        return "the plan would copy more than its limit"
    return "no other broker has room for it"


def _replaced(layout: Layout, number: int, source: int, targets: Sequence[int]) -> tuple[int, ...]:
    """Return the partition's replicas with ``source`` replaced by the best target.

    If ``source`` was the preferred leader, the new preferred leader is the replica on the running broker that can best
    take the additional load of a leader (``Layout.crowding``).
    """
    replicas = layout.replicas[number]
    follows = layout.load_of(number, leads=False)
    target = min(
        targets,
        key=lambda broker: (
            layout.collisions(exchanged(replicas, source, broker)),
            layout.crowding(broker, follows),
            broker,
        ),
    )
    after = exchanged(replicas, source, target)
    if source != replicas[0]:
        return after
    leads = layout.leader_load_of(number)
    running = [broker for broker in after if broker in layout.costs]
    return led_by(after, min(running, key=lambda broker: (layout.crowding(broker, leads), after.index(broker))))


def _spread_over_racks(layout: Layout, reasons: dict[int, Duty | Resource]) -> None:
    """Move replicas out of racks, and off hosts, that hold more replicas of a partition than others. Adds the moves to
    ``reasons``."""
    for number, one in enumerate(layout.cluster.partitions):
        while one.can_move and layout.collisions(replicas := layout.replicas[number]):
            before = layout.collisions(replicas)
            after = [
                _replaced(layout, number, source, better)
                for source in reversed(replicas)  # prefer moving a follower to moving the preferred leader
                if source in layout.costs
                and (
                    better := [
                        broker
                        for broker in layout.ids
                        if layout.may_receive(number, broker)
                        and layout.collisions(exchanged(replicas, source, broker)) < before
                    ]
                )
            ]
            if not after:
                break
            best = min(after, key=layout.collisions)
            if reasons.get(number) is not Duty.RACK:
                reasons[number] = layout.duty(replicas, best)
            layout.move(number, best)


# --- The descent ---


def _level(layout: Layout, reasons: dict[int, Duty | Resource]) -> None:
    """Lower the skew until the search finds no change that lowers it further. Adds the moves to ``reasons``."""
    while found := sorted(_single_changes(layout), reverse=True) or sorted(_exchanges(layout), reverse=True):
        for change in found:
            gain = layout.gain(change.source, change.target, change.load)
            if gain < max(_LEAST_GAIN, _KEPT * change.gain) or not _is_possible(layout, change):
                continue
            for number, _, after in change.replicas:
                layout.move(number, after)
                if not isinstance(reasons.get(number), Duty):
                    reasons[number] = change.reason


def _is_possible(layout: Layout, change: _Change) -> bool:
    """Return True if the change can still be made: its partitions have the same replicas as when it was found, and the
    brokers may receive the new ones."""
    if len(change.replicas) > 1 and not layout.may_copy([number for number, _, _ in change.replicas]):
        return False
    for number, before, after in change.replicas:
        if layout.replicas[number] != before:
            return False
        added = change.source if change.source in after and change.source not in before else change.target
        if added not in before and not layout.may_receive(number, added):
            return False
        if layout.is_apart(change.source, change.target) and layout.collisions(after) > layout.collisions(before):
            return False
    return True


def _pairs(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of brokers that could lower a load outside the tolerance: the broker to move load from, the broker to
    move it to, and the index of the resource."""
    for at in range(len(RESOURCES)):
        fill = {broker: layout.shares.fill(broker, layout.loads[broker], at) for broker in layout.ids}
        rising = sorted(layout.ids, key=lambda broker: (fill[broker], broker))
        for broker in layout.ids:
            excess = layout.shares.excess(broker, layout.loads[broker], at)
            if excess > 0:
                lower = [other for other in rising if fill[other] < fill[broker]]
                yield from ((broker, other, at) for other in _partners(layout, broker, lower))
            elif excess < 0:
                higher = [other for other in reversed(rising) if fill[other] > fill[broker]]
                yield from ((other, broker, at) for other in _partners(layout, broker, higher))


def _partners(layout: Layout, broker: int, others: Sequence[int]) -> dict[int, None]:
    """Return the first few of ``others``, the first few in the broker's own rack, and the first few on its own host. A
    move within a host is always allowed, and one within a rack often."""
    near = [other for other in others if layout.rack_of[other] == layout.rack_of[broker]]
    nearest = [other for other in others if not layout.is_apart(other, broker)]
    return dict.fromkeys([*others[:_PARTNERS], *near[:_PARTNERS], *nearest[:_PARTNERS]])


def _single_changes(layout: Layout) -> Iterator[_Change]:
    """Yield the changes to a single partition that lower the skew."""
    partitions = layout.cluster.partitions
    samples = _Samples(layout)
    seen = set()
    for source, target, at in _pairs(layout):
        for number in samples.of(source, at):
            if (source, target, number) in seen:
                continue
            seen.add((source, target, number))
            replicas = layout.replicas[number]
            if target in replicas:
                if replicas[0] != source:
                    continue
                load, after, cost = layout.leader_load_of(number), led_by(replicas, target), _LEADER_COST
            else:
                load = layout.load_of(number, leads=replicas[0] == source)
                after = exchanged(replicas, source, target)
                cost = 1 + partitions[number].size / layout.average_size
            gain = layout.gain(source, target, load)
            if gain < _LEAST_GAIN:
                continue
            change = _Change(gain / cost, gain, source, target, load, ((number, replicas, after),), RESOURCES[at])
            if _is_possible(layout, change):
                yield change


def _exchanges(layout: Layout) -> Iterator[_Change]:
    """Yield the exchanges of two replicas between two brokers that lower the skew. Used only if no single change lowers
    it."""
    partitions = layout.cluster.partitions
    samples = _Samples(layout, _SWAPS)
    for source, target, at in _pairs(layout):
        for given in samples.of(source, at):
            if target in layout.replicas[given]:
                continue
            load = layout.load_of(given, leads=layout.replicas[given][0] == source)
            for taken in samples.of(target, at):
                if source in layout.replicas[taken]:
                    continue
                back = layout.load_of(taken, leads=layout.replicas[taken][0] == target)
                if load[at] <= back[at]:
                    continue
                net = tuple(one - other for one, other in zip(load, back, strict=True))
                gain = layout.gain(source, target, net)
                if gain < _LEAST_GAIN:
                    continue
                cost = 2 + (partitions[given].size + partitions[taken].size) / layout.average_size
                replicas = (
                    (given, layout.replicas[given], exchanged(layout.replicas[given], source, target)),
                    (taken, layout.replicas[taken], exchanged(layout.replicas[taken], target, source)),
                )
                change = _Change(gain / cost, gain, source, target, net, replicas, RESOURCES[at])
                if _is_possible(layout, change):
                    yield change


class _Samples:
    """Samples of the partitions on a broker, spread over their loads of a resource."""

    def __init__(self, layout: Layout, limit: int = _CANDIDATES) -> None:
        self._layout = layout
        self._limit = limit
        self._found: dict[tuple[int, int], Sequence[int]] = {}

    def of(self, broker: int, at: int) -> Sequence[int]:
        """Return the numbers of the sampled partitions, the largest load first."""
        if (found := self._found.get((broker, at))) is None:
            found = self._found[broker, at] = self._sample(broker, at)
        return found

    def _sample(self, broker: int, at: int) -> Sequence[int]:
        layout = self._layout
        partitions = layout.cluster.partitions
        ranked = sorted(
            (number for number in layout.on[broker] if partitions[number].can_move),
            key=layout.ranks[at].__getitem__,
        )
        if RESOURCES[at] in (Resource.LEADERS, Resource.BYTES_OUT):  # followers cost nothing
            ranked.sort(key=lambda number: layout.replicas[number][0] != broker)
        if len(ranked) <= self._limit:
            return ranked
        return [ranked[place * len(ranked) // self._limit] for place in range(self._limit)]


def _drop_needless(layout: Layout, reasons: dict[int, Duty | Resource]) -> bool:
    """Take back moves without which the cluster is just as balanced. Removes them from ``reasons``. Returns True if
    there were any."""
    partitions = layout.cluster.partitions
    moved = [number for number in reasons if layout.replicas[number] != partitions[number].replicas]
    dropped = False
    for number in sorted(moved, key=lambda each: (-partitions[each].size, each)):
        before = partitions[number].replicas
        if layout.collisions(before) <= layout.collisions(layout.replicas[number]) and (
            layout.gain_of(number, before) >= -_LEAST_GAIN / 2  # sums of the same loads differ by rounding
        ):
            layout.move(number, before)
            del reasons[number]
            dropped = True
    return dropped
