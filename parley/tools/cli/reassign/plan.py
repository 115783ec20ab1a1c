"""A reassignment plan: the target replicas of partitions, in the JSON format of kafka-reassign-partitions.

Rules:

1. A plan names each partition once, with at least one replica, and no replica twice.
2. ``log_dirs`` may name a directory for each replica. ``any`` leaves the choice to the broker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from parley.protocol.topic_partition import TopicPartition
from parley.tools.cli.invocation import CommandError
from parley.tools.cli.json_input import VERSION, member

ANY_DIRECTORY: Final = "any"
NO_LABELS: Final[Mapping[int, str | None]] = MappingProxyType({})
"""The host labels of brokers that do not have any."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of one partition: its replicas in order of preference, and a log directory for each."""

    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


Plan = dict[TopicPartition, Target]
Directories = Mapping[tuple[str, int, int], str]
"""The log directory of each replica: topic, partition, broker -> path."""


def name_of(partition: TopicPartition) -> str:
    """Format a partition as Kafka does: ``topic-0``."""
    return f"{partition[0]}-{partition[1]}"


def names_of(partitions: Iterable[TopicPartition]) -> str:
    """Format partitions, sorted and separated by commas."""
    return ",".join(name_of(each) for each in sorted(partitions))


def numbers(values: Iterable[int]) -> str:
    """Format broker ids, separated by commas, in the given order."""
    return ",".join(map(str, values))


def parse_assignment(entries: Sequence[Mapping[str, Any]]) -> Plan:
    """Parse the entries of ``partitions``. Raises ``CommandError`` if they break a rule."""
    if not entries:
        raise CommandError("Partition reassignment list cannot be empty.")
    plan: Plan = {}
    for entry in entries:
        where = (member(entry, "topic", str), member(entry, "partition", int))
        if where in plan:
            raise CommandError(f"Partition reassignment contains duplicate topic partitions: {name_of(where)}.")
        plan[where] = _target(where, entry)
    return plan


def _target(where: TopicPartition, entry: Mapping[str, Any]) -> Target:
    replicas = member(entry, "replicas", list)
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in replicas):
        raise CommandError(f"The replicas of {name_of(where)} must be broker ids, not {json.dumps(replicas)}.")
    if not replicas:
        raise CommandError("Partition replica list cannot be empty.")
    twice = sorted({each for each in replicas if replicas.count(each) > 1})
    if twice:
        raise CommandError(
            "Partition replica lists may not contain duplicate entries: "
            f"{name_of(where)} contains multiple entries for {numbers(twice)}."
        )
    log_dirs = entry.get("log_dirs") or [ANY_DIRECTORY] * len(replicas)
    if not isinstance(log_dirs, list) or not all(isinstance(each, str) for each in log_dirs):
        raise CommandError(f"The log_dirs of {name_of(where)} must be paths, not {json.dumps(log_dirs)}.")
    if len(log_dirs) != len(replicas):
        raise CommandError(
            f"Size of replicas list {replicas} is different from size of log dirs list {json.dumps(log_dirs)} "
            f"for partition {name_of(where)}."
        )
    return Target(tuple(replicas), tuple(log_dirs))


def parse_topics(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Parse the entries of ``topics``. Raises ``CommandError`` if one is wrong."""
    return [member(entry, "topic", str) for entry in entries]


def log_dir_moves(plan: Plan) -> dict[tuple[str, int, int], str]:
    """Return the replicas for which the plan names a log directory, with that directory."""
    return {
        (*where, broker): directory
        for where, target in plan.items()
        for broker, directory in zip(target.replicas, target.log_dirs, strict=True)
        if directory != ANY_DIRECTORY
    }


def plan_of(replicas: Mapping[TopicPartition, Sequence[int]], directories: Directories) -> Plan:
    """Return the current replicas and log directories as a plan, for a rollback."""
    return {
        where: Target(tuple(brokers), tuple(directories.get((*where, broker), ANY_DIRECTORY) for broker in brokers))
        for where, brokers in replicas.items()
    }


def with_factor(
    current: Mapping[TopicPartition, Sequence[int]],
    factor: int,
    racks: Mapping[int, str | None],
    hosts: Mapping[int, str | None] = NO_LABELS,
) -> Plan:
    """Return a plan that gives each partition ``factor`` replicas. ``racks`` has the running brokers with their racks,
    ``hosts`` their host labels.

    Existing replicas are kept; if there are too many, the last ones are removed. A new replica goes to the rack with
    the fewest replicas of its partition, within such racks to the host with the fewest, and then to the broker with the
    fewest replicas of all these partitions. Raises ``CommandError`` if there are too few brokers.
    """
    if factor > len(racks):
        raise CommandError(
            f"The target replication factor of {factor} cannot be reached because only {len(racks)} broker(s) are "
            "running."
        )
    load = Counter(broker for replicas in current.values() for broker in replicas[:factor])
    plan: Plan = {}
    for where, replicas in sorted(current.items()):
        after = list(replicas[:factor])
        while len(after) < factor:
            shared = [(names, Counter(names.get(broker) or None for broker in after)) for names in (racks, hosts)]
            others = racks.keys() - set(after)
            added = min(
                others,
                key=lambda broker: (
                    *(used[name] if (name := names.get(broker) or None) else 0 for names, used in shared),
                    load[broker],
                    broker,
                ),
            )
            load[added] += 1
            after.append(added)
        plan[where] = Target(tuple(after), (ANY_DIRECTORY,) * factor)
    return plan


def as_data(plan: Plan) -> dict[str, object]:
    """Return the plan as JSON data."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": topic,
                "partition": index,
                "replicas": list(target.replicas),
                "log_dirs": list(target.log_dirs),
            }
            for (topic, index), target in sorted(plan.items())
        ],
    }


def as_json(plan: Plan) -> str:
    """Return the plan as JSON text, byte for byte as Kafka's tool writes it."""
    return json.dumps(as_data(plan), separators=(",", ":"))
