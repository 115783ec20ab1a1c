"""The partitions of repartition topics: the queue finds the same numbers as repeated passes over all subtopologies."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from parley.broker.coordinators.groups.streams.configuration import INTERNAL_TOPICS_MAX, configure
from parley.broker.coordinators.groups.streams.topology import InternalTopic, Subtopology, Topology, made
from parley.protocol.errors import ErrorCode, KafkaError
from tests.broker.coordinators.groups.consumer.bench import with_topics

IMAGE = with_topics(a=2, b=3, c=7)


def internal(name: str, partitions: int = 0) -> InternalTopic:
    return InternalTopic(name, partitions, 0, ())


def by_turns(topology: Topology) -> dict[str, int] | None:
    """Return the partitions as Kafka finds them, by turns until no sink is unknown; None if that is impossible."""
    read = [topic for each in topology.subtopologies for topic in each.repartitions]
    counts = {topic.name: topic.partitions for topic in read if topic.partitions}
    before = -1
    while before != len(counts):
        before = len(counts)
        for each in topology.subtopologies:
            known = [counts[topic.name] for topic in each.repartitions if topic.name in counts]
            known += [len(IMAGE.topics[name].partitions) for name in each.sources]
            if known:
                counts.update({name: max(known) for name in each.sinks if name not in counts})
    names = {name for each in topology.subtopologies for name in each.sinks} | {topic.name for topic in read}
    return {topic.name: counts[topic.name] for topic in read} if names <= set(counts) else None


def random_topology(random: Random) -> Topology:
    fixed = {f"r{each}": random.choice((0, 0, 0, 5)) for each in range(8)}

    def some(names: Iterable[str], most: int) -> list[str]:
        return random.sample(sorted(names), random.randint(0, most))

    return made(
        1,
        [
            Subtopology(
                id=f"{number:02}",
                sources=tuple(some("abc", 1)),
                regexes=(),
                changelogs=(),
                sinks=tuple(some(fixed, 3)),
                repartitions=tuple(internal(name, fixed[name]) for name in some(fixed, 2)) or (internal("r0", 5),),
                copartition_groups=(),
            )
            for number in range(random.randint(1, 8))
        ],
    )


def test_repartition_topics_have_the_partitions_that_turns_over_all_subtopologies_find() -> None:
    possible = 0
    for seed in range(400):
        topology = random_topology(Random(seed))
        expected = by_turns(topology)
        if expected is None:
            with pytest.raises(KafkaError, match="Failed to compute"):
                configure(topology, IMAGE)
            continue
        possible += 1
        found = configure(topology, IMAGE)
        assert {each.name: each.partitions for each in found.to_create} == expected, seed
    assert 50 < possible < 350


def test_a_topology_with_too_many_internal_topics_is_invalid() -> None:
    changelogs = tuple(internal(f"store{each}") for each in range(INTERNAL_TOPICS_MAX + 1))
    with pytest.raises(KafkaError) as raised:
        configure(made(1, [Subtopology("0", ("a",), (), changelogs, (), (), ())]), IMAGE)
    assert raised.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
