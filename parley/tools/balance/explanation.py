"""Describe a plan: the loads before and after as bars, the moves in sentences, and everything as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Final

from parley.tools.balance.cluster import Cluster
from parley.tools.balance.layout import Layout
from parley.tools.balance.loads import RESOURCES, Resource
from parley.tools.balance.plan import Duty, Goals, Move, Plan, after
from parley.tools.cli.byte_sizes import bytes_text
from parley.tools.plurals import plural

_TITLES: Final = {
    Resource.REPLICAS: "replicas",
    Resource.LEADERS: "leaders",
    Resource.DISK: "disk",
    Resource.BYTES_IN: "bytes in",
    Resource.BYTES_OUT: "bytes out",
}
_HAS: Final = {
    Resource.REPLICAS: "has {} replicas",
    Resource.LEADERS: "leads {} partitions",
    Resource.DISK: "has {} on disk",
    Resource.BYTES_IN: "receives {}",
    Resource.BYTES_OUT: "sends {}",
}
_BAR: Final = 24
"""The maximum length of a bar, in characters."""
_LISTED: Final = 20
"""The maximum number of moves listed in the text. The JSON output lists all of them."""


@dataclass(slots=True)
class _Group:
    """The replicas or leaders that one broker gives or gets for the same reason: their number, bytes, and the other
    brokers."""

    replicas: int = 0
    bytes: int = 0
    others: set[int] = field(default_factory=set)


def lines(cluster: Cluster, plan: Plan, goals: Goals) -> list[str]:
    """Return the plan as lines of text: the bars, then the sentences."""
    before, done = Layout(cluster, goals), Layout(after(cluster, plan), goals)
    return [*bars(before, done), "", *_away(before), *sentences(before, plan)]


def bars(before: Layout, done: Layout) -> list[str]:
    """Return bars of each broker's load before and after, for each resource whose load is not zero everywhere."""
    found: list[str] = []
    for at, resource in enumerate(RESOURCES):
        most = max([load[at] for layout in (before, done) for load in layout.loads.values()], default=0)
        if not most:
            continue
        found += ["", f"{_TITLES[resource]} (before | after)"] if found else [f"{_TITLES[resource]} (before | after)"]
        for broker in sorted(before.loads):
            first, last = before.loads[broker][at], done.loads[broker][at]
            state = "" if broker in done.costs else "  to be emptied"
            if broker in done.costs and done.shares.excess(broker, done.loads[broker], at):
                state = f"  balanced: {_range(done, broker, at)}"
            found.append(
                f"  broker {broker:<4} {_bar(first, most)} {_amount(first, at):>12} | "
                f"{_bar(last, most)} {_amount(last, at):>12}{state}"
            )
    return found


def _bar(amount: int, most: int) -> str:
    return f"{'#' * (-(-amount * _BAR // most)):<{_BAR}}"


def _amount(amount: float, at: int) -> str:
    if RESOURCES[at] in (Resource.REPLICAS, Resource.LEADERS):
        return f"{amount:,.0f}"
    rate = "" if RESOURCES[at] is Resource.DISK else "/s"
    return f"{bytes_text(round(amount))}{rate}"


def _range(layout: Layout, broker: int, at: int) -> str:
    least, most, _ = layout.shares.bounds[broker][at]
    return f"{_amount(max(0, ceil(least)), at)} to {_amount(floor(most), at)}"


def _away(before: Layout) -> Iterator[str]:
    """Yield a sentence for each broker that holds replicas but is offline."""
    held = Counter(id_ for one in before.cluster.partitions for id_ in one.replicas if id_ not in before.loads)
    for broker, count in sorted(held.items()):
        yield (
            f"Broker {broker} is not running. Its {plural(count, 'replica')} stay on it, and count in no broker's "
            "share. Start the broker first, or empty it with --empty-broker."
        )


def sentences(before: Layout, plan: Plan) -> list[str]:
    """Return sentences that explain which replicas and leaders move, and why."""
    if plan.is_empty and not plan.stranded:
        return ["Nothing moves: " + _why_nothing(before)]
    found = [_summary(plan)] if not plan.is_empty else []
    found += _reasons(before, plan)
    if plan.elections:
        found.append(f"{plural(len(plan.elections), 'partition')} return to their preferred leader without a copy.")
    for (topic, index), reason in (plan.stranded or {}).items():
        found.append(f"{topic}-{index} keeps its replica on the broker that is to be emptied: {reason}.")
    for move in plan.moves[:_LISTED]:
        what = bytes_text(move.bytes) if move.added else "no copy"
        found.append(f"  {move.topic}-{move.index}: {_ids(move.before)} -> {_ids(move.after)} ({what})")
    if len(plan.moves) > _LISTED:
        found.append(f"  ... and {len(plan.moves) - _LISTED:,} more; --json lists all")
    return found


