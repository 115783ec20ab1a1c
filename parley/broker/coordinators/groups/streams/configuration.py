"""Configures a topology: finds its topics, and decides the numbers of partitions of its internal topics.

* A repartition topic has the number of partitions that the application requests, or else as many partitions as the
  largest input of its writer.
* Topics of a copartition group must have the same number of partitions. Repartition topics without a requested number
  adapt to it.
* A changelog has as many partitions as its subtopology's largest input. The subtopology also has as many tasks.

If the topics do not fit the topology, it is not ready, and its members get the reason (``Status``). An invalid topology
raises STREAMS_INVALID_TOPOLOGY. Invalid positions in it raise UNKNOWN_SERVER_ERROR, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeVar

from parley.broker.coordinators.groups.streams.topology import InternalTopic, Subtopology, Topology
from parley.broker.metadata.image import MetadataImage
from parley.protocol.errors import ErrorCode, KafkaError

T = TypeVar("T")

SUBTOPOLOGIES_MAX: Final = 1_000
"""The maximum number of subtopologies. An application has a few dozen."""

INTERNAL_TOPICS_MAX: Final = 5_000
"""The maximum number of repartition and changelog topics. An application has a few hundred."""

TASKS_MAX: Final = 20_000
"""The maximum number of tasks of a topology, which limits the time that a target assignment takes."""

SHOWN_MAX: Final = 3
"""The maximum number of topics that a status names."""


class StatusCode(IntEnum):
    """The codes of a heartbeat's status."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(NamedTuple):
    """A status in the response to a heartbeat."""

    code: StatusCode
    detail: str


class ConfiguredSubtopology(NamedTuple):
    """A subtopology with the numbers of partitions of its topics."""

    subtopology: Subtopology
    tasks: int
    repartitions: tuple[InternalTopic, ...]
    changelogs: tuple[InternalTopic, ...]

    @property
    def is_stateful(self) -> bool:
        """True if the subtopology has state, so that its tasks can have standby tasks."""
        return bool(self.changelogs)


class Configured(NamedTuple):
    """The result of configuring a topology: its subtopologies, its missing topics, and what prevents its use."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None = None
    """The subtopologies by id, in ascending order. None if the topics do not fit."""
    to_create: tuple[InternalTopic, ...] = ()
    """The topics that do not exist yet."""
    problem: Status | None = None
    """The reason why the topology is not ready; None if it is ready."""

    @property
    def is_ready(self) -> bool:
        """True if all topics exist and fit."""
        return self.problem is None


class _Unfit(Exception):
    """Raised if the existing topics do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def check_form(topology: Topology) -> None:
    """Raise UNKNOWN_SERVER_ERROR, as Kafka does, if the topology's epoch is negative or two subtopologies have the same
    id."""
    if topology.epoch < 0:
        raise _broken("Topology epoch must be non-negative.")
    ids = [each.id for each in topology.subtopologies]
    if len(set(ids)) != len(ids):
        raise _broken("Two subtopologies have the same id.")


def configure(topology: Topology, image: MetadataImage) -> Configured:
    """Decide the numbers of partitions of a topology's internal topics, and return the configured topology.

    If the existing topics do not fit, the result contains only the problem. Raises STREAMS_INVALID_TOPOLOGY for a
    topology that is too large, or that no topics could fit. Raises UNKNOWN_SERVER_ERROR for other mistakes in the
    topology, for which Kafka's coordinator fails with the same error.
    """
    if len(topology.subtopologies) > SUBTOPOLOGIES_MAX:
        raise _invalid(f"The topology has more than {SUBTOPOLOGIES_MAX} subtopologies.")
    if sum(len(each.repartitions) + len(each.changelogs) for each in topology.subtopologies) > INTERNAL_TOPICS_MAX:
        raise _invalid(f"The topology has more than {INTERNAL_TOPICS_MAX} internal topics.")
    try:
        return _Counts(topology, image).configured()
    except _Unfit as unfit:
        return Configured(topology.epoch, problem=unfit.status)


