"""The health of a cluster in sentences, each with advice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from parley.tools.plurals import plural

GOOD, WARNING, BAD = "good", "warning", "bad"
_IMBALANCE: Final = 0.1
_FREE_MIN: Final = 0.1
NONE_RECOVERING: Final[Mapping[int, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Finding:
    """A sentence about the health of a cluster, its level, and advice."""

    level: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The part of a partition's state that determines its health."""

    topic: str
    index: int
    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]


def findings(
    partitions: Iterable[PartitionState],
    *,
    alive: frozenset[int],
    down_since: Mapping[int, int],
    controller: int,
    moves: int = 0,
    disks: Sequence[tuple[int, str, int, int]] = (),
    recovering: Mapping[int, str] = NONE_RECOVERING,
) -> list[Finding]:
    """Return the problems of the cluster, the most severe first, or a finding that all is well.

    ``alive`` contains the ids of the running brokers. ``controller`` is negative if there is none. ``moves`` is the
    number of partitions being moved. ``disks`` are the broker, path, size and free bytes of each volume. ``down_since``
    is in ms since 1970, by broker. ``recovering`` describes, by broker, how many logs of a broker that is opening its
    logs are open.
    """
    listed = list(partitions)
    found = [
        *_of_controller(controller),
        *_of_brokers(listed, alive, down_since, recovering),
        *_of_leaders(listed, alive),
    ]
    if moves:
        found.append(Finding(GOOD, f"{plural(moves, 'partition')} {_are(moves)} being moved.", "See Work in progress."))
    for broker, path, size, free in disks:
        if size > 0 and free / size < _FREE_MIN:
            found.append(
                Finding(
                    WARNING if free else BAD,
                    f"The volume of {path} on broker {broker} has {100 * free / size:.0f} % left.",
                    "Shorten the retention of large topics, or move replicas: parley balance --plan.",
                )
            )
    lagging = [one for one in listed if one.leader >= 0 and _behind(one) and set(one.replicas) <= alive]
    if lagging:
        found.append(
            Finding(
                WARNING,
                f"{plural(len(lagging), 'partition')} {_have(len(lagging))} followers that do not keep up although "
                "all their brokers are running.",
                "Check the disks and the network of these brokers. They may just be catching up after a restart.",
            )
        )
    if not any(one.level in (WARNING, BAD) for one in found):
        found.insert(0, Finding(GOOD, "All brokers are running, and all replicas are in sync."))
    order = (BAD, WARNING, GOOD)
    return sorted(found, key=lambda one: order.index(one.level))


def _of_controller(controller: int) -> Iterable[Finding]:
    if controller < 0:
        yield Finding(
            BAD,
            "The cluster has no controller: topics cannot be changed, and no leader can be elected.",
            "Is the coordination store reachable from the brokers? See Coordination.",
        )


def _of_brokers(
    partitions: Sequence[PartitionState],
    alive: frozenset[int],
    down_since: Mapping[int, int],
    recovering: Mapping[int, str],
) -> Iterable[Finding]:
    lost: Counter[int] = Counter()
    single: Counter[int] = Counter()
    for one in partitions:
        for broker in set(one.replicas) - alive:
            lost[broker] += 1
            single[broker] += len(one.isr) == 1
    for broker in sorted(lost):
        since = down_since.get(broker)
        when = "" if since is None else f" since {datetime.fromtimestamp(since / 1000, UTC):%H:%M:%S} UTC"
        text = (
            f"Broker {broker} is down{when}: {plural(lost[broker], 'partition')} {_have(lost[broker])} lost a replica"
        )
        if single[broker]:
            text += f", and {single[broker]} of them {_have(single[broker])} one replica left"
        advice = (
            f"Restart broker {broker}. If it will not return, move its replicas to other brokers: "
            f"parley balance --empty-broker {broker} --plan."
        )
        if broker in recovering:
            advice = f"Wait: broker {broker} is starting, and {recovering[broker]}. See Work in progress."
        yield Finding(BAD if single[broker] else WARNING, f"{text}.", advice)


def _of_leaders(partitions: Sequence[PartitionState], alive: frozenset[int]) -> Iterable[Finding]:
    offline = [one for one in partitions if one.leader < 0]
    if offline:
        names = ", ".join(f"{one.topic}-{one.index}" for one in offline[:3])
        more = f" and {len(offline) - 3} more" if len(offline) > 3 else ""
        yield Finding(
            BAD,
            f"{plural(len(offline), 'partition')} {_have(len(offline))} no leader: {names}{more}. "
            "Clients can neither read from nor write to them.",
            " ".join(_ways_to_a_leader(offline, alive)),
        )
    moved = [one for one in partitions if one.leader >= 0 and one.replicas and one.leader != one.replicas[0]]
    if partitions and len(moved) / len(partitions) > _IMBALANCE:
        yield Finding(
            WARNING,
            f"{plural(len(moved), 'partition')} {_are(len(moved))} not led by the preferred leader.",
            "This corrects itself within minutes of a restart. To do it now: "
            "parley elect-leaders --election-type preferred --all-topic-partitions.",
        )


def _ways_to_a_leader(offline: Sequence[PartitionState], alive: frozenset[int]) -> Iterable[str]:
    """Yield the steps that give these partitions a leader, starting with those that lose no records."""
    yield "Start a broker that holds an in-sync replica."
    elected = next((one for one in offline if not alive.isdisjoint(one.replicas)), None)
    if elected is not None:
        yield (
            "If their disks are lost, elect another replica, which lacks records: parley elect-leaders --election-type "
            f"unclean --topic {elected.topic} --partition {elected.index}."
        )
    alone = next((one for one in offline if alive.isdisjoint(one.replicas)), None)
    if alone is not None:
        yield (
            f"If no disk with {alone.topic}-{alone.index} is left: start a broker with the id of the lost one on an "
            "empty folder. The partition then begins empty. Or delete and create the topic."
        )


def _behind(one: PartitionState) -> bool:
    return len(one.isr) < len(one.replicas)


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def as_data(found: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings as JSON data."""
    return [{"level": one.level, "text": one.text, "advice": one.advice} for one in found]
