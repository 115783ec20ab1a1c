"""Decisions about topics: create, delete, add partitions.

Each function takes the image and the request, and returns a ``Decision``. Each topic succeeds or fails independently;
the outcome contains the error. Later topics of a request see the earlier ones, so two topics with the same name
collide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import field
from random import Random

from parley.broker.controller.decision import Decision
from parley.broker.controller.replica_placement import ReplicaPlacement, check_replicas
from parley.broker.metadata.changes import Change, ConfigReplaced, PartitionsAdded, TopicCreated, TopicDeleted
from parley.broker.metadata.image import MetadataImage
from parley.broker.metadata.topic_names import INTERNAL_TOPICS, check_topic_name, metric_form
from parley.broker.metadata.types import ConfigResource, PartitionState, ResourceType, TopicImage
from parley.light_dataclasses import dataclass
from parley.protocol.errors import ErrorCode, KafkaError
from parley.protocol.uuids import UUID

PARTITIONS_MAX = 10_000
"""The maximum number of new partitions in one request, as in Kafka: a request for more is probably a mistake."""

Assignment = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create, as in CreateTopics. -1 means the cluster's default (KIP-464).

    ``assignment`` contains the replicas of each partition. If it is not empty, both numbers must be -1.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: Assignment = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The cluster's defaults for new topics, for the numbers that a request does not specify."""

    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class TopicOutcome:
    """The outcome for one topic of a request: the topic, or the error.

    A created topic is in its new state. A topic that was deleted or got more partitions is in its state before that.
    """

    name: str
    topic: TopicImage | None = None
    error: KafkaError | None = None


TopicPolicy = Callable[[TopicImage, Mapping[str, str]], None]
"""Raises POLICY_VIOLATION if the operator's policy refuses the topic (KIP-108)."""


Charge = Callable[[str, int], None]
"""Charges a change of this many partitions to a quota. Raises THROTTLING_QUOTA_EXCEEDED if the client must wait."""


def charge_nobody(topic: str, partitions: int) -> None:
    """Charge no quota, because the broker itself makes the change."""


def create_topics(
    image: MetadataImage,
    wanted: Iterable[NewTopic],
    *,
    defaults: TopicDefaults,
    new_id: Callable[[], UUID],
    rng: Random,
    policy: TopicPolicy | None = None,
    charge: Charge = charge_nobody,
    validate_only: bool = False,
) -> Decision[list[TopicOutcome]]:
    """Create each topic, or only validate the request if ``validate_only``. Returns one outcome for each topic.

    ``new_id()`` returns the id of a new topic. A request for more than ``PARTITIONS_MAX`` partitions in total creates
    no topic: every outcome contains the error POLICY_VIOLATION.
    """
    wanted = list(wanted)
    if (
        refusal := too_many_partitions(
            sum(requested_partitions(new.assignment, new.partitions, defaults.partitions) for new in wanted)
        )
    ) is not None:
        return Decision((), [TopicOutcome(new.name, error=refusal) for new in wanted])
    changes: list[Change] = []
    outcomes: list[TopicOutcome] = []
    taken = _taken_names(image, wanted)
    placing = _Placing(image)
    for new in wanted:
        try:
            _check_name_is_free(image, new.name, taken)
            topic = TopicImage(new.name, new_id(), _new_partitions(placing, new, defaults, rng))
            if policy is not None:
                policy(topic, new.configs)
            charge(new.name, len(topic.partitions))
        except KafkaError as error:
            outcomes.append(TopicOutcome(new.name, error=error))
            continue
        taken[metric_form(new.name)] = new.name
        outcomes.append(TopicOutcome(new.name, topic))
        changes.append(TopicCreated(topic))
        if new.configs:
            changes.append(ConfigReplaced(ConfigResource(ResourceType.TOPIC, new.name), dict(new.configs)))
    return Decision(() if validate_only else tuple(changes), outcomes)


def requested_partitions(assignment: Sized, partitions: int, usual: int) -> int:
    """Return the number of partitions that a new topic requests: the assigned ones, or the given number. -1 means
    ``usual``."""
    return len(assignment) or max(0, usual if partitions == -1 else partitions)