class _Counts:
    """The numbers of partitions of existing topics, and the numbers decided for the other topics."""

    def __init__(self, topology: Topology, image: MetadataImage) -> None:
        self._topology = topology
        self._subtopologies = topology.subtopologies
        self._image = image
        self._decided: dict[str, int] = {}
        repartitions = [topic for each in self._subtopologies for topic in each.repartitions]
        self._fixed = {topic.name: topic.partitions for topic in repartitions if topic.partitions}
        self._flexible = {topic.name for topic in repartitions if not topic.partitions}
        self._fixed_count: int | None = None

    def configured(self) -> Configured:
        self._check_sources()
        copartitioned = [group for each in self._subtopologies for group in _copartition_groups(each)]
        self._decided.update(self._repartition_counts())
        for group in copartitioned:
            self._decided.update(self._copartitioned(group))
        for each in self._subtopologies:
            self._decided.update(dict.fromkeys((topic.name for topic in each.changelogs), self._inputs_count(each)))
        found = {each.id: self._configured(each) for each in self._subtopologies}
        if sum(each.tasks for each in found.values()) > TASKS_MAX:
            raise _invalid(f"The topology has more than {TASKS_MAX} tasks.")
        missing = self._missing(found.values())
        problem = None
        if missing:
            names = [topic.name for topic in missing]
            problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_named(names)}")
        return Configured(self._topology.epoch, found, missing, problem)

    def _existing(self, topic: str) -> int | None:
        known = self._image.topics.get(topic)
        return None if known is None else len(known.partitions)

    def _count(self, topic: str) -> int | None:
        existing = self._existing(topic)
        return self._decided.get(topic) if existing is None else existing

    def _known_count(self, topic: str) -> int:
        count = self._count(topic)
        if count is None:
            raise _broken(f"Number of partitions is not set for topic: {topic}")
        return count

    def _check_sources(self) -> None:
        missing = {name for each in self._subtopologies for name in each.sources if name not in self._image.topics}
        if missing:
            text = f"Source topics {_named(sorted(missing))} are missing."
            raise _Unfit(StatusCode.MISSING_SOURCE_TOPICS, text)

    def _repartition_counts(self) -> dict[str, int]:
        """Return the numbers of partitions of repartition topics. A topic without a requested number gets as many
        partitions as its writer's largest input.

        As in Kafka, the subtopologies take turns, and each considers only the inputs whose numbers are known at its
        turn. The queue contains only subtopologies with such an input, so the work is linear in the topology.
        """
        counts = dict(self._fixed)
        readers: dict[str, list[int]] = {}
        for index, each in enumerate(self._subtopologies):
            for topic in each.repartitions:
                readers.setdefault(topic.name, []).append(index)
        queue = [
            (0, index)  # the turn, and the position in it
            for index, each in enumerate(self._subtopologies)
            if each.sources or any(topic.name in counts for topic in each.repartitions)
        ]
        queued = {index for _, index in queue}
        while queue:
            turn, index = heappop(queue)
            each = self._subtopologies[index]
            unknown = [name for name in each.sinks if name not in counts]
            if not unknown:
                continue
            known = [counts[topic.name] for topic in each.repartitions if topic.name in counts]
            known += [count for name in each.sources if (count := self._existing(name)) is not None]
            counts.update(dict.fromkeys(unknown, max(known)))
            for reader in {reader for name in set(unknown) for reader in readers.get(name, ())} - queued:
                heappush(queue, (turn + (reader <= index), reader))
                queued.add(reader)
        self._check_repartitions(counts)
        return counts

    def _check_repartitions(self, counts: Mapping[str, int]) -> None:
        if any(name not in counts for each in self._subtopologies for name in each.sinks):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the "
                "topology that cannot be resolved."
            )
        if any(topic.name not in counts for each in self._subtopologies for topic in each.repartitions):
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics, because a repartition source "
                "topic is never used as a sink topic."
            )

    def _copartitioned(self, group: set[str]) -> dict[str, int]:
        """Return the numbers of partitions of the repartition topics in a copartition group. Raises _Unfit if they do
        not fit the other topics."""
        repartitions = {name: self._known_count(name) for name in group if self._is_repartition(name)}
        others = {name: self._known_count(name) for name in group if name not in repartitions}
        if others:
            count = next(iter(others.values()))
            if any(each != count for each in others.values()):
                raise _Unfit(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, _unequal(others))
        elif self._fixed:
            count = self._count_of_fixed(repartitions)
        else:
            count = max(repartitions.values(), default=0)
        for name, decided in repartitions.items():
            if name in self._fixed and decided != count:
                text = (
                    f"Number of partitions [{decided}] of repartition topic [{name}] doesn't match number of "
                    f"partitions [{count}] of the source topic."
                )
                raise _Unfit(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, text)
        return dict.fromkeys(repartitions, count)

    def _is_repartition(self, name: str) -> bool:
        return name in self._fixed or name in self._flexible

    def _count_of_fixed(self, repartitions: Mapping[str, int]) -> int:
        """Return the number of partitions that all repartition topics with a requested number have in common. As in
        Kafka, they must have the same number. Raises _Unfit if they do not.

        No copartition group changes it, so it is computed only once.
        """
        if self._fixed_count is None:
            counts = [self._known_count(name) for name in self._fixed]
            if any(each != counts[0] for each in counts):
                raise _Unfit(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, _unequal(repartitions))
            self._fixed_count = counts[0]
        return self._fixed_count

    def _inputs_count(self, subtopology: Subtopology) -> int:
        counts = [self._known_count(name) for name in subtopology.inputs()]
        if not counts:
            raise _invalid(f"No source topics found for subtopology {subtopology.id}")
        return max(counts)

    def _configured(self, subtopology: Subtopology) -> ConfiguredSubtopology:
        return ConfiguredSubtopology(
            subtopology,
            self._inputs_count(subtopology),
            tuple(map(self._with_partitions, subtopology.repartitions)),
            tuple(map(self._with_partitions, subtopology.changelogs)),
        )

    def _with_partitions(self, topic: InternalTopic) -> InternalTopic:
        partitions = topic.partitions or self._decided.get(topic.name, 0)
        if partitions < 1:
            raise _broken("Number of partitions must be at least 1.")
        return InternalTopic(topic.name, partitions, topic.replication_factor, topic.configs)

    def _missing(self, configured: Iterable[ConfiguredSubtopology]) -> tuple[InternalTopic, ...]:
        """Return the internal topics that do not exist. Raises _Unfit if an existing internal topic has another number
        of partitions."""
        wanted = {topic.name: topic for each in configured for topic in (*each.repartitions, *each.changelogs)}
        missing = []
        for name in sorted(wanted):
            existing, expected = self._existing(name), wanted[name].partitions
            if existing is None:
                missing.append(wanted[name])
            elif existing != expected:
                text = (
                    f"Existing topic {name} has different number of partitions: expected {expected}, found {existing}"
                )
                raise _Unfit(StatusCode.INCORRECTLY_PARTITIONED_TOPICS, text)
        return tuple(missing)


def _copartition_groups(subtopology: Subtopology) -> Iterable[set[str]]:
    for group in subtopology.copartition_groups:
        names = {_at(subtopology.sources, position) for position in group.sources}
        names |= {_at(subtopology.repartitions, position).name for position in group.repartitions}
        if names:
            yield names


def _at(items: Sequence[T], position: int) -> T:
    if not 0 <= position < len(items):
        raise _broken(f"Index {position} out of bounds for length {len(items)}")
    return items[position]


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_MAX} additional topics" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more


def _unequal(counts: Mapping[str, int]) -> str:
    listed = ", ".join(f"{name}={counts[name]}" for name in sorted(counts))
    return f"Following topics do not have the same number of partitions: [{{{listed}}}]"


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _broken(text: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