def _why_nothing(before: Layout) -> str:
    if before.goals.emptied:
        return f"broker {_ids(sorted(before.goals.emptied))} holds no replica."
    if not before.skew():
        return f"every load is within {before.goals.tolerance:.0%} of its share."
    return "no allowed move reduces the remaining imbalance."


def _summary(plan: Plan) -> str:
    copies = sum(len(move.added) for move in plan.moves)
    reordered = sum(not move.added for move in plan.moves)
    parts = [f"{plural(copies, 'replica')} ({bytes_text(plan.bytes)}) to copy"] if copies else []
    parts += [f"{plural(reordered, 'preferred leader')} to change without a copy"] if reordered else []
    return f"{plural(len(plan.moves), 'partition')} to move: {', '.join(parts)}." if parts else "No replica moves."


def _reasons(before: Layout, plan: Plan) -> Iterator[str]:
    """Yield one sentence for all moves of a broker with the same reason.

    A move counts for its source or its target, whichever is further from its share.
    """
    groups: dict[tuple[Duty | Resource, int, bool], _Group] = {}
    for move in plan.moves:
        sources, targets = (move.removed, move.added) if move.added else (move.before[:1], move.after[:1])
        for source, target in zip(sources, targets, strict=True):
            gives = _is_giver(before, move, source, target)
            group = groups.setdefault((_reason(move), source if gives else target, gives), _Group())
            group.replicas += 1
            group.bytes += move.size if move.added else 0
            group.others.add(target if gives else source)
    for (reason, broker, gives), group in groups.items():
        size = f" ({bytes_text(group.bytes)})" if group.bytes else ""
        thing = "leader" if not size and reason in (Resource.LEADERS, Resource.BYTES_OUT) else "replica"
        what = f"{plural(group.replicas, thing)}{size}"
        others = f"broker{'s' if len(group.others) > 1 else ''} {_ids(sorted(group.others))}"
        verb = f"gives {what} to {others}" if gives else f"gets {what} from {others}"
        yield f"Broker {broker} {verb}: {_because(before, reason, broker)}."


def _reason(move: Move) -> Duty | Resource:
    """Return the reason to show. A move that changes only the preferred leader is shown as balancing leaders."""
    return move.reason if move.added or move.reason is Resource.BYTES_OUT else Resource.LEADERS


def _is_giver(before: Layout, move: Move, source: int, target: int) -> bool:
    reason = _reason(move)
    if isinstance(reason, Duty) or source not in before.costs:
        return True
    at = RESOURCES.index(reason)
    fill = [abs(before.shares.fill(broker, before.loads[broker], at) - 1) for broker in (source, target)]
    return fill[0] > fill[1]


def _because(before: Layout, reason: Duty | Resource, broker: int) -> str:
    if reason is Duty.EMPTY:
        return "it is to be emptied"
    if reason is Duty.RACK:
        return "its rack has two replicas of the same partition"
    if reason is Duty.HOST:
        return "its host has two replicas of the same partition"
    at = RESOURCES.index(reason)
    share = before.shares.shares[broker][at]
    return f"it {_HAS[reason].format(_amount(before.loads[broker][at], at))}, its share is {_amount(share, at)}"


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def as_data(cluster: Cluster, plan: Plan, goals: Goals) -> dict[str, object]:
    """Return the plan as JSON data."""
    before, done = Layout(cluster, goals), Layout(after(cluster, plan), goals)
    racks = {broker.id: broker.rack for broker in cluster.brokers}
    hosts = {broker.id: broker.host for broker in cluster.brokers}

    def loads(load: Sequence[int]) -> dict[str, int]:
        return {str(resource): amount for resource, amount in zip(RESOURCES, load, strict=True)}

    return {
        "brokers": [
            {
                "broker": broker,
                "rack": racks.get(broker),
                "hostLabel": hosts.get(broker),
                "before": loads(load),
                "after": loads(done.loads[broker]),
            }
            for broker, load in sorted(before.loads.items())
        ],
        "bytes": plan.bytes,
        "skew": {"before": before.skew(), "after": done.skew()},
        "moves": [
            {
                "topic": move.topic,
                "partition": move.index,
                "before": list(move.before),
                "after": list(move.after),
                "bytes": move.bytes,
                "reason": str(move.reason),
            }
            for move in plan.moves
        ],
        "elections": [{"topic": topic, "partition": index} for topic, index in plan.elections],
        "stranded": [
            {"topic": topic, "partition": index, "reason": reason}
            for (topic, index), reason in (plan.stranded or {}).items()
        ],
    }
