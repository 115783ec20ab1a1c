"""The topology of a Kafka Streams application: the topics that its subtopologies read and write.

A subtopology reads *source topics*, which the user creates, and *repartition topics*, which subtopologies write. Its
state stores have *changelog topics*. The coordinator decides how many partitions repartition and changelog topics have
(``configuration.py``), and creates them (``internal_topics.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from parley.light_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A repartition or changelog topic, which is created for the application."""

    name: str
    partitions: int
    """The requested number of partitions, or 0 if the topics that the application reads determine it."""
    replication_factor: int
    """The requested replication factor, or 0 for the cluster's default."""
    configs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Topics that must have the same number of partitions, as positions in the lists of their subtopology."""

    sources: tuple[int, ...]
    regexes: tuple[int, ...]
    repartitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of the topology whose tasks are assigned together."""

    id: str
    sources: tuple[str, ...]
    regexes: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    sinks: tuple[str, ...]
    """The names of the repartition topics that the subtopology writes."""
    repartitions: tuple[InternalTopic, ...]
    """The repartition topics that the subtopology reads."""
    copartition_groups: tuple[CopartitionGroup, ...]

    def inputs(self) -> list[str]:
        """Return the names of the topics that the subtopology reads."""
        return [*self.sources, *(topic.name for topic in self.repartitions)]


@dataclass(frozen=True, slots=True)
class Topology:
    """The topology of an application, with an epoch that the application chooses."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]
    """The subtopologies, in ascending order of their ids."""
    readers: Mapping[str, str] = field(compare=False)
    """The id of the subtopology that reads each topic."""

    def required_topics(self) -> set[str]:
        """Return the names of the topics that must exist."""
        changelogs = {topic.name for each in self.subtopologies for topic in each.changelogs}
        return {name for each in self.subtopologies for name in each.inputs()} | changelogs


def made(epoch: int, subtopologies: Iterable[Subtopology]) -> Topology:
    """Create a topology from subtopologies in any order."""
    ordered = tuple(sorted(subtopologies, key=lambda each: each.id))
    return Topology(epoch, ordered, {name: each.id for each in ordered for name in each.inputs()})


def topology_of(message: Any) -> Topology:
    """Create a topology from a heartbeat or a stored record, which have the same fields."""
    return made(message.epoch, map(_subtopology, message.subtopologies))


def _subtopology(found: Any) -> Subtopology:
    return Subtopology(
        found.subtopology_id,
        tuple(found.source_topics),
        tuple(found.source_topic_regex),
        tuple(map(_internal_topic, found.state_changelog_topics)),
        tuple(found.repartition_sink_topics),
        tuple(map(_internal_topic, found.repartition_source_topics)),
        tuple(
            CopartitionGroup(
                tuple(each.source_topics), tuple(each.source_topic_regex), tuple(each.repartition_source_topics)
            )
            for each in found.copartition_groups
        ),
    )


def _internal_topic(found: Any) -> InternalTopic:
    configs = tuple((each.key, each.value) for each in found.topic_configs)
    return InternalTopic(found.name, found.partitions, found.replication_factor, configs)