def too_many_partitions(partitions: int) -> KafkaError | None:
    """Return the error for a request for too many new partitions in total, or None if the number is allowed."""
    if partitions <= PARTITIONS_MAX:
        return None
    return KafkaError(
        ErrorCode.POLICY_VIOLATION,
        f"The request creates {partitions} partitions, more than the maximum of {PARTITIONS_MAX}. "
        "Send several requests.",
    )


def _taken_names(image: MetadataImage, wanted: Iterable[NewTopic]) -> dict[str, str]:
    """Return the names of existing topics with which a new name could collide, by their form in metrics.

    Most requests have no name with '.' or '_', so nothing can collide, and the existing topics need not be searched.
    """
    if not any("." in new.name or "_" in new.name for new in wanted):
        return {}
    return {metric_form(name): name for name in image.topics}


def _check_name_is_free(image: MetadataImage, name: str, taken: Mapping[str, str]) -> None:
    check_topic_name(name)
    other = name if name in image.topics else taken.get(metric_form(name))
    if other == name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic '{other}': names that differ only in '.' and '_' "
            "share their metrics.",
        )


class _Placing:
    """Places the new partitions of one request. Partitions with the same replicas share one state, to save memory."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._placement = ReplicaPlacement(tuple(image.brokers.values()))
        self._states: dict[tuple[int, ...], PartitionState] = {}

    def placed(
        self, partitions: int, factor: int, rng: Random, *, first_index: int = 0, first_leader: int | None = None
    ) -> tuple[PartitionState, ...]:
        """Place ``partitions`` new partitions with ``factor`` replicas each, and return their states."""
        return self.states(
            self._placement.place(partitions, factor, rng, first_index=first_index, first_leader=first_leader)
        )

    def states(self, replicas_of_each: Iterable[tuple[int, ...]]) -> tuple[PartitionState, ...]:
        """Return the states of new partitions with these replicas."""
        return tuple(self._states.get(replicas) or self._new_state(replicas) for replicas in replicas_of_each)

    def _new_state(self, replicas: tuple[int, ...]) -> PartitionState:
        """Return the state of a new partition. All live replicas are empty, so all are in the ISR. The first live
        replica leads."""
        brokers = self.image.brokers
        live = tuple(broker for broker in replicas if broker in brokers and not brokers[broker].fenced)
        if not live:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"None of the replicas {list(replicas)} is on a live broker."
            )
        state = self._states[replicas] = PartitionState(replicas=replicas, isr=live, leader=live[0])
        return state


def _new_partitions(
    placing: _Placing, new: NewTopic, defaults: TopicDefaults, rng: Random
) -> tuple[PartitionState, ...]:
    if new.assignment:
        if new.partitions != -1 or new.replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Specify either the number of partitions and the replication factor, or the assignment, not both.",
            )
        return _assigned(placing, new.assignment)
    partitions = defaults.partitions if new.partitions == -1 else new.partitions
    factor = defaults.replication_factor if new.replication_factor == -1 else new.replication_factor
    if partitions <= 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Number of partitions must be 1 or more, not {partitions}.")
    if factor <= 0:
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, f"Replication factor must be 1 or more, not {factor}.")
    return placing.placed(partitions, factor, rng)


def _assigned(placing: _Placing, assignment: Assignment) -> tuple[PartitionState, ...]:
    """Return the partitions of a topic whose replicas the client has assigned. Raises KafkaError if the assignment is
    invalid."""
    indexes = sorted(assignment)
    if indexes != list(range(len(indexes))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Partitions must be numbered from 0 without a gap, not {indexes}."
        )
    factor = len(assignment[0])
    for index in indexes:
        _check_replicas(placing.image, index, tuple(assignment[index]), factor)
    return placing.states(tuple(assignment[index]) for index in indexes)


def _check_replicas(image: MetadataImage, index: int, replicas: tuple[int, ...], factor: int) -> None:
    check_replicas(image, str(index), replicas)
    if len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Partition {index} has {len(replicas)} replicas but the first partition has {factor}.",
        )


def delete_topics(
    image: MetadataImage, names: Iterable[str], ids: Mapping[str, UUID], *, charge: Charge = charge_nobody
) -> Decision[list[TopicOutcome]]:
    """Delete each topic with its configuration. Returns one outcome for each name.

    If ``ids`` contains the topic's name, the topic is deleted only if it has that id. Otherwise its outcome contains
    the error UNKNOWN_TOPIC_ID.
    """
    changes: list[Change] = []
    outcomes: list[TopicOutcome] = []
    deleted: set[str] = set()
    for name in names:
        topic = image.topics.get(name)
        if topic is None or name in deleted:
            unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist.")
            outcomes.append(TopicOutcome(name, error=unknown))
            continue
        if ids.get(name, topic.topic_id) != topic.topic_id:
            other = KafkaError(
                ErrorCode.UNKNOWN_TOPIC_ID, f"Topic '{name}' was deleted and created again with another id."
            )
            outcomes.append(TopicOutcome(name, error=other))
            continue
        try:
            charge(name, len(topic.partitions))
        except KafkaError as error:
            outcomes.append(TopicOutcome(name, error=error))
            continue
        deleted.add(name)
        resource = ConfigResource(ResourceType.TOPIC, name)
        if resource in image.configs:
            changes.append(ConfigReplaced(resource, {}))
        changes.append(TopicDeleted(name, topic.topic_id))
        outcomes.append(TopicOutcome(name, topic))
    return Decision(tuple(changes), outcomes)


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """One topic of a CreatePartitions request: the total number of partitions, and optionally the replicas of the new
    ones."""

    topic: str
    total: int
    assignment: Sequence[Sequence[int]] | None = None


def add_partitions(
    image: MetadataImage,
    wanted: Iterable[NewPartitions],
    *,
    rng: Random,
    charge: Charge = charge_nobody,
    validate_only: bool = False,
) -> Decision[list[TopicOutcome]]:
    """Add partitions to each topic, or only validate the request if ``validate_only``.

    The existing partitions stay unchanged (KIP-195). Returns one outcome for each topic. A request for more than
    ``PARTITIONS_MAX`` new partitions in total adds none: every outcome contains the error POLICY_VIOLATION.
    """
    wanted = list(wanted)
    if (
        refusal := too_many_partitions(sum(requested_increase(image, more.topic, more.total) for more in wanted))
    ) is not None:
        return Decision((), [TopicOutcome(more.topic, error=refusal) for more in wanted])
    changes: list[Change] = []
    outcomes: list[TopicOutcome] = []
    placing = _Placing(image)
    for more in wanted:
        try:
            added = _added_partitions(placing, more, rng)
            charge(more.topic, len(added))
        except KafkaError as error:
            outcomes.append(TopicOutcome(more.topic, error=error))
            continue
        outcomes.append(TopicOutcome(more.topic, image.topics[more.topic]))
        changes.append(PartitionsAdded(more.topic, added))
    return Decision(() if validate_only else tuple(changes), outcomes)


def requested_increase(image: MetadataImage, name: str, total: int) -> int:
    """Return the number of partitions that a topic needs to reach ``total``; 0 if it has as many already, or does not
    exist."""
    topic = image.topics.get(name)
    return 0 if topic is None else max(0, total - len(topic.partitions))


def _added_partitions(placing: _Placing, more: NewPartitions, rng: Random) -> tuple[PartitionState, ...]:
    topic = placing.image.topics.get(more.topic)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{more.topic}' does not exist.")
    if more.topic in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The number of partitions of '{more.topic}' cannot be changed: it determines where each group or "
            "transaction is stored, and stored ones would not be found again.",
        )
    present = len(topic.partitions)
    count = more.total - present
    if count <= 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{more.topic}' has {present} partitions; {more.total} is not an increase, and "
            "partitions cannot be removed.",
        )
    first = topic.partitions[0]
    factor = len(first.replicas) - len(first.adding)
    if more.assignment is None:
        return placing.placed(count, factor, rng, first_index=present, first_leader=first.replicas[0])
    if len(more.assignment) != count:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count} partitions would be added, but the request assigns {len(more.assignment)}.",
        )
    for index, replicas in enumerate(more.assignment, start=present):
        _check_replicas(placing.image, index, tuple(replicas), factor)
    return placing.states(tuple(replicas) for replicas in more.assignment)
